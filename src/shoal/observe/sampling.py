"""Figure of where samplers start episodes, drawn from arrays: one panel per sampler, with counts per tenth of an axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from shoal.core.errors import BadInput
from shoal.observe.drawing import BLUE, INK, RED, label_axes, style_axes

BINS = 10  # along each axis, as in the thesis's Latin hypercube
_COLUMNS = 3


def starts(points: Mapping[str, np.ndarray], names: tuple[str, str], new: int = 0) -> Figure:
    """Draw one panel per sampler.

    Args:
        points: starts [N, 2] by the sampler's name, from -1 to 1, in the order in which they were drawn.
        names: of the two axes.
        new: number of last starts to draw in another colour, to show one batch among those before it.
    """
    if not points:
        raise BadInput("no samplers to draw: at least 1")
    for name, drawn in points.items():
        if np.ndim(drawn) != 2 or np.shape(drawn)[1] != 2:
            raise BadInput(f"starts of {name!r} have shape {np.shape(drawn)}: they must be [N, 2]")
    columns = min(_COLUMNS, len(points))
    rows = -(-len(points) // columns)
    figure = Figure(figsize=(3.0 * columns, 3.1 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, (name, drawn) in zip(panels, points.items(), strict=False):
        style_axes(panel)
        old, last = (drawn[:-new], drawn[-new:]) if new else (drawn, drawn[:0])
        panel.plot(old[:, 0], old[:, 1], color=BLUE, marker=".", ms=3, lw=0)
        panel.plot(last[:, 0], last[:, 1], color=RED, marker="o", ms=4, lw=0)
        panel.set_xlim(-1.05, 1.05)
        panel.set_ylim(-1.05, 1.05)
        panel.set_xticks(np.linspace(-1, 1, BINS + 1), minor=True)
        panel.set_yticks(np.linspace(-1, 1, BINS + 1), minor=True)
        panel.grid(visible=True, which="minor", color=INK, alpha=0.08, lw=0.6)
        panel.set_title(f"{name}\n{_evenness(drawn)}", color=INK, fontsize=9)
        label_axes(panel, *names)
    for panel in panels[len(points) :]:
        panel.set_visible(False)
    return figure


def counts(drawn: np.ndarray, bins: int = BINS) -> np.ndarray:
    """[columns, bins]: how many of the starts [N, columns] lie in each bin of each column."""
    return np.stack([np.histogram(column, bins, (-1.0, 1.0))[0] for column in np.asarray(drawn).T])


def _evenness(drawn: np.ndarray) -> str:
    found = counts(drawn)
    return f"{found.min()} to {found.max()} of {len(drawn)} in a tenth"
