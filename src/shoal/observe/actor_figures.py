"""Figure of a comparison over the number of actors: a line for each way of training, with published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

from shoal.observe.drawing import GREY, INK, PALETTE, label_axes, style_axes

MARKS = "osD^vP"
_APART = 0.06  # how far lines are moved sideways, in octaves, so that their error bars do not hide each other
_WIDE = 20.0  # the axis is logarithmic if largest / smallest exceeds this


def actors(figure: Mapping[str, Any], reference: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Each line's means over the number of actors with their intervals; bars if there is only one number of actors.

    The published numbers are from the rows of `reference` whose names are numbers of actors, in the figure's own column.
    """
    published = {int(row): values[figure["name"]] for row, values in reference.items() if _known(row, values, figure)}
    lines = figure["lines"]
    counts = sorted({point["actors"] for line in lines for point in line["points"]} | set(published))
    if len(counts) == 1 and not published:
        return _bars(figure)
    picture = Figure(figsize=(6.2, 3.8), layout="constrained")
    axes = picture.subplots()
    style_axes(axes)
    if published:
        x, y = zip(*sorted(published.items()), strict=True)
        axes.plot(x, y, color=GREY, marker="x", ms=7, mew=2, lw=1.2, ls="--", label="published")
    for i, line in enumerate(lines):
        shift = 2 ** (_APART * (i - (len(lines) - 1) / 2))
        points = sorted(line["points"], key=lambda point: point["actors"])
        at, means = np.array([p["actors"] for p in points]) * shift, np.array([p["mean"] for p in points])
        colour, mark = PALETTE[i % len(PALETTE)], MARKS[i % len(MARKS)]
        dash = "-" if i < len(PALETTE) else ":"  # past the last colour
        axes.plot(at, means, color=colour, marker=mark, ms=5, lw=1.8, ls=dash, label=line["name"])
        _error_bars(axes, at, points, colour)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(n) for n in counts]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlim(counts[0] / 1.2, counts[-1] * 1.2)
    _scale(axes, [p["mean"] for line in lines for p in line["points"]] + list(published.values()))
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
        columnspacing=1.2,
    )
    label_axes(axes, "actors", figure["y"])
    return picture


def _known(row: str, values: Mapping[str, Any], figure: Mapping[str, Any]) -> bool:
    return row.isdigit() and isinstance(values.get(figure["name"]), float)


def _bars(figure: Mapping[str, Any]) -> Figure:
    """A bar for each line, for a single number of actors."""
    lines = figure["lines"]
    picture = Figure(figsize=(6.2, 0.45 * len(lines) + 1.2), layout="constrained")
    axes = picture.subplots()
    style_axes(axes)
    for i, line in enumerate(lines):
        point, colour = line["points"][0], PALETTE[i % len(PALETTE)]
        axes.barh(i, point["mean"], color=colour, alpha=0.75, height=0.62)
        if point["low"] is not None:
            axes.plot([point["low"], point["high"]], [i, i], color=INK, lw=1.4)
    axes.set_yticks(range(len(lines)), [line["name"] for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(left=0)
    label_axes(axes, f"{figure['y']}, {lines[0]['points'][0]['actors']} actors", "")
    return picture


def _error_bars(axes: Axes, at: np.ndarray, points: list[Mapping[str, Any]], colour: str) -> None:
    for x, point in zip(at, points, strict=True):
        if point["low"] is not None:
            axes.plot([x, x], [point["low"], point["high"]], color=colour, lw=1.3, alpha=0.8, marker="_", ms=5)


def _scale(axes: Axes, values: list[float]) -> None:
    """Scale the axis from zero, or logarithmically if the values are too far apart to compare."""
    if min(values) > 0 and max(values) > _WIDE * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if max(values) < 1e3 * min(values) else (1.0,)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=min(0.0, *values) if len(values) > 1 else min(0.0, values[0]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
