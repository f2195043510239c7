"""HyperBand (Li et al., arXiv 1603.06560): several brackets of Successive Halving, from many short trials to a few long ones."""

from __future__ import annotations

from typing import NamedTuple

from shoal.tuning.halving import SuccessiveHalving, geometric_rungs
from shoal.tuning.scheduler import Decision, Task, at_least


class Rung(NamedTuple):
    trials: int
    units: int  # in total, including those of earlier rungs


def brackets(units: int, eta: int = 3) -> list[list[Rung]]:
    """The published brackets for R = `units`, s from s_max down to 0.

    A bracket starts with n = ceil((s_max + 1) eta^s / (s + 1)) trials; n // eta^i reach its rung i.
    """
    rungs = geometric_rungs(units, eta)
    most = len(rungs) - 1
    made = []
    for s in range(most, -1, -1):
        n = -((-(most + 1) * eta**s) // (s + 1))
        made.append([Rung(n // eta**i, rungs[most - s + i]) for i in range(s + 1)])
    return made


class HyperBand:
    """All brackets at once on the same workers. Without `trials` each bracket runs once; otherwise brackets repeat until `trials`
    configurations are used, and the last bracket is shortened to fit."""

    copies = False

    def __init__(self, *, units: int, eta: int = 3, trials: int | None = None) -> None:
        plan = brackets(units, eta)
        self.units, self.eta = units, eta
        self.trials = sum(bracket[0].trials for bracket in plan) if trials is None else at_least("trials", trials, 1)
        self.brackets: list[SuccessiveHalving] = []
        self._of: list[SuccessiveHalving] = []  # by trial
        while len(self._of) < self.trials:
            bracket = plan[len(self.brackets) % len(plan)]
            count = min(bracket[0].trials, self.trials - len(self._of))
            ends = [rung.units for rung in bracket]
            made = SuccessiveHalving(trials=count, rungs=ends, eta=eta, first=len(self._of))
            self.brackets.append(made)
            self._of += [made] * count

    def next(self) -> Task | None:
        for bracket in self.brackets:
            task = bracket.next()
            if task is not None:
                return task
        return None

    def report(self, trial: int, unit: int, value: float) -> Decision:
        return self._of[trial].report(trial, unit, value)
