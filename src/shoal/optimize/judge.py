"""Judging a run's laws: choosing one, scoring the curve, reporting the kept law, each on conditions of its own.

| conditions | definition | purpose |
| --- | --- | --- |
| training | drawn by the sampler, in single precision | the weights |
| choosing | the first points of an even sequence | which of a run's laws is kept |
| reporting | the next points of the same sequence | the regret of the kept law; they decide nothing |
| scoring | -1, -0.9, ... 1, as in the thesis | the curve of the published tables; they decide nothing |

The sequence is irrational, so no grid and no draw in single precision contains any of its points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Report
from shoal.optimize.law import Law
from shoal.optimize.problem import Problem
from shoal.optimize.truth import Scores, mse, msle, refined

EVERY = 10  # training steps between two looks at the law, as in the thesis
CHOOSING = 32  # conditions
REPORTING = 32
REPORTING_ONE_BY_ONE = 16  # for kind python, since each searched optimum takes hundreds of calls
KEEP = ("best", "last")


def spread(sides: int, first: int, count: int) -> np.ndarray:
    """Points first, first + 1, ... of an endless even sequence from -1 to 1: [count, sides].

    Roberts 2018: multiples of 1/g, 1/g^2, ... modulo 1, where g^(sides + 1) = g + 1. Any stretch of them covers the box.
    """
    g = 2.0
    for _ in range(64):
        g = (1.0 + g) ** (1.0 / (sides + 1))
    steps = g ** -np.arange(1.0, sides + 1)
    unit = (0.5 + np.arange(first, first + count)[:, None] * steps) % 1.0
    return np.asarray(2.0 * unit - 1.0)


def choosing_conditions(problem: Problem) -> np.ndarray:
    """[C, n_conditions] on which a run's laws are compared; a problem without conditions has a single, empty one."""
    return spread(problem.n_conditions, 1, CHOOSING if problem.n_conditions else 1)


def reporting_conditions(problem: Problem) -> np.ndarray:
    """[R, n_conditions] on which the kept law is reported; none of them is used to choose or to train."""
    n = REPORTING if problem.kind != "python" else REPORTING_ONE_BY_ONE
    return spread(problem.n_conditions, CHOOSING + 1, n if problem.n_conditions else 1)


class Reported(NamedTuple):
    """The quality of a law's answers on some conditions."""

    violations: int | None = None  # answers that are not allowed; None if f was not evaluated
    regret: dict[str, Any] | None = None
    why: str | None = None  # there is no regret, if it was asked for


def reported(law: Law, conditions: np.ndarray, *, polish: bool = True) -> Reported:
    """The violations and the regret of a law on conditions [N, n_conditions]. Evaluates f; a failure is part of the report."""
    violations = None
    try:
        violations = law.violations(conditions, polish=polish)
        if violations == len(conditions):
            return Reported(violations, why=f"{law.problem.name}: all of the law's answers violate a constraint")
        return Reported(violations, law.regret_at(conditions, polish=polish)._asdict())
    except (BadInput, RunFailed) as error:  # no optimum was found, or f fails at the answers
        return Reported(violations, why=str(error))


def left_out(**reasons: str | None) -> dict[str, str]:
    """The requested entries that a summary lacks, with the reason."""
    return {what: why for what, why in reasons.items() if why is not None}


def choosing_evaluations(problem: Problem, steps: int) -> int:
    """The largest number of evaluations of f for choosing among the laws of `steps` updates."""
    candidates = steps // EVERY + (steps % EVERY > 0)
    return candidates * len(choosing_conditions(problem)) if candidates > 1 else 0


class Answers(Protocol):
    """A law, or anything else that answers conditions [N, n_conditions] with points [N, width]."""

    def answers(self, conditions: np.ndarray) -> np.ndarray: ...


class Judge(Protocol):
    def judge(self, step: int, law: Law) -> None: ...


class Watch:
    """A callback that shows the law to the judges after every ten updates."""

    def __init__(self, law_of: Callable[[Any], Law], *judges: Judge) -> None:
        self._law_of, self._judges = law_of, judges
        self._due = EVERY
        self.seen = 0  # the last version that was shown
        self.last: Law | None = None  # its law

    def __call__(self, report: Report) -> None:
        for version, state in report.looks or [(report.version, report.state)]:
            if version >= self._due:
                self.last = self._law_of(state)
                for judge in self._judges:
                    judge.judge(version, self.last)
                self.seen, self._due = version, version // EVERY * EVERY + EVERY


class Chooser:
    """Keeps the law with the lowest mean of f over the choosing conditions; among equals, the latest.

    A law at whose answers f fails more often is worse, whatever its mean. Evaluates nothing while there is only one law.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._conditions = problem, choosing_conditions(problem)
        self._kept: tuple[Law, int] | None = None
        self._cost: tuple[int, float] | None = None
        self.evaluations = 0

    def judge(self, step: int, law: Law) -> None:
        if self._kept is None:
            self._kept = law, step
            return
        if self._cost is None:
            self._cost = self._costs(self._kept[0])
        cost = self._costs(law)
        if cost <= self._cost:
            self._kept, self._cost = (law, step), cost

    def kept(self) -> tuple[Law, int]:
        """The kept law and its training step. At least one law must have been judged."""
        assert self._kept is not None
        return self._kept

    def _costs(self, law: Law) -> tuple[int, float]:
        self.evaluations += len(self._conditions)
        values = self._problem.evaluate(law.answers(self._conditions).astype(np.float32))
        known = values[np.isfinite(values)]
        return len(values) - len(known), float(known.mean()) if len(known) else np.inf


class Scorer:
    """The published curve: the distance of f at the law's answers from searched optima, over the grid of conditions.

    Raises `RunFailed` if no optimum was found.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._conditions = problem.condition_grid()
        before = problem.evaluations
        self._truth = refined(problem, self._conditions)
        self.evaluations = problem.evaluations - before
        self.mse, self.msle = Scores(), Scores()

    def judge(self, step: int, law: Answers) -> None:
        self.evaluations += len(self._conditions)
        values = self._problem.evaluate(law.answers(self._conditions).astype(np.float32))
        self.mse.add(step, mse(values, self._truth))
        self.msle.add(step, msle(values, self._truth))
