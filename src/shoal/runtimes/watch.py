"""Detection of environments that hang: every role counts its environment calls, and a watcher checks the counts.

Only calls of environments are timed. A role may compute, compile or wait as long as it needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from shoal.core.record import Field, Record

START_TIMEOUT = 120.0  # seconds for imports, and for each call that makes or restores environments
BUILDING = 2  # the count of a role that has made no call yet; it is 0 while the role still starts


def pulses(roles: int) -> Record:
    """`calls`: odd during an environment call, even in between, 0 before building begins. `ready`: 1 once the role is built."""
    return Record((Field("calls", (roles,), "int64"), Field("ready", (roles,), "int64")))


class Pulse(Protocol):
    """The role's side of the watch."""

    def begin(self) -> None:
        """Imports are done and building the role begins."""

    def ready(self) -> None:
        """The role is built: from here on an environment call is a step or a reset."""

    def env(self, inside: bool) -> None:
        """Called before (True) and after (False) every environment call, as `Context.env`."""


class MemoryPulse:
    """A pulse in memory that the watcher sees."""

    def __init__(self, views: dict[str, np.ndarray], index: int) -> None:
        self._calls, self._ready, self._index = views["calls"], views["ready"], index

    def begin(self) -> None:
        self._calls[self._index] = BUILDING

    def ready(self) -> None:
        self._ready[self._index] = 1

    def env(self, inside: bool) -> None:
        self._calls[self._index] += 1


class Overdue(NamedTuple):
    """An environment that hangs."""

    what: str  # the action that is overdue
    seconds: float  # the limit
    setting: str = ""  # the option that sets the limit

    def __str__(self) -> str:
        return f"{self.what} within {self.seconds:g} s{self.setting}"


class Watch:
    """The watcher's side. It times by its own clock from the moment at which it first sees a count. Other machines' clocks
    therefore do not matter, and a watcher that was itself busy does not mistake that for a role that hangs."""

    def __init__(
        self, views: dict[str, np.ndarray], step_timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls, self._ready = views["calls"], views["ready"]
        self._limit, self._clock = step_timeout, clock
        self._seen: dict[int, tuple[int, float]] = {}  # by role: (its count, when that count was first seen)

    def restart(self, index: int) -> None:
        """Reset the counts for a successor in this role's place."""
        self._calls[index] = self._ready[index] = 0
        self._seen.pop(index, None)

    def overdue(self, index: int) -> Overdue | None:
        """The call of this role's environment that is overdue; None if there is none."""
        count, now = int(self._calls[index]), self._clock()
        before, since = self._seen.get(index, (-1, now))
        if count != before:
            self._seen[index] = (count, now)
            return None
        if count and count % 2 == 0:
            return None
        ready = bool(self._ready[index])
        most = self._limit if ready else max(START_TIMEOUT, self._limit)
        if now - since <= most:
            return None
        if not count:
            return Overdue("it did not start", most)
        if not ready:
            return Overdue("its environments were not made", most)
        return Overdue("a step of its environment did not return", most, " (--runtime.step-timeout)")
