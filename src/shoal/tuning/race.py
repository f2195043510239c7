"""Confirmation of winners: the best few are trained again on fresh seeds, which shows the optimism of their tuning scores.

The best of many noisy scores is biased upwards. Its *optimism* is its tuning score minus its score on seeds that the search has
not used. The race goes seed by seed through all candidates, and drops a candidate that is clearly behind the leader. The
default settings train on every seed too (`baseline`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from shoal.studies.statistics import interval
from shoal.tuning.config import Plan
from shoal.tuning.events import BASELINE, Course, Trial

FEWEST = 5  # seeds that candidate and leader must share before the candidate can be dropped


class Confirmed(NamedTuple):
    """A candidate and its scores on fresh seeds."""

    trial: int
    tuning: float  # its score in the search
    scores: tuple[float, ...]  # on fresh seeds
    mean: float
    ci: tuple[float, float] | None  # of the mean, 95 %
    left_out: bool  # dropped from the race before its last seed
    failed: int = 0  # number of fresh seeds on which it failed; they are not in `scores`

    @property
    def optimism(self) -> float:
        return self.tuning - self.mean

    @property
    def optimism_ci(self) -> tuple[float, float] | None:
        return None if self.ci is None else (self.tuning - self.ci[1], self.tuning - self.ci[0])


def candidates(plan: Plan, course: Course) -> list[Trial]:
    return [] if plan.confirm is None else course.ranked()[: plan.confirm.top]


def still_to_test(plan: Plan, course: Course) -> list[tuple[int, int]]:
    """The (trial or `BASELINE`, seed) pairs that the race still needs, in order."""
    racing = [trial.number for trial in candidates(plan, course)]
    if racing and plan.config.baseline:
        racing.append(BASELINE)
    out = left_out(plan, course)
    return [
        (number, seed)
        for seed in plan.test_seeds
        for number in racing
        if number not in out and seed not in course.tests.get(number, {})
    ]


def left_out(plan: Plan, course: Course) -> set[int]:
    """Candidates that are below the leader on the same seeds, by the 95 % interval of the difference."""
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
    """Candidates with a score on a fresh seed, best first.

    After them come candidates that failed on a seed, because their mean lacks the worst seeds; dropped ones come last.
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
