"""The parent's panel: its line, its table on a terminal, and silence when quiet."""

from __future__ import annotations

import io

import pytest

from shoal.federation.ledger import Child
from shoal.federation.parent_panel import MOST, ParentPanel, Shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*children: Child, rejected: int = 0) -> Shown:
    return Shown(90.0, 7, 6, 5, 2000, "of 10,000", 0.2, -12.34, None, [1.0, 2.0], children, rejected)


def child(name: str, present: bool = True) -> Child:
    return Child(name, present, 1234.0, 3, 0.5, 0.25)


def test_without_a_terminal_it_is_one_line() -> None:
    stream = io.StringIO()
    with ParentPanel("CartPole-v1 a2c", "ws://x:1", stream=stream) as panel:
        panel.show(shown(child("one"), child("two", present=False), rejected=2))
    assert stream.getvalue().splitlines()[-1] == (
        "CartPole-v1 a2c: 2,000 of 10,000, 6 updates | return -12.3 | 1 child (one 1,234/s 50%) | 2 rejected | 1:30"
    )


def test_a_terminal_shows_the_children_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with ParentPanel("title", "", stream=stream) as panel:
        panel.show(shown())
        panel.show(shown(*(child(f"c{i}") for i in range(MOST + 3)), child("away", present=False)))
    text = stream.getvalue()
    for part in ("dials its children", "no child has joined yet", "c0", f"c{MOST - 1}", "and 4 more", "0.25"):
        assert part in text
    assert f"c{MOST} " not in text


def test_quiet_only_reports_problems() -> None:
    stream = io.StringIO()
    with ParentPanel("title", "ws://x:1", quiet=True, stream=stream) as panel:
        panel.show(shown(child("one")))
        panel.say("ws://y:2: refused")
    assert stream.getvalue() == "ws://y:2: refused\n"
