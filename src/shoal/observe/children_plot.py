"""The picture of a federation's children over time: their rates, shares, distances and lags."""

from __future__ import annotations

import re

from matplotlib import colormaps
from matplotlib.figure import Figure

from shoal.observe.drawing import INK, style_axes, thinned
from shoal.observe.plots import elapsed
from shoal.run.timeline import Rows, series

_NAME = re.compile(r"child/(.+)/share")
_SHOWN = (
    ("rate", "environment steps per second"),
    ("share", "share of all pushes"),
    ("distance", "distance from the parent at a push"),
    ("lag", "versions behind at a push"),
)


def children(rows: Rows) -> Figure | None:
    """A line for each child, against seconds; None if the run is not a parent's."""
    names = sorted({found[1] for row in rows for name in row if (found := _NAME.fullmatch(name))})
    if not names:
        return None
    seconds, colours = elapsed(rows), colormaps["tab10" if len(names) <= 10 else "viridis"]
    figure = Figure(figsize=(11.5, 5.2), layout="constrained")
    for axes, (what, title) in zip(figure.subplots(2, 2, sharex=True).ravel(), _SHOWN, strict=True):
        style_axes(axes)
        for number, name in enumerate(names):
            at, values = series(rows, f"child/{name}/{what}")
            if len(at):
                colour = colours(number % 10 if len(names) <= 10 else number / max(1, len(names) - 1))
                mark = "o" if len(at) == 1 else None
                axes.plot(*thinned(seconds[at], values), color=colour, lw=1.4, label=name, marker=mark)
        axes.set_title(title, color=INK, fontsize=10, loc="left")
        axes.set_ylim(bottom=0)
    if len(names) <= 10:
        figure.axes[0].legend(loc="best", frameon=False, labelcolor=INK, fontsize=9)
    figure.supxlabel("seconds since the first push", color=INK, fontsize=10)
    return figure
