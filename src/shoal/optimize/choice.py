"""The choice of the algorithm that learns a law: by the budget, and by the cost of an evaluation of f."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from shoal.optimize.frugal import BUDGET
from shoal.optimize.problem import Problem

FEW = 20_000  # evaluations that a surrogate can make use of; policy gradients need more than that
CHEAP = 1e-3  # seconds an evaluation: a surrogate takes a few times that for itself


class Choice(NamedTuple):
    """The algorithm, the budget that is left for it, and the reason in one line."""

    algo: str
    budget: int | None
    why: str


def choose(problem: Problem, budget: int | None, *, resumed: bool = False) -> Choice:
    """`surrogate` if evaluations are few or expensive, or a run is resumed, else `ppo`.

    May evaluate f once, which is taken from the budget. No budget of a resumed run means the stopped one's.
    """
    if resumed:
        most = None if budget is None else min(budget, FEW)
        return Choice("surrogate", most, "auto: surrogate, because no other algorithm resumes a run")
    if budget is not None and budget <= FEW:
        return Choice(
            "surrogate", budget, f"auto: surrogate, because the budget of {budget:,} evaluations is below {FEW:,}"
        )
    if problem.traceable:
        return Choice("ppo", budget, "auto: ppo, because JAX compiles f, so that evaluations cost next to nothing")
    began = time.perf_counter()
    problem.evaluate(problem.sample(np.random.default_rng(0), 1))
    seconds = time.perf_counter() - began
    if seconds < CHEAP:
        left = None if budget is None else budget - 1
        return Choice("ppo", left, f"auto: ppo, because f takes only {1e6 * seconds:.0f} us")
    most = BUDGET if budget is None else FEW
    return Choice(
        "surrogate", most, f"auto: surrogate with {most:,} evaluations, because f takes {1e3 * seconds:.3g} ms"
    )
