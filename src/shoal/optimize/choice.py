"""The choice of the algorithm that learns a law: by the budget, by the cost of an evaluation of f, and by what else is asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shoal.core.errors import BadInput
from shoal.optimize.frugal import BUDGET
from shoal.optimize.judge import CHOOSING
from shoal.optimize.problem import Problem

FEW = 20_000  # evaluations that a surrogate can make use of; policy gradients need more than that
CHEAP = 1e-3  # seconds an evaluation: a surrogate takes a few times that for itself
TRIES = 3  # evaluations, at most, to see what f costs: the first may be slow for a reason of its own
SLOW = 0.1  # seconds an evaluation that need not be measured twice


class Choice(NamedTuple):
    """The algorithm, the budget that is left for it, and the reason in one line."""

    algo: str
    budget: int | None
    why: str
    first: int = 0  # evaluations for a law by `surrogate`, which is kept if it is better than those of `algo`


def choose(
    problem: Problem,
    budget: int | None,
    *,
    resumed: bool = False,
    data: bool = False,
    gradients: Sequence[str] = (),
) -> Choice:
    """`surrogate` if evaluations are few or expensive, if there is `data` of earlier ones, or if a run is resumed; else both.

    `gradients` are the requested settings that only policy gradients have. f is evaluated at most `TRIES` times, within the budget,
    and only if the probes of its kind did not show its cost. No budget of a resumed run means the stopped one's.

    Raises:
        BadInput: settings of policy gradients together with data or a run that is resumed.
    """
    if gradients:
        if resumed or data:
            other = "resume" if resumed else "data"
            raise BadInput(f"{gradients[0]} is for policy gradients, and {other} for surrogate: leave one of them out")
        return Choice("ppo", budget, f"auto: ppo, because {gradients[0]} is for policy gradients")
    if resumed:
        most = None if budget is None else min(budget, FEW)
        return Choice("surrogate", most, "auto: surrogate, because no other algorithm resumes a run")
    if data:
        most = BUDGET if budget is None else min(budget, FEW)
        why = "because no other algorithm learns from earlier evaluations"
        return Choice("surrogate", most, f"auto: surrogate with {most:,} new evaluations, {why}")
    if budget is not None and budget <= FEW:
        why = f"auto: surrogate, because the budget of {budget:,} evaluations is not above {FEW:,}"
        return Choice("surrogate", budget, why)
    if problem.traceable:
        return _both(budget, "JAX compiles f, so that evaluations cost next to nothing")
    before = problem.evaluations
    seconds = _seconds(problem)
    left = None if budget is None else budget - (problem.evaluations - before)
    if seconds < CHEAP:
        return _both(left, f"f takes only {1e6 * seconds:.0f} us")
    most = BUDGET if left is None else min(left, FEW)
    why = f"because f takes {1e3 * seconds:.3g} ms"
    return Choice("surrogate", most, f"auto: surrogate with {most:,} evaluations, {why}")


def _both(budget: int | None, why: str) -> Choice:
    """`surrogate` first and then `ppo`: where evaluations cost next to nothing, the better of two laws costs some seconds more."""
    left = None if budget is None else budget - BUDGET - CHOOSING
    why = f"auto: surrogate with {BUDGET:,} evaluations, then ppo, and the better law, because {why}"
    return Choice("ppo", left, why, BUDGET)


def _seconds(problem: Problem) -> float:
    """Seconds of one evaluation: the least of the probes, or of some tries."""
    least = problem.probe_s
    for point in problem.sample(np.random.default_rng(0), TRIES):
        if least < CHEAP or SLOW < least < float("inf"):
            break
        began = time.perf_counter()
        problem.evaluate(point[None])
        least = min(least, time.perf_counter() - began)
    return least
