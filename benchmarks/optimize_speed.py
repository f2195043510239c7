"""Learning laws: one part per call, for `run.py`. Prints one JSON object.

fused    the thesis' runtime configuration as one compiled loop: 10,000 steps of 64 episodes of 2 time steps, as `shoal reproduce
         lto-runtime` runs it
scored   the same with a look at the law every 10 steps, as `shoal optimize` runs it
drivers  a scalar Python f that burns 5 ms: how much faster two drivers collect than one, in processes
law      microseconds per query, in batches of 1,000
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from shoal.optimize.functions import make
from shoal.optimize.learn import learn
from shoal.optimize.timing import Costly, collecting_seconds


def fused(folder: Path, quick: bool) -> dict[str, Any]:
    looks: dict[str, Any] = {"report_every": 0}
    return _fused(folder, quick, score=False, settings=looks)


def scored(folder: Path, quick: bool) -> dict[str, Any]:
    return _fused(folder, quick)


def _fused(folder: Path, quick: bool, **how: Any) -> dict[str, Any]:
    steps = 1000 if quick else 10_000
    how |= {"algo": "reinforce", "keep": "last", "out": folder}
    learnt = learn(make("ackley"), steps=steps, episodes=64, runtime="fused", **how)
    return {"steps_per_s": learnt.summary["steps_per_s"]}


def drivers(folder: Path, quick: bool) -> dict[str, Any]:
    problem, steps = Costly(5.0).problem(), 5 if quick else 20
    one, two = (collecting_seconds(problem, k, 64, steps, folder / str(k)) for k in (1, 2))
    return {"rho": one / two}


def law(folder: Path, quick: bool) -> dict[str, Any]:
    learnt = learn(make("ackley"), steps=20, episodes=30, runtime="fused", score=False, out=folder).law
    conditions = {"x2": np.linspace(-30.0, 30.0, 1000)}
    times = []
    for _ in range(50 if quick else 500):
        began = time.perf_counter()
        learnt(**conditions)
        times.append(time.perf_counter() - began)
    return {"us_per_query": float(np.median(times)) / 1000 * 1e6}


if __name__ == "__main__":
    part = {"fused": fused, "scored": scored, "drivers": drivers, "law": law}[sys.argv[1]]
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(part(Path(temporary) / "run", "--quick" in sys.argv)))
