"""Figures of learn-to-optimize, drawn from arrays: the function, the law's answers, and when a law breaks even."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogFormatterSciNotation, LogLocator

from shoal.observe.drawing import BLUE, GREEN, INK, RED, add_legend, label_axes, new_figure, style_axes

_COLOURS = "viridis"


def surface_3d(x: np.ndarray, y: np.ndarray, values: np.ndarray, names: tuple[str, str]) -> Figure:
    """f over two axes as a surface. x [S], y [S], values [S, S]: row by y, column by x."""
    figure = Figure(figsize=(6.2, 4.6), layout="constrained")
    axes: Any = figure.add_subplot(projection="3d")  # mpl_toolkits has no types
    grid_x, grid_y = np.meshgrid(x, y)
    axes.plot_surface(
        grid_x, grid_y, values, cmap=_COLOURS, norm=_scale(values), rcount=60, ccount=60, linewidth=0, antialiased=True
    )
    axes.set_xlabel(names[0], color=INK)
    axes.set_ylabel(names[1], color=INK)
    axes.set_zlabel("f", color=INK)
    axes.tick_params(colors=INK, labelsize=8)
    axes.view_init(elev=32, azim=-125)
    return figure


def contour(
    x: np.ndarray,
    y: np.ndarray,
    values: np.ndarray,
    names: tuple[str, str],
    best: tuple[np.ndarray, np.ndarray] | None = None,
    law: tuple[np.ndarray, np.ndarray] | None = None,
) -> Figure:
    """f over two axes from above. `best` and `law` are lines (x [C], y [C]) on it: the optimum and the law's answers."""
    figure, axes = new_figure()
    figure.set_size_inches(6.2, 4.6)
    axes.grid(visible=False)
    shades = axes.contourf(
        x, y, _shown(values), levels=_levels(values), cmap=_COLOURS, norm=_scale(values), extend="both"
    )
    bar = figure.colorbar(shades, ax=axes, label="f")
    if isinstance(_scale(values), LogNorm):  # else the ticks would be the levels, which are not round
        low, high = _ends(values)
        bar.set_ticks([tick for tick in LogLocator().tick_values(low, high) if low <= tick <= high], minor=False)
        bar.ax.yaxis.set_major_formatter(LogFormatterSciNotation())
    bar.ax.tick_params(colors=INK, labelsize=9)
    bar.ax.yaxis.label.set_color(INK)
    if best is not None:
        axes.plot(*best, color="white", lw=0, marker="o", ms=4, mec="black", mew=0.5, label="best")
    if law is not None:
        axes.plot(*law, color=RED, lw=1.8, label="law")
    if best is not None or law is not None:
        axes.legend(loc="upper right", fontsize=9)
    label_axes(axes, *names)
    return figure


def answers(
    at: np.ndarray,
    law: np.ndarray,
    best: np.ndarray,
    law_values: np.ndarray,
    best_values: np.ndarray,
    names: tuple[str, str],
) -> Figure:
    """The law's and the best value of a knob over a condition, above f at both. All [C]; names: knob, condition."""
    figure = Figure(figsize=(6.2, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, ours, theirs, what in ((above, law, best, names[0]), (below, law_values, best_values, "f")):
        style_axes(axes)
        axes.plot(at, theirs, color=GREEN, lw=0, marker="o", ms=4, label="best")
        axes.plot(at, ours, color=BLUE, lw=1.8, label="law")
        label_axes(axes, "", what)
    above.legend(loc="best", frameon=False, labelcolor=INK, fontsize=9)
    label_axes(below, names[1], "f")
    return figure


def curve(steps: np.ndarray, scores: np.ndarray, name: str) -> Figure:
    """A law's score over training steps. Both [N]; the scale is logarithmic if some score is positive."""
    figure, axes = new_figure()
    axes.plot(steps, scores, color=BLUE, lw=1.4)
    if (scores[np.isfinite(scores)] > 0).any():
        axes.set_yscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    label_axes(axes, "training steps", name)
    return figure


def break_even(queries: float, at: np.ndarray, law: np.ndarray, baselines: dict[str, np.ndarray]) -> Figure:
    """Seconds over the number of queries: a law that was learnt once, and baselines that search each time. All [P]."""
    figure, axes = new_figure()
    axes.plot(at, law, color=BLUE, lw=2.0, label="law, learnt once")
    for colour, (name, seconds) in zip(_others(len(baselines)), baselines.items(), strict=True):
        axes.plot(at, seconds, color=colour, lw=1.6, label=f"{name}, each time")
    if np.isfinite(queries):
        axes.axvline(queries, color=INK, lw=1, ls="--", label=f"{queries:,.0f} queries")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    add_legend(axes, "best")
    label_axes(axes, "queries", "seconds in all")
    return figure


def _others(count: int) -> list[str]:
    """Colours of the baselines, repeating after six."""
    palette = [RED, GREEN, "#CCBB44", "#AA3377", "#66CCEE", "#BBBBBB"]
    return [palette[i % len(palette)] for i in range(count)]


def _scale(values: np.ndarray) -> Normalize:
    """A logarithmic scale if f is not negative and mostly far below its largest value, so that a valley shows; else linear."""
    low, high = _ends(values)
    known = values[np.isfinite(values)]
    if len(known) and known.min() >= 0 and 5 * float(np.median(known)) < high:
        return LogNorm(vmin=low, vmax=high)
    return Normalize(vmin=low, vmax=high)


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The lowest and highest value of the scale; a logarithmic one, which has no lower end, covers four decades."""
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    if low >= 0 and 5 * float(np.median(known)) < high:
        low = max(low, 1e-4 * high)
    return low, high if high > low else low + 1.0


def _levels(values: np.ndarray) -> np.ndarray:
    spread = np.geomspace if isinstance(_scale(values), LogNorm) else np.linspace
    return np.asarray(spread(*_ends(values), 25))


def _shown(values: np.ndarray) -> np.ma.MaskedArray[Any, Any]:
    """Values to draw: failures stay blank; values below a logarithmic scale take its lowest colour."""
    held = np.maximum(values, _ends(values)[0]) if isinstance(_scale(values), LogNorm) else values
    return np.ma.masked_invalid(held)
