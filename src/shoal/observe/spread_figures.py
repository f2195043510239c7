"""Figures of how episodes spread: box plots and densities of returns, one for each way of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from shoal.observe.drawing import BLUE, INK, PALETTE, RED, label_axes, style_axes

POINTS = 400  # of a density


def boxes(figure: Mapping[str, Any], reference: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A box for each row: quartiles and median; whiskers to 1.5 times their range; the published mean as a diamond."""
    rows, column = figure["rows"], figure.get("column", "mean")
    picture = Figure(figsize=(6.2, 0.42 * len(rows) + 1.3), layout="constrained")
    axes = picture.subplots()
    style_axes(axes)
    drawn = axes.boxplot(
        [row["values"] for row in rows],
        orientation="horizontal",
        positions=range(len(rows)),
        widths=0.6,
        patch_artist=True,
        flierprops={"marker": ".", "ms": 2, "alpha": 0.4, "markeredgecolor": BLUE},
        medianprops={"color": INK, "lw": 1.5},
    )
    for box in drawn["boxes"]:
        box.set(facecolor=BLUE, alpha=0.35, edgecolor=BLUE)
    published = [(reference.get(row["name"], {}).get(column), at) for at, row in enumerate(rows)]
    known = [(value, at) for value, at in published if isinstance(value, int | float)]
    if known:
        axes.plot(*zip(*known, strict=True), color=RED, lw=0, marker="D", ms=6, label="published mean")
        axes.legend(loc="best", frameon=False, labelcolor=INK, fontsize=9)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    label_axes(axes, figure["x"], "")
    return picture


def density(figure: Mapping[str, Any], reference: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A smooth line for each row: the density of its values, by a Gaussian kernel of Silverman's width."""
    rows = figure["rows"]
    picture = Figure(figsize=(6.2, 3.9), layout="constrained")
    axes = picture.subplots()
    style_axes(axes)
    low, high = (limit(limit(row["values"]) for row in rows) for limit in (min, max))
    margin = 0.1 * (high - low) or 1.0
    at = np.linspace(low - margin, high + margin, POINTS)
    for number, row in enumerate(rows):
        colour = PALETTE[number % len(PALETTE)]
        heights = gaussian_density(np.array(row["values"], float), at)
        axes.plot(at, heights, color=colour, lw=1.6, label=row["name"])
        axes.fill_between(at, heights, color=colour, alpha=0.12, lw=0)
    axes.set_ylim(bottom=0)
    axes.set_yticks([])
    lines, labels = axes.get_legend_handles_labels()
    picture.legend(lines, labels, loc="outside lower center", ncols=3, frameon=False, labelcolor=INK, fontsize=9)
    label_axes(axes, figure["x"], "density")
    return picture


def gaussian_density(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """sum_i N(at; values_i, h^2) / n with h = 0.9 min(sd, IQR / 1.34) n^(-1/5), Silverman's rule.

    Values that all agree get a narrow peak.

    Args:
        values: [N].
        at: [P].

    Returns:
        heights [P].
    """
    quartiles = np.quantile(values, (0.25, 0.75))
    spreads = [spread for spread in (float(np.std(values)), float(quartiles[1] - quartiles[0]) / 1.34) if spread > 0]
    width = 0.9 * min(spreads) * len(values) ** -0.2 if spreads else float(np.ptp(at)) / 100 or 1.0
    distances = (at[:, None] - values[None, :]) / width
    heights: np.ndarray = np.exp(-0.5 * distances**2).mean(1) / (width * np.sqrt(2 * np.pi))
    return heights
