"""Figure of the booster's regulation, drawn from arrays: the error over time, and the setting that each controller chose."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from shoal.core.errors import BadInput
from shoal.observe.drawing import BLUE, GREEN, INK, PURPLE, RED, style_axes

_COLOURS = (BLUE, GREEN, RED, PURPLE)


def regulation(traces: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Draw IMINER above VIMIN, a line for each controller.

    Args:
        traces: (IMINER [T], VIMIN [T]) by the controller's name, from the same start; at most 4.
    """
    if not 1 <= len(traces) <= len(_COLOURS):
        raise BadInput(f"{len(traces)} controllers to draw: 1 to {len(_COLOURS)}")
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for colour, (name, (errors, settings)) in zip(_COLOURS, traces.items(), strict=False):
        if np.ndim(errors) != 1 or np.shape(errors) != np.shape(settings):
            raise BadInput(f"{name!r} has shapes {np.shape(errors)} and {np.shape(settings)}: both must be [T]")
        ticks = np.arange(1, len(errors) + 1)
        above.plot(ticks, errors, color=colour, lw=1.2, label=f"{name}: mean |IMINER| {np.abs(errors).mean():.3f}")
        below.plot(ticks, settings, color=colour, lw=1.2)
    for panel, label in ((above, "IMINER"), (below, "VIMIN")):
        style_axes(panel)
        panel.axhline(0, color=INK, lw=0.5)
        panel.set_ylabel(label, color=INK)
    below.set_xlabel("tick of 1/15 s (synthetic plant)", color=INK)
    above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8, labelcolor=INK)
    return figure
