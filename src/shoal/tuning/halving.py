"""Successive Halving (Jamieson and Talwalkar, arXiv 1502.07943) and its asynchronous form, ASHA (Li et al., arXiv 1810.05934).

Both have rungs: numbers of units at which trials are compared. Halving waits until a rung is full, keeps the best 1/eta and stops
the others, so it needs barriers, pauses and resumption. ASHA promotes a trial as soon as it is among the best 1/eta of the
reports that a rung has so far; it never waits, and may promote a trial that a full rung would have stopped. A NaN report counts
in its rung; its trial stops at once and is never promoted.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Sequence

from shoal.core.errors import BadInput
from shoal.tuning.scheduler import Decision, Key, Queue, Task, at_least, key


def equal_rungs(units: int) -> tuple[int, ...]:
    """A rung after every unit, as in the slides' figure."""
    return tuple(range(1, at_least("units", units, 1) + 1))


def geometric_rungs(units: int, eta: int) -> tuple[int, ...]:
    """The published rungs ..., R / eta^2, R / eta, R, in whole units."""
    at_least("units", units, 1), at_least("eta", eta, 2)
    found = [units]
    while found[0] >= eta:
        found.insert(0, units // eta ** len(found))
    return tuple(found)


class SuccessiveHalving:
    """One bracket. `first` is the number of its first trial if there are several brackets."""

    copies = False

    def __init__(self, *, trials: int, rungs: Sequence[int], eta: int = 2, first: int = 0) -> None:
        self.trials, self.eta = at_least("trials", trials, 1), at_least("eta", eta, 2)
        self.rungs = _checked(rungs)
        self.units = self.rungs[-1]
        self._answered: dict[tuple[int, int], Decision] = {}
        self._rung = 0
        self._waiting = deque(range(first, first + trials))
        self._open, self._keep = trials, self._next_keep(trials)  # reports still missing, trials to promote
        self._resting: list[tuple[Key, int]] = []

    def next(self) -> Task | None:
        if not self._waiting:
            return None
        begin = self.rungs[self._rung - 1] if self._rung else 0
        return Task(self._waiting.popleft(), begin, self.rungs[self._rung])

    def report(self, trial: int, unit: int, value: float) -> Decision:
        known = self._answered.get((trial, unit))
        if known is None:
            known = self._answered[trial, unit] = self._enter(trial, unit, value)
        return known

    def _enter(self, trial: int, unit: int, value: float) -> Decision:
        if unit != self.rungs[self._rung]:
            raise BadInput(f"trial {trial} reports {unit} units: its rung ends at {self.rungs[self._rung]}")
        if unit == self.units:
            return Decision(trial, unit, "complete", unit)
        self._open -= 1
        if not math.isnan(value):
            self._resting.append((key(trial, unit, value), trial))
        if self._open:
            return Decision(trial, unit, "stop" if math.isnan(value) else "pause", unit)
        ranked = [who for _, who in sorted(self._resting, reverse=True)]
        kept, gone = ranked[: self._keep], ranked[self._keep :]
        self._rung, self._open, self._keep, self._resting = self._rung + 1, len(kept), self._next_keep(len(kept)), []
        self._waiting.extend(kept)
        others = tuple(sorted(who for who in gone if who != trial))
        return Decision(trial, unit, "pause" if trial in kept else "stop", unit, stopped=others)

    def _next_keep(self, trials: int) -> int:
        return max(1, trials // self.eta)


class ASHA:
    """Promotion-type ASHA: a free worker takes the best promotable trial, from the highest rung down, or a new one."""

    copies = False

    def __init__(self, *, trials: int, rungs: Sequence[int], eta: int = 2) -> None:
        self.trials, self.eta = at_least("trials", trials, 1), at_least("eta", eta, 2)
        self.rungs = _checked(rungs)
        self.units = self.rungs[-1]
        self._queue = Queue(0, trials)
        self._seen: list[list[Key]] = [[] for _ in self.rungs]  # worst first
        self._resting: list[list[tuple[Key, int]]] = [[] for _ in self.rungs]  # not promoted yet, worst first
        self._answered: set[tuple[int, int]] = set()

    def next(self) -> Task | None:
        for rung in reversed(range(len(self.rungs) - 1)):
            resting, seen = self._resting[rung], self._seen[rung]
            if resting:
                best, trial = resting[-1]
                better = len(seen) - bisect.bisect_right(seen, best)
                if better < len(seen) // self.eta:
                    resting.pop()
                    return Task(trial, self.rungs[rung], self.rungs[rung + 1])
        trial_ = self._queue.take()
        return None if trial_ is None else Task(trial_, 0, self.rungs[0])

    def report(self, trial: int, unit: int, value: float) -> Decision:
        if unit not in self.rungs:
            raise BadInput(f"trial {trial} reports {unit} units: rungs end at {', '.join(map(str, self.rungs))}")
        rung = self.rungs.index(unit)
        if (trial, unit) not in self._answered:
            self._answered.add((trial, unit))
            own = key(trial, unit, value)
            bisect.insort(self._seen[rung], own)
            if not math.isnan(value):
                bisect.insort(self._resting[rung], (own, trial))
        if unit == self.units:
            return Decision(trial, unit, "complete", unit)
        return Decision(trial, unit, "stop" if math.isnan(value) else "pause", unit)


def _checked(rungs: Sequence[int]) -> tuple[int, ...]:
    if not rungs or list(rungs) != sorted({*rungs}) or rungs[0] < 1:
        raise BadInput(f"rungs are {tuple(rungs)}: expected increasing whole numbers, the first at least 1")
    return tuple(rungs)
