"""A picture of where each sampler starts episodes, after some training. About a minute.

python examples/samplers.py [picture.png]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from shoal.observe import sampling
from shoal.observe.drawing import render
from shoal.optimize import Problem, learn

EPISODES, UPDATES, SHOWN = 30, 400, 10
DRIVERS = {"random": 1, "latin_hypercube": 1, "latin_scipy": 1, "uncertainty": 1, "grid": 1, "heterogeneous": 3}


class Recorder:
    """A bowl whose minimum follows the condition; records the points at which it is evaluated."""

    def __init__(self):
        self.asked = []

    def __call__(self, x, c):
        if np.size(x) > 1:
            self.asked.append(np.stack([x, c], 1))
        return (x - 0.5 * c) ** 2


drawn = {}
for name, drivers in DRIVERS.items():
    f = Recorder()
    problem = Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="numpy", name="bowl")
    learn(
        problem,
        algo="reinforce",
        sampler=name,
        runtime="inline",
        drivers=drivers,
        steps=UPDATES,
        episodes=EPISODES,
        time_steps=1,
        score=False,
        out=Path(tempfile.mkdtemp()) / name,
    )
    starts = f.asked[-2 * SHOWN * drivers :: 2]  # every driver asks for f at its starts, then at the answers
    drawn[name] = np.concatenate(starts)
picture = Path(sys.argv[1] if len(sys.argv) > 1 else "samplers.png")
picture.write_bytes(render(sampling.starts(drawn, ("knob", "condition"), new=EPISODES), "png"))
print(f"picture: {picture}")
