"""Pinning of roles to cores. Runs on one machine share its cores: a core is claimed by one run at a time.

EnvPool's hand-off is faster on one core, and two runs on the same core are slower than on two. A role therefore gets a core
that no other run has claimed, or is left to the system's scheduler if there is none.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Protocol

NAME = "\0shoal-core-{}"  # in the abstract namespace: no file, and the kernel frees it when its holder dies


class Held(Protocol):
    """A claimed core, held until this is closed."""

    def close(self) -> None: ...


def claim(core: int) -> Held | None:
    """Claim a core until the returned object is closed; None if another run holds it."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(NAME.format(core))
    except OSError:
        held.close()
        return None
    return held


class Cores:
    """The cores that a run has claimed among those it may use."""

    def __init__(self, allowed: Iterable[int] | None = None, claim: Callable[[int], Held | None] = claim) -> None:
        self._allowed = sorted(_allowed() if allowed is None else allowed)
        self._claim = claim
        self._held: dict[int, Held] = {}

    def seat(self, wish: int | None) -> int | None:
        """A core for a role that prefers number `wish` of the allowed ones; None if it is better left unpinned.

        Takes the first free core from there on. Once this run holds all of them, its further roles share them.
        """
        count = len(self._allowed)
        if wish is None or count < 2:
            return None
        for core in (self._allowed[(wish + i) % count] for i in range(count)):
            if core not in self._held and (held := self._claim(core)) is not None:
                self._held[core] = held
                return core
        return self._allowed[wish % count] if len(self._held) == count else None

    def close(self) -> None:
        for held in self._held.values():
            held.close()
        self._held.clear()


def _allowed() -> set[int]:
    """Cores that this process may use; none if the platform cannot pin or claim."""
    if sys.platform != "linux":
        return set()
    return os.sched_getaffinity(0)


def pin(core: int | None) -> None:
    """Keep the calling thread on `core`. Threads that it makes stay there too."""
    if core is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {core})
