"""The environment's default settings in the race: does the confirmed winner solve the task at least as soon?

The baseline is the study's command without the searched values, so these are the tuned ones of the environment. It trains with the
winner's budget on the winner's test seeds. It is no candidate: it neither wins the race nor drops others from it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from shoal.studies.statistics import interval
from shoal.tuning.config import Plan
from shoal.tuning.events import BASELINE, Course
from shoal.tuning.race import confirmed


class Raced(NamedTuple):
    """The winner or the baseline on the test seeds."""

    mean: float  # score; NaN if it failed on every seed
    ci: tuple[float, float] | None  # of the mean, 95 %
    seeds: int
    failed: int  # of these seeds
    solved: int  # of these seeds; 0 if the environment has no goal
    steps: float  # to the goal, median over all seeds; infinite if fewer than half reach it
    seconds: float  # the same, on the runs' own clock

    def plain(self) -> dict[str, object]:
        """For JSON, which has neither infinity nor NaN."""
        return {name: value if _finite(value) else None for name, value in self._asdict().items()}


def raced(plan: Plan, course: Course, number: int) -> Raced | None:
    """Results of this trial, or of `BASELINE`; None before its last test seed."""
    tests = course.tests.get(number, {})
    if not tests:
        return None
    scores = [value for value in tests.values() if not math.isnan(value)]
    times = course.solved.get(number, {})
    return Raced(
        math.fsum(scores) / len(scores) if scores else math.nan,
        interval(scores) if scores else None,
        len(tests),
        len(tests) - len(scores),
        len(times),
        _median([steps for steps, _ in times.values()], len(tests)),
        _median([seconds for _, seconds in times.values()], len(tests)),
    )


def baseline(plan: Plan, course: Course) -> Raced | None:
    """Results of the default settings; None before their last test seed, and without a confirmation."""
    complete = len(course.tests.get(BASELINE, {})) == len(plan.test_seeds)
    return raced(plan, course, BASELINE) if complete else None


def ahead_of_baseline(plan: Plan, course: Course) -> bool | None:
    """Whether the winner reaches the goal in at most as many steps as the default settings, both as a median over the seeds.

    If neither does, or the environment has no goal: whether its mean score is at least as high. None if one of them is missing.
    """
    both = _both(plan, course)
    if both is None:
        return None
    winner, default = both
    if math.isfinite(min(winner.steps, default.steps)):
        return winner.steps <= default.steps
    return not winner.mean < default.mean  # a baseline that always failed has NaN


def verdict(plan: Plan, course: Course) -> str:
    """One sentence; empty if there is no comparison."""
    both, is_ahead = _both(plan, course), ahead_of_baseline(plan, course)
    if both is None:
        return ""
    head = f"the winner is {'' if is_ahead else 'not '}ahead of the default settings"
    if math.isfinite(min(both[0].steps, both[1].steps)):
        ours, theirs = (_time(one) for one in both)
        return f"{head}: it reaches a return of {plan.goal:g} {ours}; the default settings {theirs}"
    ours, theirs = (_score(one) for one in both)
    why = "" if plan.goal is None else f" and neither reaches a return of {plan.goal:g}"
    return f"{head}: its score is {ours}, theirs {theirs}{why}"


def _both(plan: Plan, course: Course) -> tuple[Raced, Raced] | None:
    found, default = confirmed(plan, course), baseline(plan, course)
    winner = raced(plan, course, found[0].trial) if found else None
    return None if winner is None or default is None else (winner, default)


def _time(one: Raced) -> str:
    share = f"on {one.solved} of {one.seeds} seeds"
    if math.isinf(one.steps):
        return share
    return f"{share}, after a median of {one.steps:,.0f} steps and {one.seconds:.1f} s"


def _score(one: Raced) -> str:
    if math.isnan(one.mean):
        return "missing, because every run failed"
    return f"{one.mean:.1f}" + ("" if one.ci is None else f" [{one.ci[0]:.1f}, {one.ci[1]:.1f}]")


def _median(found: Iterable[float], seeds: int) -> float:
    """The median over all seeds; one that is not in `found` counts as infinite."""
    values = [*found]
    return statistics.median(values + [math.inf] * (seeds - len(values)))


def _finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
