"""Gantt charts of schedules: one row per node, with a bar for each stay of a trial on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shoal.observe.drawing import GREEN, INK, RED, label_axes, style_axes

# Light enough for numbers on top; neighbours differ.
BARS = ("#88AADD", "#EEAABB", "#99CC99", "#DDCC77", "#AADDEE", "#CC99BB", "#CCCCCC", "#EEBB88")
_COST = "#444444"
_NODES_WITH_NUMBERS = 12  # with more rows the numbers would not fit


def gantt(figure: Mapping[str, Any], reference: Mapping[str, Mapping[str, Any]]) -> Figure:
    """One panel per schedule, below each other on one time axis: `panels` of `title`, `nodes` and `pieces`."""
    panels = figure["panels"]
    heights = [max(1.6, 0.22 * min(panel["nodes"], 40) + 0.75) for panel in panels]
    picture = Figure(figsize=(9.0, sum(heights)), layout="constrained")
    grid = picture.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights).ravel()
    for axes, panel in zip(grid, panels, strict=True):
        style_axes(axes)
        _panel(axes, panel)
    grid[-1].set_xlim(0, 1.02 * max(piece["stop"] + piece["saving"] for panel in panels for piece in panel["pieces"]))
    label_axes(grid[-1], figure.get("x", "time (1 = a unit of an average trial)"), figure.get("y", "node"))
    return picture


def _panel(axes: Axes, panel: Mapping[str, Any]) -> None:
    numbered = panel["nodes"] <= _NODES_WITH_NUMBERS
    for stay in _stays(panel["pieces"]):
        first, last = stay[0], stay[-1]
        row, colour = first["node"], BARS[first["trial"] % len(BARS)]
        shade = 0.4 if last["verdict"] == "tested" else 1.0
        length = last["stop"] - first["start"]
        axes.barh(row, length, left=first["start"], height=0.8, color=colour, ec="white", lw=0.8, alpha=shade)
        for piece in stay:
            axes.barh(row, piece["loading"], left=piece["start"], height=0.8, color=_COST, lw=0)
            axes.barh(row, piece["saving"], left=piece["stop"], height=0.8, color=_COST, lw=0)
            if numbered and piece is not last:
                axes.plot([piece["stop"]] * 2, [row - 0.4, row + 0.4], color="white", lw=1.2)
        if not numbered:
            continue
        middle = (first["start"] + first["loading"] + last["stop"]) / 2
        name = str(first["trial"]) if first["trial"] >= 0 else "d"  # a study's default settings
        axes.text(middle, row, name, ha="center", va="center", color="#102031", fontsize=8)
        if first["resumed"]:
            axes.plot(first["start"], row, marker=">", ms=6, color=_COST, clip_on=False)
        if last["verdict"] in ("stop", "complete"):
            mark, ink = ("x", RED) if last["verdict"] == "stop" else ("o", GREEN)
            axes.plot(last["stop"], row, marker=mark, ms=5, mew=1.6, lw=0, color=ink, clip_on=False)
    axes.set_ylim(panel["nodes"] - 0.4, -0.6)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.grid(visible=False, axis="y")
    axes.set_title(panel["title"], color=INK, fontsize=10, loc="left")


def _stays(pieces: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Groups of a trial's pieces that follow each other on a node without a pause."""
    nodes: dict[int, list[Mapping[str, Any]]] = {}
    for piece in pieces:
        nodes.setdefault(piece["node"], []).append(piece)
    for each in nodes.values():
        stay: list[Mapping[str, Any]] = []
        for piece in sorted(each, key=lambda p: float(p["start"])):
            if stay and (stay[-1]["trial"] != piece["trial"] or stay[-1]["verdict"] != "continue"):
                yield stay
                stay = []
            stay.append(piece)
        yield stay
