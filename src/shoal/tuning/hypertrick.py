"""HyperTrick (Heinrich and Frosio, arXiv 1902.02725): early stopping without barriers, preemption or resumption.

    k = len(list_p), own report included
    k <= N (1 - sqrt r) (1 - r)^p     the trial continues (data collection)
    rank from the worst <= sqrt(r) k  it is evicted (selection)

for N trials, phases p = 0..Np-1 and an eviction rate r. A decision depends only on the reports before it, so a log of reports
in their order of arrival determines every decision (`replay`).

Deviations, all where the paper is silent: equal values are ranked by a hash of (trial, phase), since on an all-tied metric
`<` evicts no trial and `<=` evicts all; no trial is evicted after the last phase; a NaN report evicts its trial at once, in data
collection too, and counts in the list; of several reports for one (trial, phase) the first counts. The slides print (1 - r^P)
for (1 - r)^p.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shoal.core.errors import BadInput
from shoal.tuning.scheduler import Decision, Key, Queue, Task, at_least, floor, key


class Report(NamedTuple):
    """One entry of the log. Higher values are better."""

    trial: int
    phase: int  # from 0
    value: float


class HyperTrick:
    """The rule with its state, one sorted list per phase. As a scheduler, it gives a freed worker the next configuration."""

    copies = False

    def __init__(self, *, trials: int, phases: int, eviction: float) -> None:
        self.trials, self.units = at_least("trials", trials, 1), at_least("phases", phases, 1)
        if not 0 < eviction < 1:
            raise BadInput(f"eviction is {eviction!r}: expected a number between 0 and 1, both excluded")
        self.eviction = eviction
        self._queue = Queue(0, trials)
        self._phases: list[list[Key]] = [[] for _ in range(phases)]
        self._evicted: dict[tuple[int, int], bool] = {}

    def evict(self, trial: int, phase: int, value: float) -> bool:
        """Add a report; whether it evicts its trial. A second report of the same phase changes nothing."""
        check_phase(trial, phase, self.units)
        if (trial, phase) not in self._evicted:
            self._evicted[trial, phase] = self._enter(trial, phase, value)
        return self._evicted[trial, phase]

    def _enter(self, trial: int, phase: int, value: float) -> bool:
        seen, own = self._phases[phase], key(trial, phase, value)
        rank = bisect.bisect_left(seen, own)  # number of worse reports
        seen.insert(rank, own)
        if phase == self.units - 1:
            return False
        if math.isnan(value):
            return True
        if len(seen) <= quota(self.trials, phase, self.eviction):
            return False
        return rank + 1 <= floor(math.sqrt(self.eviction) * len(seen))

    def next(self) -> Task | None:
        trial = self._queue.take()
        return None if trial is None else Task(trial, 0, 1)

    def report(self, trial: int, unit: int, value: float) -> Decision:
        if self.evict(trial, unit - 1, value):
            return Decision(trial, unit, "stop", unit)
        if unit == self.units:
            return Decision(trial, unit, "complete", unit)
        return Decision(trial, unit, "continue", unit + 1)


def decide(reports: Sequence[Report], *, trials: int, phases: int, eviction: float) -> bool:
    """Whether the last of `reports` evicts its trial: the rule as a function of a prefix of the log.

    Takes time in proportion to the prefix; `HyperTrick` keeps sorted lists instead.
    """
    own = reports[-1]
    first: dict[int, float] = {}
    for trial, phase, value in reports:
        if phase == own.phase:
            first.setdefault(trial, value)
            if trial == own.trial:
                break  # reports after the trial's first one do not matter
    if own.phase == phases - 1:
        return False
    if math.isnan(first[own.trial]):
        return True
    if len(first) <= quota(trials, own.phase, eviction):
        return False
    mine = key(own.trial, own.phase, first[own.trial])
    rank = sum(key(trial, own.phase, value) <= mine for trial, value in first.items())
    return rank <= floor(math.sqrt(eviction) * len(first))


def replay(reports: Iterable[Report], *, trials: int, phases: int, eviction: float) -> list[bool]:
    """Replay a log: for every report, whether it evicted its trial."""
    rule = HyperTrick(trials=trials, phases=phases, eviction=eviction)
    return [rule.evict(*report) for report in reports]


def check_phase(trial: int, phase: int, phases: int) -> None:
    if not 0 <= phase < phases:
        raise BadInput(f"trial {trial} reports phase {phase}: phases run from 0 to {phases - 1}")


def quota(trials: int, phase: int, eviction: float) -> int:
    """Number of trials that pass `phase` before selection begins."""
    return floor(trials * (1 - math.sqrt(eviction)) * (1 - eviction) ** phase)


class Completion(NamedTuple):
    """Expectation and bounds of alpha, the share of the N Np units that is trained."""

    expected: float  # for exchangeable metrics; others train more
    printed_floor: float  # the paper's lower bound, which is never reached: every trial trains phase 0
    floor: float  # its correction, for many trials
    least: float  # the bound for exactly this number of trials, reached if every report is worse than all before it


def completion(*, trials: int, phases: int, eviction: float) -> Completion:
    """The paper's expectation of alpha, and its bounds. The upper bound is 1: every report is better than all before it."""
    r, root = eviction, math.sqrt(eviction)
    expected = (1 - (1 - r) ** phases) / (r * phases)
    corrected = (1 + (1 - root) * (1 - (1 - r) ** (phases - 1)) / r) / phases
    few = next(k for k in itertools.count() if floor(root * (k + 1)) > 0)  # up to this many reports evict no trial
    alive = done = trials
    for phase in range(phases - 1):
        alive = min(alive, max(few, quota(trials, phase, r)))
        done += alive
    return Completion(expected, (1 - root) * expected, corrected, done / (trials * phases))
