"""Adjustment of the numbers of roles by hill climbing on the training rate, and the machine's load."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.core.ports import NOT_YET, Board, Op
from shoal.core.program import Steps


class Numbers(NamedTuple):
    """Numbers of working roles; the others wait until they are needed."""

    trainers: int
    predictors: int
    agents: int


class Climber:
    """Changes each number by at most one per step; a step is undone at once if the rate fell.

    The rate drifts as policies change, so the reference rate is measured again before each step.
    """

    def __init__(self, start: Numbers, most: Numbers, seed: int) -> None:
        self.numbers, self._most = start, most
        self._random = random.Random(seed)
        self._before: tuple[Numbers, float] | None = None  # while a step is on trial

    def judge(self, rate: float) -> Numbers:
        """Judge the current numbers by their `rate`. Returns the numbers to use next."""
        if self._before is None:
            self._before = self.numbers, rate
            self.numbers = self._step()
        else:
            settled, reference = self._before
            if rate < reference:
                self.numbers = settled
            self._before = None
        return self.numbers

    def _step(self) -> Numbers:
        if all(most == 1 for most in self._most):
            return self.numbers
        while True:
            moved = (
                max(1, min(most, now + self._random.randint(-1, 1)))
                for now, most in zip(self.numbers, self._most, strict=True)
            )
            if (step := Numbers(*moved)) != self.numbers:
                return step


class Control:
    """The current numbers of working roles, read from the main role's board."""

    def __init__(self, board: Board, start: Numbers) -> None:
        self._board, self._version = board, 0
        self.numbers = start

    def refresh(self) -> Numbers:
        if self._changed() is not NOT_YET:
            self._version, vector = self._board.latest()
            self.numbers = Numbers(*(int(n) for n in vector))
        return self.numbers

    def until(self, active: Callable[[Numbers], bool]) -> Steps:
        """Wait until `active(numbers)` is true."""
        while not active(self.refresh()):
            yield Op(self._changed, self._board.read(self._version + 1).wait, "its turn to work")

    def _changed(self) -> Any:
        try:
            return self._board.read(self._version + 1).attempt()
        except LookupError:  # more than one change since
            return True


def say(board: Board, version: int, numbers: Numbers) -> None:
    """Publish `numbers`; versions count from 1."""
    board.publish(version, np.array(numbers, np.float32))


class CoreLoad:
    """The number of busy cores of the machine since the last call; None if the system does not report it (not Linux)."""

    def __init__(self, path: Path = Path("/proc/stat")) -> None:
        self._path = path
        self._last = self._read()

    def busy(self) -> float | None:
        now = self._read()
        if now is None or self._last is None:
            return None
        cores, (idle, total) = now[0], (now[1] - self._last[1], now[2] - self._last[2])
        self._last = now
        return cores * (1.0 - idle / total) if total else None

    def _read(self) -> tuple[int, int, int] | None:
        """(cores, idle ticks, all ticks)."""
        if not self._path.exists():
            return None
        lines = self._path.read_text().splitlines()
        ticks = [int(word) for word in lines[0].split()[1:9]]
        cores = sum(line.startswith("cpu") for line in lines) - 1
        return cores, ticks[3] + ticks[4], sum(ticks)
