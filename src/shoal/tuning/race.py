"""Winners confirmed: the best few trained again on fresh seeds, and the optimism of their tuning scores.

The best of many noisy scores is too good to be true. Its *optimism* is its tuning score less its score on seeds that the search
has not seen. The race goes seed by seed through all candidates, and leaves out one that is clearly behind the leader.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from shoal.studies.statistics import interval
from shoal.tuning.config import Plan
from shoal.tuning.events import Course, Trial

FEWEST = 5  # seeds of both before a candidate can be left out


class Confirmed(NamedTuple):
    """A candidate and what fresh seeds say of it."""

    trial: int
    tuning: float  # its score in the search
    scores: tuple[float, ...]  # on fresh seeds
    mean: float
    ci: tuple[float, float] | None  # of the mean, 95 %
    left_out: bool  # of the race, before its last seed
    failed: int = 0  # fresh seeds on which it failed, which `scores` lacks

    @property
    def optimism(self) -> float:
        return self.tuning - self.mean

    @property
    def optimism_ci(self) -> tuple[float, float] | None:
        return None if self.ci is None else (self.tuning - self.ci[1], self.tuning - self.ci[0])


def candidates(plan: Plan, course: Course) -> list[Trial]:
    return [] if plan.confirm is None else course.ranked()[: plan.confirm.top]


def still_to_test(plan: Plan, course: Course) -> list[tuple[int, int]]:
    """(trial, seed) that the race still needs, in its order."""
    racing = candidates(plan, course)
    out = left_out(plan, course)
    return [
        (trial.number, seed)
        for seed in plan.test_seeds
        for trial in racing
        if trial.number not in out and seed not in course.tests.get(trial.number, {})
    ]


def left_out(plan: Plan, course: Course) -> set[int]:
    """Candidates whose scores lie below the leader's on the same seeds, by the 95 % interval of the difference."""
    racing = [trial.number for trial in candidates(plan, course)]
    known = {n: {s: v for s, v in course.tests.get(n, {}).items() if not math.isnan(v)} for n in racing}
    long = {number: scores for number, scores in known.items() if len(scores) >= FEWEST}
    if not long:
        return set()
    leader = max(long, key=lambda number: math.fsum(long[number].values()) / len(long[number]))
    behind = set()
    for number, scores in long.items():
        both = [scores[seed] - long[leader][seed] for seed in scores if seed in long[leader]]
        ends = interval(both) if number != leader and len(both) >= FEWEST else None
        if ends is not None and ends[1] < 0:
            behind.add(number)
    return behind


def confirmed(plan: Plan, course: Course) -> list[Confirmed]:
    """The candidates with a score on a fresh seed, best first.

    After those come candidates that failed on some seed, whose mean lacks their worst; last those that were left out.
    """
    out, found = left_out(plan, course), []
    for trial in candidates(plan, course):
        tests = course.tests.get(trial.number, {})
        scores = tuple(tests[seed] for seed in plan.test_seeds if seed in tests and not math.isnan(tests[seed]))
        if scores:
            mean = math.fsum(scores) / len(scores)
            late = trial.number in out and len(scores) < len(plan.test_seeds)
            failed = sum(math.isnan(value) for value in tests.values())
            found.append(Confirmed(trial.number, trial.value, scores, mean, interval(scores), late, failed))
    return sorted(found, key=lambda one: (one.left_out, one.failed > 0, -one.mean))
