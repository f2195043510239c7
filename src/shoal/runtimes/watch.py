"""Watching for environments that hang: every role counts its environment calls, and a watcher looks at the counts.

Only calls of environments are timed. A role may compute, compile or wait for as long as it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from shoal.core.record import Field, Record

START_TIMEOUT = 120.0  # seconds that imports may take, and each call that makes or restores environments
BUILDING = 2  # the count of a role that has made no call yet; 0 while it still starts


def pulses(roles: int) -> Record:
    """`calls`: odd while an environment is called, even in between, 0 before the role is built. `ready`: it is built."""
    return Record((Field("calls", (roles,), "int64"), Field("ready", (roles,), "int64")))


class Pulse(Protocol):
    """One role's side."""

    def begin(self) -> None:
        """Everything is imported: the role is built from here on."""

    def ready(self) -> None:
        """The role is built: from here on an environment call is a step or a reset."""

    def env(self, inside: bool) -> None:
        """Before (True) and after (False) every environment call: `Context.env`."""


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

    what: str  # what was not done
    seconds: float  # the limit
    setting: str = ""  # that sets it

    def __str__(self) -> str:
        return f"{self.what} within {self.seconds:g} s{self.setting}"


class Watch:
    """The watcher's side. It times by its own clock from the moment at which it first sees a count, so that clocks of
    other machines do not matter, and a watcher that was busy itself takes nobody to hang."""

    def __init__(
        self, views: dict[str, np.ndarray], step_timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls, self._ready = views["calls"], views["ready"]
        self._limit, self._clock = step_timeout, clock
        self._seen: dict[int, tuple[int, float]] = {}  # by role: its count, and since when

    def restart(self, index: int) -> None:
        """A successor starts in this role's place."""
        self._calls[index] = self._ready[index] = 0
        self._seen.pop(index, None)

    def overdue(self, index: int) -> Overdue | None:
        """What this role's environment has not done in time; None while all is well."""
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
