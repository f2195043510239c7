"""Protocol of schedulers: a scheduler decides what a free worker does next, and what happens to a trial that reports.

A trial is one configuration, numbered from 0 in the order of sampling. Its training is counted in units (phases). A scheduler
uses neither random numbers nor a clock: its answers are a function of the calls made so far, so a study can be replayed from
its log. `simulate` and real studies use the same schedulers.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal, NamedTuple, Protocol

from shoal.core.errors import BadInput

# continue: the worker continues the same trial. pause: the trial keeps its checkpoint, the worker is free. stop: the trial is
# evicted. complete: it has trained all its units.
Verdict = Literal["continue", "pause", "stop", "complete"]

_ROUNDING = 1e-9  # sqrt(.0841) * 100 is 28.999999999999996, and means 29


class Task(NamedTuple):
    """A piece of training from `begin` units, from the trial's checkpoint if that is above 0, to a report at `end`."""

    trial: int
    begin: int
    end: int


class Decision(NamedTuple):
    """The answer to one report."""

    trial: int
    unit: int  # units done at the report
    verdict: Verdict
    end: int  # where the next report is due if the verdict is `continue`, else `unit`
    stopped: tuple[int, ...] = ()  # paused trials that this report ends
    source: int | None = None  # the trial whose checkpoint and settings replace this one's before it continues


class Scheduler(Protocol):
    """A scheduler. Trials may be called in any order; reports of one trial come in the order of its units."""

    trials: int  # number of configurations
    units: int  # units of a full training
    copies: bool  # a trial may continue from another's checkpoint, so each saves one at every report

    def next(self) -> Task | None:
        """The task of a free worker. None: wait for the next report, or the study is over if no trial is running."""
        ...

    def report(self, trial: int, unit: int, value: float) -> Decision:
        """Decide on a report. Higher values are better; NaN is the worst. A repeated report gets the same decision."""
        ...


Key = tuple[bool, float, int]


def tie(trial: int, unit: int) -> int:
    """A fixed pseudo-random number for (trial, unit): it orders equal values without favouring early or late trials."""
    return int.from_bytes(hashlib.blake2b(b"%d/%d" % (trial, unit), digest_size=8).digest(), "big")


def key(trial: int, unit: int, value: float) -> Key:
    """Sort key of reports, from worst to best. NaN comes first, before minus infinity; no two trials are equal."""
    lost = math.isnan(value)
    return (not lost, 0.0 if lost else value, tie(trial, unit))


def floor(value: float) -> int:
    """Floor of a number that may be a whole number rounded to just below itself."""
    return math.floor(value + _ROUNDING)


def at_least(name: str, value: Any, least: int) -> int:
    """Return `value`, or raise `BadInput` with the rule."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"{name} is {value!r}: expected a whole number, at least {least}")
    return value


class Queue:
    """Trials that have not started, in order."""

    def __init__(self, first: int, count: int) -> None:
        self._next, self._end = first, first + count

    def take(self) -> int | None:
        if self._next == self._end:
            return None
        self._next += 1
        return self._next - 1


class RunAll:
    """No early stopping: each trial does all its units on one worker. With random configurations this is random search."""

    copies = False

    def __init__(self, *, trials: int, units: int) -> None:
        self.trials, self.units = at_least("trials", trials, 1), at_least("units", units, 1)
        self._queue = Queue(0, trials)

    def next(self) -> Task | None:
        trial = self._queue.take()
        return None if trial is None else Task(trial, 0, 1)

    def report(self, trial: int, unit: int, value: float) -> Decision:
        if unit == self.units:
            return Decision(trial, unit, "complete", unit)
        return Decision(trial, unit, "continue", unit + 1)
