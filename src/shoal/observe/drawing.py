"""The look shared by all figures: colours, axes, labels, and rendering to SVG or PNG.

Colour-blind readers can distinguish the colours. In SVG, everything but the data takes the colour of the surrounding text, so that
one figure serves a light and a dark page.
"""

from __future__ import annotations

import io
import re
from typing import Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, RED, GREEN, YELLOW, CYAN, PURPLE = "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377"
PALETTE = (BLUE, RED, GREEN, YELLOW, PURPLE, CYAN)
GREY = "#888888"
INK = "#102030"  # placeholder for the text's colour until the SVG is written
POINTS = 300  # at most, per curve: more are invisible and only make the file big


def render(figure: Figure, kind: Literal["svg", "png"] = "svg") -> bytes:
    """The figure's bytes: an SVG to embed in HTML (without namespaces), or a PNG on white."""
    buffer = io.BytesIO()
    if kind == "png":
        figure.savefig(buffer, format="png", dpi=144, facecolor="white")
        return buffer.getvalue()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "shoal"}):
        figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1
    )
    return text.replace(INK, "currentColor").replace(INK.lower(), "currentColor").encode()


def new_figure() -> tuple[Figure, Axes]:
    """A figure of the usual size with one pair of axes."""
    figure = Figure(figsize=(6.2, 3.4), layout="constrained")
    axes = figure.subplots()
    style_axes(axes)
    return figure, axes


def style_axes(axes: Axes) -> None:
    """Draw axes as a light grid without a frame."""
    axes.set_facecolor("none")
    axes.grid(visible=True, color=INK, alpha=0.12, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.margins(x=0.01)


def label_axes(axes: Axes, x: str, y: str) -> None:
    """Name both axes; an empty text leaves one without a name."""
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)


def add_legend(axes: Axes, where: Literal["best", "lower right"]) -> None:
    """Add a legend without a frame, inside the axes."""
    axes.legend(loc=where, frameon=False, labelcolor=INK, fontsize=9)


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `POINTS` points, each the mean of its neighbours."""
    if len(x) <= POINTS:
        return x, y
    cuts = np.linspace(0, len(x), POINTS + 1).astype(int)[:-1]
    sizes = np.diff(np.append(cuts, len(x)))
    return np.add.reduceat(x, cuts) / sizes, np.add.reduceat(y, cuts) / sizes
