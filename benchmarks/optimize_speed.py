"""Learning laws: one part per call, for `run.py`. Prints one JSON object.

fused    the thesis' runtime configuration as one compiled loop: 10,000 steps of 64 episodes of 2 time steps, as `shoal reproduce
         lto-runtime` runs it
scored   the same with a look at the law every 10 steps, as `shoal optimize` runs it
drivers  a scalar Python f that burns 5 ms: how much faster two drivers collect than one, in processes
law      a law from 2,000 evaluations, two knobs and two conditions: microseconds a query of the raw policy, in batches of 1,000 and
         alone, and milliseconds of a polished answer
overhead milliseconds of the law's own time for each of 2,000 evaluations, 1 + 1 and 2 + 2 knobs and conditions
busy     two drivers, an f of 5 ms, 2,000 evaluations: the share of two cores' time, from start to law, that is spent in f; once
         for an f that burns CPU, once for one that waits
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shoal.optimize import Problem
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
    learnt = learn(plain(2), algo="surrogate", budget=300 if quick else 2000, score=False, out=folder).law
    side, tries = np.linspace(-30.0, 30.0, 1000), 50 if quick else 500
    return {
        "batch_us": median_seconds(lambda: learnt(x3=side, x4=-side, polish=False), tries) / 1000 * 1e6,
        "alone_us": median_seconds(lambda: learnt(x3=3.0, x4=-7.0, polish=False), tries) * 1e6,
        "polished_ms": median_seconds(lambda: learnt(x3=3.0, x4=-7.0), tries) * 1e3,
    }


def median_seconds(call: Callable[[], Any], tries: int) -> float:
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def plain(knobs: int) -> Problem:
    """Ackley's function with as many conditions, one point at a time and not compiled."""
    traced = make("ackley", dims=2 * knobs, free=knobs, shift=0.2)
    boxes = [{axis.name: (axis.low, axis.high) for axis in axes} for axes in (traced.knobs, traced.conditions)]
    return Problem(traced.devices[0], knobs=boxes[0], conditions=boxes[1], kind="python", name="ackley")


def overhead(folder: Path, quick: bool) -> dict[str, Any]:
    found = {}
    for knobs in (1, 2):
        how: dict[str, Any] = {"budget": 300 if quick else 2000, "score": False, "out": folder / str(knobs)}
        summary = learn(plain(knobs), algo="surrogate", **how).summary
        found[f"{knobs} + {knobs}"] = (summary["wall_s"] - summary["f_s"]) / summary["evaluations"] * 1e3
    return found


class Slow:
    """Ackley's function that takes some milliseconds: of the processor's time, or of waiting."""

    __name__ = "slow_ackley"

    def __init__(self, milliseconds: float, *, waits: bool) -> None:
        self.milliseconds, self.waits = milliseconds, waits
        self._costly = Costly(0.0 if waits else milliseconds)

    def __call__(self, x1: float, x2: float) -> float:
        if self.waits:
            time.sleep(self.milliseconds / 1e3)
        return self._costly(x1=x1, x2=x2)


def busy(folder: Path, quick: bool) -> dict[str, Any]:
    """The evaluations count with the 5 ms that each needs, not with what it took beside others."""
    box, cost, found = (-32.768, 32.768), 5.0, {}
    for name, waits in (("burns", False), ("waits", True)):
        problem = Problem(Slow(cost, waits=waits), knobs={"x1": box}, conditions={"x2": box}, kind="python")
        how: dict[str, Any] = {"budget": 300 if quick else 2000, "score": False, "out": folder / name}
        began = time.monotonic()
        made = learn(problem, algo="surrogate", drivers=2, **how)
        found[name] = made.evaluations * cost / 1e3 / (2.0 * (time.monotonic() - began))
    return found


if __name__ == "__main__":
    parts = {"fused": fused, "scored": scored, "drivers": drivers, "law": law, "overhead": overhead, "busy": busy}
    part = parts[sys.argv[1]]
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(part(Path(temporary) / "run", "--quick" in sys.argv)))
