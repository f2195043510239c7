"""Refining one answer of a law by a few evaluations of f at its condition."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from scipy.optimize import minimize

from shoal.optimize.explorer import Explorer
from shoal.optimize.limits import satisfied
from shoal.optimize.problem import Problem
from shoal.optimize.surrogate import Surrogate


class _Enough(Exception):
    """The evaluations are used up."""


class Tries:
    """Evaluates f one point at a time, remembers the best, and stops after `most`."""

    def __init__(self, problem: Problem, most: int) -> None:
        self._problem, self._left = problem, most
        self.best: np.ndarray | None = None
        self._lowest = np.inf

    def __call__(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """f [1] and the constraints [G, 1] at a point [width]."""
        if not self._left:
            raise _Enough
        self._left -= 1
        values, limits = self._problem.measure(point[None])
        if satisfied(limits)[0] and values[0] < self._lowest:
            self._lowest, self.best = float(values[0]), point.copy()
        return values, limits


def by_surrogate(
    problem: Problem, surrogate: Surrogate, models: Sequence[Surrogate], point: np.ndarray, evaluations: int
) -> np.ndarray:
    """The best of `evaluations` points: the first is `point` [width], the others are the surrogate's proposals.

    The law's own surrogate is not changed. If f is noisy, the lowest mean counts, not the lowest value.
    """
    explorer = Explorer.knowing(problem, surrogate, models)
    start = point
    tries, condition = Tries(problem, evaluations), point[None, problem.knob_width :]
    with suppress(_Enough):
        while True:
            explorer.tell(point[None], *tries(point))
            found = explorer.ask(1, condition)
            if not len(found):
                break  # all knobs of a finite problem have been tried
            point = found[0]
    if problem.noisy:
        explorer.refresh()
        return np.asarray(explorer.search().minima(condition)[0])
    return start if tries.best is None else tries.best


def by_simplex(problem: Problem, columns: Sequence[int], point: np.ndarray, evaluations: int) -> np.ndarray:
    """The best point of `evaluations`, by Nelder and Mead over these columns, from `point` [width]."""
    tries = Tries(problem, evaluations)

    def value(x: np.ndarray) -> float:
        trial = point.copy()
        trial[list(columns)] = np.clip(x, -1.0, 1.0)
        values, limits = tries(trial)
        return float(values[0]) if np.isfinite(values[0]) and satisfied(limits)[0] else 1e30

    # A small simplex, because the law's answer is near the optimum and the optimiser's own first steps would leave it.
    inward = np.where(point[list(columns)] > 0, -0.05, 0.05)
    simplex = np.vstack([point[list(columns)], point[list(columns)] + np.diag(inward)])
    options: Any = {"maxfev": evaluations, "initial_simplex": simplex}
    with suppress(_Enough):
        minimize(value, simplex[0], method="Nelder-Mead", options=options)
    return point if tries.best is None else tries.best
