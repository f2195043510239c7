"""A cheap function whose optima are known, and laws learnt from few evaluations of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.optimize import Problem
from shoal.optimize.frugal import learn_frugally


class Counted:
    """A bowl whose minimum moves with the condition. Counts its own calls; fails and stops where it is told to."""

    __name__ = "bowl"

    def __init__(self, fails: Any = lambda x, c: False, noise: float = 0.0, stop_at: int | None = None) -> None:
        self.calls, self.fails, self.noise, self.stop_at = 0, fails, noise, stop_at
        self.rng = np.random.default_rng(0)

    def __call__(self, x: float, c: float) -> float:
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        if self.fails(x, c):
            raise ZeroDivisionError("no such device")
        return (x - 0.5 * c - 0.3) ** 2 + self.noise * self.rng.standard_normal()


def bowl(f: Any, **more: Any) -> Problem:
    return Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="python", **more)


def frugal(problem: Problem, out: Path | None, **how: Any) -> Any:
    return learn_frugally(problem, **{"budget": 40, "score": False, "out": out, **how})


def off(law: Any, **how: Any) -> float:
    c = np.linspace(-0.9, 0.9, 13)
    return float(np.abs(law(c=c, **how)["x"] - 0.5 * c - 0.3).max())
