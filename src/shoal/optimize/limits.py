"""Constraints g(x, c) <= 0: what violating them costs while a policy is trained, and when they are given up.

A point that violates a constraint has no value: to searches, choosing and regret it counts as a failure. Policy gradients
would learn nothing from such points, so that training adds a penalty instead: a step, which keeps a policy that is never quite
narrow away from the edge, and a slope that leads back. The surrogate has a model of each g instead (`search`).
"""

from __future__ import annotations

import numpy as np

from shoal.core.errors import BadInput
from shoal.optimize.problem import Problem

STEP = 0.5  # spreads of f that any violation costs
SLOPE = 3.0  # spreads of f that a violation of the usual size costs more
TRIES = 1024  # random points at which policy gradients look for one that satisfies all constraints
FEW_TRIES = 64  # evaluations after which a surrogate may give up, at least
SHARE = 4  # it gives up after this fraction of the budget


def satisfied(limits: np.ndarray) -> np.ndarray:
    """Mask of the points that satisfy all constraints, from their values [G, N]: [N] bool; a g that failed is not satisfied."""
    return np.asarray((limits <= 0.0).all(0))


def refuse(problem: Problem, limits: np.ndarray) -> None:
    """Raise `BadInput` if no point satisfies the constraints, whose values are [G, N]."""
    if satisfied(limits).any():
        return
    n = limits.shape[1]
    for name, values in zip(problem.limit_names, limits, strict=True):
        if not (values <= 0.0).any():
            known = values[np.isfinite(values)]
            lowest = f"the lowest value was {known.min():.4g}" if len(known) else "it failed everywhere"
            raise BadInput(f"{problem.name}: {name} <= 0 holds at none of {n:,} points that were tried: {lowest}")
    raise BadInput(
        f"{problem.name}: no point of {n:,} that were tried satisfies all {len(limits)} constraints together"
    )


def penalised(problem: Problem, most: int) -> Problem:
    """The problem with penalties in units of f, from `most` random evaluations.

    Raises:
        BadInput: none of them satisfies the constraints.
    """
    values, limits = problem.measure(problem.sample(np.random.default_rng(1), most))
    refuse(problem, limits)
    spread = float(np.nanstd(values)) or 1.0
    usual = [float(g[g > 0.0].mean()) if (g > 0.0).any() else 1.0 for g in limits]
    return problem.with_penalty(tuple((STEP * spread, SLOPE * spread / size) for size in usual))
