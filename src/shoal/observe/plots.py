"""Figures from a run's metrics.

Rows come from `run.sinks.read_metrics`. Every figure is None if the rows have no data for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from shoal.observe.drawing import (
    BLUE,
    GREEN,
    INK,
    PURPLE,
    RED,
    YELLOW,
    add_legend,
    label_axes,
    new_figure,
    style_axes,
    thinned,
)
from shoal.observe.drawing import render as render
from shoal.run.timeline import Rows, is_number, series

PHASES = {"collect": BLUE, "learn": RED, "broadcast": YELLOW, "wait": "#BBBBBB"}
_PAUSE_S = 60.0
_WINDOW = 100  # episodes, as for `--until-return`


def elapsed(rows: Rows) -> np.ndarray:
    """Seconds of running at each row [N]: `speed/seconds`, or without it the clock minus the pauses between a run's end
    and its resumption."""
    if not rows:
        return np.zeros(0)
    at, known = series(rows, "speed/seconds")
    if len(at):
        return np.asarray(np.interp(np.arange(len(rows)), at, known))
    gaps = np.diff([float(row["time"]) for row in rows], prepend=float(rows[0]["time"]))
    usual = float(np.median(gaps[1:])) if len(gaps) > 1 else 0.0
    return np.cumsum(np.where((gaps < 0) | (gaps > max(_PAUSE_S, 50 * usual)), usual, gaps))


def learning_curve(
    rows: Rows, over: Literal["steps", "seconds"] = "steps", target: float | None = None
) -> Figure | None:
    """Return of training episodes: each row's mean, the mean of the last 100 if rows count their episodes, and a band if
    they have `episode/return_low` and `_high`, the 10 % and 90 % quantiles."""
    at, values = series(rows, "episode/return")
    if not len(at):
        return None
    x = elapsed(rows)[at] if over == "seconds" else _steps(rows)[at]
    figure, axes = new_figure()
    position, mean = thinned(x, values)
    low_at, low = series(rows, "episode/return_low")
    high_at, high = series(rows, "episode/return_high")
    counted_at, count = series(rows, "episode/count")
    if len(low_at) and np.array_equal(low_at, at) and np.array_equal(high_at, at):
        axes.fill_between(
            position,
            thinned(x, low)[1],
            thinned(x, high)[1],
            color=BLUE,
            alpha=0.2,
            lw=0,
            label="10 to 90 % of episodes",
        )
    mark = "o" if len(position) == 1 else None
    if np.array_equal(counted_at, at):
        axes.plot(position, mean, color=BLUE, lw=0.8, alpha=0.5, label="mean of an update's episodes")
        steady = thinned(x, _trailing(values, count))[1]
        axes.plot(position, steady, color=BLUE, lw=2.0, label=f"mean of the last {_WINDOW}", marker=mark)
    else:
        axes.plot(position, mean, color=BLUE, lw=1.8, label="mean", marker=mark)
    checked_at, checked = series(rows, "eval/return")
    if len(checked_at):
        where = elapsed(rows)[checked_at] if over == "seconds" else _steps(rows)[checked_at]
        axes.plot(where, checked, "o", color=PURPLE, ms=3.5, label="evaluation on the way")
    if target is not None:
        axes.axhline(target, color=RED, lw=1, ls="--", label=f"target {target:g}")
    if len(axes.get_legend_handles_labels()[0]) > 1:
        add_legend(axes, "lower right")
    label_axes(axes, _x_label(over), "return of training episodes")
    if over == "steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


def return_histogram(evaluation: Mapping[str, Any] | None) -> Figure | None:
    """Distribution of the evaluation's returns, greedy above sampled, each with its mean and interquartile mean."""
    shown = []
    for way, colour in (("greedy", BLUE), ("sampled", PURPLE)):
        found = (evaluation or {}).get(way) or {}
        returns = np.array([r for r in found.get("returns") or () if is_number(r)], float)
        if len(returns):
            shown.append((way, colour, returns, found.get("iqm")))
    if not shown:
        return None
    figure = Figure(figsize=(6.2, 3.4 if len(shown) == 1 else 4.6), layout="constrained")
    grid = figure.subplots(len(shown), 1, sharex=True, squeeze=False).ravel()
    edges = _edges(np.concatenate([returns for _, _, returns, _ in shown]), len(shown))
    for axes, (way, colour, returns, middle) in zip(grid, shown, strict=True):
        style_axes(axes)
        axes.hist(returns, bins=edges, color=colour, alpha=0.75, edgecolor="none")
        _rule(axes, float(returns.mean()), RED, "-", "mean")
        if middle is not None and is_number(middle):
            _rule(axes, float(middle), GREEN, "--", "interquartile mean")
        add_legend(axes, "best")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.set_ylabel(f"{way} episodes", color=INK, fontsize=10)
    grid[-1].set_xlabel("return of an episode", color=INK, fontsize=10)
    return figure


def _edges(values: np.ndarray, groups: int) -> list[float]:
    """Bins shared by all groups, so that their heights can be compared."""
    bins = min(40, max(8, int(2 * math.sqrt(len(values) / groups))))
    return [float(edge) for edge in np.histogram_bin_edges(values, bins)]


def throughput(rows: Rows) -> Figure | None:
    """Environment steps per second, over the run's seconds."""
    seconds = elapsed(rows)
    at, values = series(rows, "speed/steps_per_s")
    if not len(at) and len(rows) > 1:
        gaps, gained = np.diff(seconds), np.diff(_steps(rows))
        at = np.flatnonzero((gaps > 0) & (gained > 0)) + 1
        values = gained[at - 1] / gaps[at - 1]
    if not len(at):
        return None
    figure, axes = new_figure()
    axes.plot(*thinned(seconds[at], values), color=GREEN, lw=1.8, marker="o" if len(at) == 1 else None)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    label_axes(axes, "seconds of running", "environment steps / s")
    return figure


def time_breakdown(rows: Rows) -> Figure | None:
    """The share of time that went to each phase, over the run's steps."""
    if not rows:
        return None
    table = np.zeros((len(PHASES), len(rows)))
    for line, name in enumerate(PHASES):
        at, seconds = series(rows, f"time/{name}")
        table[line, at] = np.maximum(seconds, 0.0)
    if not table.any():
        return None
    whole = np.flatnonzero(table.sum(0) > 0)
    groups = np.array_split(whole, min(60, len(whole)))
    sums = np.array([table[:, group].sum(1) for group in groups]).T
    share = 100 * sums / sums.sum(0)
    x = np.array([_steps(rows)[group].mean() for group in groups])
    if len(x) == 1:  # an area needs two edges
        x, share = np.array([0.0, 2 * x[0] or 1.0]), np.repeat(share, 2, axis=1)
    figure, axes = new_figure()
    total = 100 * table.sum(1) / table.sum()
    labels = [f"{name} {part:.0f} %" for name, part in zip(PHASES, total, strict=True)]
    axes.stackplot(x, share, colors=list(PHASES.values()), labels=labels, alpha=0.9, lw=0)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(0, 100)
    axes.grid(visible=False)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=4,
        frameon=False,
        labelcolor=INK,
        handlelength=1,
        columnspacing=1.2,
    )
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    label_axes(axes, "environment steps", "% of the time")
    return figure


def lag_histogram(rows: Rows, lags: Mapping[int, int] | None = None) -> Figure | None:
    """Age in versions of the weights that acted: over steps if they were counted (`lags`), else over updates."""
    if lags:
        values, weights = np.array(list(lags), float), np.array(list(lags.values()), float)
        weights *= 100.0 / weights.sum()
    else:
        _, values = series(rows, "lag/versions")
        weights = np.ones(len(values))
    if not len(values):
        return None
    figure, axes = new_figure()
    top = max(1.0, float(values.max()))
    width = max(1.0, math.ceil(top / 30)) if np.allclose(values, np.round(values)) else top / 30
    edges = np.arange(-width / 2, top + width, width)
    axes.hist(values, bins=list(edges), weights=weights, color=PURPLE, alpha=0.8, rwidth=0.9)
    axes.set_xlim(-0.6, max(top, 4.0) + 0.6)  # no single bar as wide as the picture
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    label_axes(axes, "lag in versions", "% of the steps" if lags else "updates")
    return figure


def model_error(rows: Rows) -> Figure | None:
    """The error of a world model on held-out experience, beside the return, over the run's steps."""
    at, values = series(rows, "model/error")
    if not len(at):
        return None
    figure, axes = new_figure()
    mark = "o" if len(at) == 1 else None
    [error] = axes.plot(*thinned(_steps(rows)[at], values), color=RED, lw=1.8, marker=mark, label="error of the model")
    axes.set_yscale("log")
    lines = [error]
    returned_at, returns = series(rows, "episode/return")
    counted_at, count = series(rows, "episode/count")
    if len(returned_at) and np.array_equal(counted_at, returned_at):
        beside = axes.twinx()
        beside.spines[["top", "left", "bottom"]].set_visible(False)
        beside.spines["right"].set_color(INK)
        beside.tick_params(colors=INK, labelsize=9)
        steady = thinned(_steps(rows)[returned_at], _trailing(returns, count))
        lines += beside.plot(*steady, color=BLUE, lw=1.8, label=f"return, mean of the last {_WINDOW}")
        beside.set_ylabel("return of training episodes", color=INK, fontsize=10)
    axes.legend(handles=lines, loc="upper center", frameon=False, labelcolor=INK, fontsize=9)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    label_axes(axes, "environment steps", "error on held-out experience")
    return figure


def losses(rows: Rows) -> Figure | None:
    """Every `loss/*` in a small panel of its own."""
    names = sorted({name for row in rows for name in row if name.startswith("loss/")})
    shown = [(name, *series(rows, name)) for name in names]
    shown = [(name, at, values) for name, at, values in shown if len(at)]
    if not shown:
        return None
    columns = min(len(shown), 4 if len(shown) % 3 == 1 else 3)  # no single panel in the last line
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(6.2 if columns < 3 else 11.5, 2.2 * lines + 0.3), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (name, at, values) in zip(grid, shown, strict=False):
        style_axes(axes)
        axes.plot(*thinned(_steps(rows)[at], values), color=BLUE, lw=1.4, marker="o" if len(at) == 1 else None)
        axes.set_title(name.removeprefix("loss/").replace("_", " "), color=INK, fontsize=10, loc="left")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    for axes in grid[len(shown) :]:
        axes.remove()
    figure.supxlabel("environment steps", color=INK, fontsize=10)
    return figure


def _rule(axes: Axes, value: float, colour: str, dash: str, name: str) -> None:
    axes.axvline(value, color=colour, lw=1.8, ls=dash, label=f"{name} {value:.1f}")


def _x_label(over: str) -> str:
    return "environment steps" if over == "steps" else "seconds of running"


def _steps(rows: Rows) -> np.ndarray:
    return np.array([float(row["step"]) for row in rows])


def _trailing(means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The mean over the last rows that hold about `_WINDOW` episodes, at each row."""
    seen = np.concatenate([[0.0], np.cumsum(counts)])
    total = np.concatenate([[0.0], np.cumsum(means * counts)])
    last = np.arange(1, len(seen))
    first = np.minimum(np.searchsorted(seen, seen[1:] - _WINDOW), last - 1)
    return np.asarray((total[last] - total[first]) / np.maximum(seen[last] - seen[first], 1e-9))
