"""Figures of a comparison with published numbers, drawn from plain data.

`draw` takes one entry of a results document's `figures` and the published numbers, by row and column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullLocator, PercentFormatter, StrMethodFormatter

from shoal.observe.actor_figures import actors
from shoal.observe.drawing import BLUE, GREY, INK, PALETTE, RED, YELLOW, label_axes, style_axes
from shoal.observe.gantt import gantt
from shoal.observe.spread_figures import boxes, density

Reference = Mapping[str, Mapping[str, Any]]  # {row: {column: number or word}}

PARTS = {"collecting": BLUE, "training": RED, "broadcasting": YELLOW}
OVERLAY: tuple[dict[str, Any], ...] = (
    {"lw": 1.3, "alpha": 0.9},
    {"lw": 7.0, "alpha": 0.35, "solid_capstyle": "round"},
    {"lw": 3.5, "alpha": 0.8},
    {"lw": 1.5, "ls": (0, (4, 3))},
    {"lw": 1.3, "alpha": 0.9},
)
_SMOOTH = 0.02  # smoothing window as a share of a curve's length: scores are noisy


def draw(figure: Mapping[str, Any], reference: Reference) -> Figure:
    """Draw the figure of kind `figure["kind"]`."""
    return KINDS[figure["kind"]](figure, reference)


def curves(figure: Mapping[str, Any], reference: Reference) -> Figure:
    """Panels with a line for every way of training: the median of its runs, and a band from lowest to highest.

    With `overlay`, draws only the first run of each, in strokes that keep coinciding lines visible.
    """
    panels, overlay = figure["panels"], bool(figure.get("overlay"))
    picture, grid = _panels(len(panels), 3.9)
    scale = figure.get("scale", "log")
    least = 1e-12 if scale == "log" else -np.inf  # a perfect score has no place on a logarithmic axis
    for axes, panel in zip(grid, panels, strict=True):
        for i, line in enumerate(panel["lines"]):
            colour = PALETTE[line.get("colour", i) % len(PALETTE)]
            if overlay:
                steps, values = _aligned(line["runs"][:1], least)
                axes.plot(steps, values[0], color=colour, label=line["name"], **OVERLAY[i % len(OVERLAY)])
                continue
            steps, values = _aligned(line["runs"], least)
            middle = np.median(values, 0)
            if len(values) > 1:
                axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.12, lw=0)
            stroke = {"ls": (0, (3, 2)), "lw": 1.2} if line.get("dashed") else {"lw": 1.6}
            axes.plot(steps, middle, color=colour, label=line["name"], **stroke)
        axes.set_yscale(scale)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_title(panel["title"], color=INK, fontsize=10, loc="left")
        label_axes(axes, figure["x"], panel.get("y", figure["y"]))
    _legend_below(picture, grid[0], 3 if len(panels) == 1 else 6)
    return picture


def dots(title: str, rows: Sequence[tuple[str, Sequence[float], float | None]], label: str) -> Figure:
    """Each row's runs as small dots, their mean as a bar, the published number as a diamond, on a logarithmic scale."""
    picture = Figure(figsize=(6.2, 0.42 * len(rows) + 1.3), layout="constrained")
    axes = picture.subplots()
    style_axes(axes)
    for i, (_, values, published) in enumerate(rows):
        axes.plot(values, [i] * len(values), color=BLUE, lw=0, marker="o", ms=5, alpha=0.45, label="a run")
        axes.plot(float(np.mean(values)), i, color=BLUE, lw=0, marker="|", ms=17, mew=2.5, label="mean of ours")
        if published is not None:
            axes.plot(published, i, color=RED, lw=0, marker="D", ms=7, label="published")
    axes.set_xscale("log")
    everything = [value for _, values, published in rows for value in (*values, published) if value]
    wide = max(everything) > 100 * min(everything)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.06)
    seen = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    picture.legend(
        seen.values(), seen.keys(), loc="outside upper right", ncols=3, frameon=False, labelcolor=INK, fontsize=9
    )
    picture.suptitle(title, x=0.02, ha="left", color=INK, fontsize=10)
    label_axes(axes, label, "")
    return picture


def scaling(figure: Mapping[str, Any], reference: Reference) -> Figure:
    """Speed-up of k drivers, ours and the published, with the ideal line and the ceiling set by the cores."""
    picture, [axes] = _panels(1, 4.2)
    drivers = np.array(figure["drivers"], float)
    published = {int(row): values for row, values in reference.items() if row.isdigit()}
    theirs = np.array(sorted(published), float)
    ticks = np.unique(np.concatenate([drivers, theirs]))
    axes.plot(ticks, ticks, color=GREY, lw=1, ls=":", label="ideal: k")
    for cores, colour, who in ((figure["cores"], BLUE, "here"), (figure["published_cores"], RED, "published")):
        axes.axhline(cores, color=colour, lw=1, ls="--", alpha=0.7)
        axes.annotate(f"{cores} cores, {who}", (1.05, cores), va="bottom", color=colour, fontsize=9)
    shown = {"rho": ("rho", "o", "-"), "rho_star": ("rho*", "s", "-.")}
    for name, values in figure["series"].items():
        word, mark, dash = shown[name]
        axes.plot(drivers, values, color=BLUE, marker=mark, ms=5, lw=1.8, ls=dash, label=f"{word}, ours")
        if len(theirs):
            known = [float(published[int(k)][name]) for k in theirs]
            axes.plot(theirs, known, color=RED, marker=mark, ms=4, lw=1.2, ls=dash, label=f"{word}, published")
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log", base=2)
        axis.set_major_locator(FixedLocator([2.0**i for i in range(7)]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylim(0.7, 80)
    _legend_below(picture, axes, 3)
    label_axes(axes, "drivers k", "times as fast as one driver")
    return picture


def times(figure: Mapping[str, Any], reference: Reference) -> Figure:
    """Seconds of each part for each number of drivers, side by side; on a logarithmic scale, since they differ by orders."""
    picture, [axes] = _panels(1, 3.8)
    at, width = np.arange(len(figure["drivers"])), 0.27
    for i, (name, seconds) in enumerate(figure["parts"].items()):
        axes.bar(at + (i - 1) * width, seconds, color=PARTS[name], width=width, label=name)
    published = [reference.get(str(k), {}).get("collecting_s") for k in figure["drivers"]]
    known = [(x - width, seconds) for x, seconds in zip(at, published, strict=True) if seconds is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=INK, lw=0, marker="D", ms=5, label="collecting, published")
    axes.set_xticks(at, [str(k) for k in figure["drivers"]])
    room = max(0.0, 2.0 - len(at) / 2)  # no bar as wide as the picture
    axes.set_xlim(-0.7 - room, len(at) - 0.3 + room)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    _legend_below(picture, axes, 4)
    label_axes(axes, "drivers k", "seconds for 10,000 steps")
    return picture


def shares(figure: Mapping[str, Any], reference: Reference) -> Figure:
    """Panels with each part's share of a step's time, over the number of episodes."""
    panels = figure["panels"]
    picture, grid = _panels(len(panels), 3.6)
    for axes, panel in zip(grid, panels, strict=True):
        table = np.array([panel["parts"][name] for name in PARTS])
        axes.stackplot(
            panel["episodes"], table / table.sum(0), colors=list(PARTS.values()), labels=list(PARTS), alpha=0.9
        )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(panel["episodes"]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_xlim(panel["episodes"][0], panel["episodes"][-1])
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(visible=False)
        step = 1e3 * table.sum(0)
        axes.set_title(
            f"{panel['title']}: {step[0]:.3g} to {step[-1]:.3g} ms per step", color=INK, fontsize=10, loc="left"
        )
        label_axes(axes, "episodes per step", "share of the time")
    _legend_below(picture, grid[0], 3)
    return picture


KINDS: dict[str, Callable[[Mapping[str, Any], Reference], Figure]] = {
    "actors": actors,
    "boxes": boxes,
    "curves": curves,
    "density": density,
    "gantt": gantt,
    "scaling": scaling,
    "times": times,
    "shares": shares,
}


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    picture = Figure(figsize=(6.2 if count == 1 else 5.0 * count, height), layout="constrained")
    grid = [*picture.subplots(1, count, squeeze=False).ravel()]
    for axes in grid:
        style_axes(axes)
    return picture, grid


def _legend_below(picture: Figure, axes: Axes, columns: int) -> None:
    lines, labels = axes.get_legend_handles_labels()
    picture.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK, fontsize=9)


def _aligned(runs: Sequence[Mapping[str, Any]], least: float = 1e-12) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and values [runs, N]: at the first run's steps, each the median of its neighbours, and at least `least`."""
    steps = np.array(runs[0]["steps"], float)
    each = []
    for run in runs:
        values = np.interp(steps, run["steps"], np.array(run["values"], float))
        reach = max(0, round(_SMOOTH * len(values) / 2))
        near = [values[max(0, i - reach) : i + reach + 1] for i in range(len(values))]
        each.append([float(np.median(some)) for some in near])
    return steps, np.maximum(np.array(each), least)
