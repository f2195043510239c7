"""Learning curves of runs, as numbers for the results and as a picture beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rooms import HERE

POINTS = 40
WINDOW = 100  # episodes


def curve(run: Path) -> list[dict[str, float]]:
    """The mean of the last 100 training episodes, at about `POINTS` points of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ended = [row for row in rows if "episode/count" in row]
    found, recent = [], []
    for row in ended:
        recent = (recent + [row["episode/return"]] * int(row["episode/count"]))[-WINDOW:]
        found.append({"steps": row["step"], "seconds": row["speed/seconds"], "return": sum(recent) / len(recent)})
    every = max(1, len(found) // POINTS)
    return [*found[every - 1 : -1 : every], *found[-1:]]


def picture(
    name: str, lines: Mapping[str, list[dict[str, float]]], over: str | Sequence[str], goal: float | None = None
) -> str:
    """Draw `results/NAME.png`: returns over `steps`, over `minutes`, or both side by side. Returns the file's name."""
    from matplotlib.figure import Figure

    scales = (over,) if isinstance(over, str) else tuple(over)
    figure = Figure(figsize=(7 * len(scales), 3.5), layout="constrained")
    panels: Any = figure.subplots(1, len(scales), sharey=True, squeeze=False)
    for scale, axes in zip(scales, panels[0], strict=True):
        for label, points in lines.items():
            x = [point["seconds"] / 60 if scale == "minutes" else point["steps"] for point in points]
            axes.plot(x, [point["return"] for point in points], label=label, lw=1.8)
        if goal is not None:
            axes.axhline(goal, color="grey", lw=1, ls="--")
        axes.set_xlabel(scale)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("mean of the last 100 training episodes")
    panels[0][0].legend(frameon=False, fontsize=8)
    path = HERE / "results" / f"{name}.png"
    figure.savefig(path, dpi=110)
    return path.name
