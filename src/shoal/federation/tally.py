"""Counts of a child that pushes over UDP, where any push and any answer may be lost: its steps and episodes count once.

A push carries the totals of its connection, and the parent adds what exceeds those of the last push that it applied: each
push makes up for the lost ones before it. The next connection begins with what the parent has not counted by then, as the
sequence number in its welcome shows.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

KEPT = 4096  # pushes without an answer that are remembered for the next connection; older ones are taken for applied


class Totals(NamedTuple):
    """Counts since the beginning of a connection."""

    steps: int = 0
    episodes: int = 0

    def since(self, earlier: Totals) -> Totals:
        """What was added to the `earlier` totals."""
        return Totals(self.steps - earlier.steps, self.episodes - earlier.episodes)


class Tally:
    """The child's side. Outlives connections."""

    def __init__(self) -> None:
        self._now = self._before = Totals()  # with the last push, and without it
        self._counted = Totals()  # those of the last push that the parent is known to have applied
        self._open: deque[tuple[int, Totals]] = deque()  # (sequence number, totals) of later pushes

    def push(self, sequence: int, steps: int, episodes: int) -> Totals:
        """Add the counts of a push; the totals that it carries."""
        self._before = self._now
        self._now = Totals(self._now.steps + steps, self._now.episodes + episodes)
        self._open.append((sequence, self._now))
        if len(self._open) > KEPT:
            self._counted = self._open.popleft()[1]
        return self._now

    def applied(self, sequence: int) -> None:
        """Note that the parent has applied this push: its totals are counted."""
        while self._open and self._open[0][0] <= sequence:
            self._counted = self._open.popleft()[1]

    def refused(self) -> None:
        """Take back the last push, whose counts will be those of a later one."""
        self._open.pop()
        self._now = self._before

    def joined(self, sequence: int) -> None:
        """Begin a connection, where push `sequence` was the last to be applied: what is not counted is carried over."""
        self.applied(sequence)
        self._now = self._now.since(self._counted)
        self._counted = Totals()
        self._open.clear()
