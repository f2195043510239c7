"""The report: one file, whole, offline, and true to the folder."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.core.errors import BadInput
from shoal.observe.report import write_report
from shoal.run.folder import RunFolder

EVIL = '<script src="https://evil.example/x.js">alert(1)</script>'


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path / "run", "e", "a", "t")
    run.write_config({"env": "LunarLander-v3", "until_return": 200, "algo": {"gamma": 0.999, "note": EVIL}})
    lines = [
        {
            "step": 100 * (i + 1),
            "time": 1000.0 + i,
            "episode/return": float(i),
            "speed/steps_per_s": 5.0,
            "lag/versions": 1.0,
            "loss/value": 1.0,
            "time/collect": 1.0,
            "time/learn": 1.0,
            "fault/env_raised": float(i > 16),
            "loss/" + EVIL: 1.0,
        }
        for i in range(20)
    ]
    run.metrics_path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    run.write_json(
        run.summary_path,
        {"env": EVIL, "algo": "ppo", "env_steps": 2000, "wall_s": 20.0, "solved_at_s": None, "steps_per_s": 100.0},
    )
    return run


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attributes if k in ("src", "href", "xlink:href", "data", "poster", "action")]
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_is_whole_well_formed_and_offline(folder: RunFolder) -> None:
    evaluation = {
        "returns": [1.0, 2.0, 3.0],
        "mean": 254.6,
        "sd": 48.4,
        "iqm": 261.9,
        "ci": [250.0, 258.0],
        "episodes": 3,
    }
    clip = b"\0\0\0 ftypisom" + bytes(100)
    path = write_report(folder, evaluation, clip)
    text = path.read_text()
    page = Page(text)
    assert path == folder.report_path and not page.open
    assert all(link.startswith(("data:", "#")) for link in page.links)
    outside = re.sub(r"&lt;script src=.*?&gt;", "", text)  # the escaped words of the hostile config
    assert "http://" not in outside and "https://" not in outside and "@import" not in text and "url(h" not in text
    assert "default-src 'none'" in text
    assert base64.b64encode(clip).decode() in text and "video" in page.tags
    for title in ("Learning curve", "Evaluation returns", "Throughput", "Where the time goes", "Policy lag", "Losses"):
        assert f"<h2>{title}</h2>" in text
    for shown in ("254.6 ± 48.4", "261.9", "2,000", "env_raised", "algo.gamma", "0.999", "versions.jax", "cpu"):
        assert shown in text
    assert "<th>env_raised</th><td>3</td>" in text
    assert "solved after" not in text  # it never was


def test_nothing_of_the_run_becomes_markup(folder: RunFolder) -> None:
    text = write_report(folder).read_text()
    assert "script" not in Page(text).tags and "<script" not in text
    assert text.count("&lt;script") >= 3  # the heading, the config, the name of a loss


def test_evaluation_and_video_are_found_in_the_folder(folder: RunFolder) -> None:
    folder.write_json(
        folder.evaluation_path, {"returns": [5.0, 6.0], "mean": 5.5, "sd": 0.5, "iqm": 5.5, "episodes": 2}
    )
    folder.video_path.write_bytes(b"clip")
    text = write_report(folder).read_text()
    assert "5.5 ± 0.5" in text and "2 greedy episodes" in text and base64.b64encode(b"clip").decode() in text


def test_greedy_and_sampled_stand_side_by_side(folder: RunFolder) -> None:
    way = {"returns": [5.0, 6.0], "mean": 5.5, "sd": 0.5, "iqm": 5.5, "episodes": 2}
    text = write_report(folder, {"greedy": way, "sampled": {**way, "mean": 3.25}}).read_text()
    assert "greedy return" in text and "sampled return" in text and "5.5 ± 0.5" in text and "3.2 ± 0.5" in text
    assert "2 sampled episodes" in text and "sampled episodes</text>" in text and "greedy episodes</text>" in text


def test_why_there_is_no_clip_is_said(folder: RunFolder) -> None:
    folder.video_path.write_bytes(b"of another run")
    text = write_report(folder, no_clip="the renderer <died>").read_text()
    assert "No clip: the renderer &lt;died&gt;." in text and "<video" not in text


def test_faults_of_the_evaluation_are_told(folder: RunFolder) -> None:
    folder.write_json(folder.summary_path, {"eval_faults": 4})
    assert "<th>in evaluation</th><td>4</td>" in write_report(folder).read_text()


def test_a_run_that_left_next_to_nothing_has_a_report(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "bare", "e", "a", "t")
    run.write_config({"env": "CartPole-v1"})
    page = Page(write_report(run).read_text())
    assert not page.open and "svg" not in page.tags and "video" not in page.tags
    assert "CartPole-v1" in run.report_path.read_text()


def test_a_broken_folder_is_one_line(folder: RunFolder) -> None:
    folder.summary_path.write_bytes(b"[")
    with pytest.raises(BadInput, match=r"summary\.json' must hold a JSON object"):
        write_report(folder)


def test_markup_check_can_fail() -> None:
    with pytest.raises(AssertionError):
        Page("<div><p></div>")


def test_small_and_large_numbers_read_well() -> None:
    from shoal.observe.report import _number

    cases: dict[Any, str] = {
        0.998: "0.998",
        3686400: "3,686,400",
        54776.4: "54,776",
        12.34: "12.3",
        -200.0: "-200",
        0: "0",
    }
    assert {value: _number(value) for value in cases} == cases
    assert _number(None) == _number(float("nan")) == "-"
