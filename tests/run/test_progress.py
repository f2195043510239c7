"""The panel: what it shows, how often, and where."""

from __future__ import annotations

import io
import math

import pytest

from shoal.run import live
from shoal.run.progress import Panel, clock, shares, sparkline, status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_sparkline_follows_the_values() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▅▅"
    assert sparkline([1.0, math.nan, 2.0]) == "▁ █"
    assert sparkline([math.inf]) == " "
    assert len(sparkline(list(range(1000)), 40)) == 40 and sparkline(list(range(1000)), 40)[-1] == "█"


def test_clock_and_shares() -> None:
    assert [clock(s) for s in (None, math.nan, 4.21, 187, 7425)] == ["-", "-", "4.2 s", "3:07", "2:03:45"]
    assert shares({"collect": 3.0, "learn": 1.0, "other": 9.0, "wait": math.nan}) == {"collect": 0.75, "learn": 0.25}
    assert shares({"collect": 0.0}) == {} == shares({})


def test_what_roles_say_of_their_work_is_one_line() -> None:
    said = {"status/score": 12.345, "status/predictions_per_s": 12345.6, "status/trainers": 2.0, "loss/value": 1.0}
    assert status(said) == ("score 12.3  predictions/s 12,346  trainers 2",)
    assert status({"loss/value": 1.0}) == ()


def test_without_a_terminal_it_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with Panel("LunarLander-v3", 1000, 200.0, stream=stream) as panel:
        for step in range(1, 101):
            now[0] += 0.1
            panel.update(step, now[0], -5.25, [1.0], {"collect": 1.0, "learn": 3.0}, ["2 actors"])
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3  # at 0.1 s, at 5.1 s, and the end
    assert lines[-1] == (
        "LunarLander-v3: 100 of 1,000 steps | 10 steps/s | return -5.2 (target 200) | at most 1:30 left"
        " | collect 25% learn 75% | 2 actors"
    )


def test_the_last_line_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with Panel("CartPole-v1", 20, stream=stream) as panel:
        for step in (10, 20):
            now[0] += 6.0
            panel.update(step, now[0])
    assert [line.split(":")[1].split("|")[0] for line in stream.getvalue().splitlines()] == [
        " 10 of 20 steps ",
        " 20 of 20 steps ",
    ]


def test_on_a_terminal_it_draws_at_most_four_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, drawn = [0.0], [0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    stream = Terminal()
    panel = Panel("[bold]CartPole[/bold]", 1000, stream=stream)
    draw = panel._draw
    monkeypatch.setattr(panel, "_draw", lambda: (drawn.__setitem__(0, drawn[0] + 1), draw()))
    for step in range(1, 1001):
        now[0] += 0.01
        panel.update(step, now[0], 12.0, [float(step)], {"collect": 1.0, "wait": 1.0})
    panel.say("an [alert] with brackets")
    panel.close()
    panel.close()
    assert 35 <= drawn[0] <= 42
    text = stream.getvalue()
    for part in ("[bold]CartPole[/bold]", "1,000 of 1,000", "100 steps/s", "collect 50%", "an [alert] with brackets"):
        assert part in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_quiet_is_silent_but_for_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with Panel("x", 10, quiet=True) as panel:
        panel.update(1, 1.0)
        panel.say("disk full")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "disk full\n"


def test_before_anything_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    with Panel("x", 10) as panel:
        panel.update(0, 0.0)
    captured = capsys.readouterr()
    assert captured.out == "" and "0 of 10 steps | 0 steps/s | return - | at most - left" in captured.err
