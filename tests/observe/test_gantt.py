"""Gantt charts: bars where the trials were, marks for what became of them."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import Rectangle

from shoal.observe.gantt import gantt
from shoal.observe.plots import render


def piece(node: int, trial: int, start: float, stop: float, verdict: str, **more: Any) -> dict[str, Any]:
    plain = {"node": node, "trial": trial, "start": start, "stop": stop, "verdict": verdict}
    return {**plain, "loading": 0.0, "saving": 0.0, "resumed": False, **more}


PIECES = [
    piece(0, 3, 0.0, 1.0, "continue"),
    piece(0, 3, 1.0, 2.0, "complete"),
    piece(1, 4, 0.0, 1.5, "pause", saving=0.25),
    piece(1, 5, 1.75, 2.0, "stop", resumed=True, loading=0.1),
]


def test_a_stay_is_one_bar_with_its_number() -> None:
    picture = gantt({"panels": [{"title": "T", "nodes": 2, "trials": 6, "pieces": PIECES}]}, {})
    [axes] = picture.axes
    assert [text.get_text() for text in axes.texts] == ["3", "4", "5"]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_width() > 0]
    ends = sorted((round(bar.get_x(), 2), round(bar.get_width(), 2)) for bar in bars)
    assert ends == [(0.0, 1.5), (0.0, 2.0), (1.5, 0.25), (1.75, 0.1), (1.75, 0.25)]  # two trials' costs are bars too
    marks = [line.get_marker() for line in axes.lines if line.get_marker() != "None"]
    assert sorted(marks) == [">", "o", "x"]
    assert render(picture, "png").startswith(b"\x89PNG")


def test_many_nodes_have_no_numbers() -> None:
    many = [piece(node, node, 0.0, 1.0, "complete") for node in range(200)]
    picture = gantt({"panels": [{"title": "T", "nodes": 200, "trials": 200, "pieces": many}] * 2}, {})
    assert len(picture.axes) == 2 and not picture.axes[0].texts
