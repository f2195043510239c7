"""Drivers: processes that evaluate f, each its own points one by one, so that no evaluation waits for a slower one elsewhere.

A driver that f crashes is replaced, and the point that it was at counts as a failure. Only numbers and words travel; nothing is
unpickled here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from shoal.core.errors import BadInput
from shoal.optimize.problem import Problem
from shoal.runtimes.guarded import CannotSend, Guarded, Mark, wait_for_any

PAUSE = 1.0  # seconds between two looks at drivers that say nothing
CRASHES = 8  # of drivers in a row, after which f is refused; with many drivers, two of each


class DriverAnswer(msgspec.Struct, frozen=True):
    """A driver's answer. None where f or a constraint failed."""

    value: float | None
    limits: list[float | None]
    evaluations: int
    seconds: float
    reason: str | None


class Done(NamedTuple):
    """An evaluation that has ended."""

    point: np.ndarray  # [width]
    value: float  # NaN if f failed
    limits: np.ndarray  # [G]
    evaluations: int  # calls of f that it took
    seconds: float
    reason: str | None  # of a failure


class Measure:
    """A driver's answer to a request: points as 64-bit numbers, evaluated one by one."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(self, request: bytes, mark: Mark) -> Iterator[bytes]:
        problem = self._problem
        for point in np.frombuffer(request).reshape(-1, 1, problem.width):
            began, before = time.perf_counter(), problem.evaluations
            values, found = problem.measure(point)
            told = [float(v) if math.isfinite(v) else None for v in (values[0], *found[:, 0])]
            reason = problem.last_error if told[0] is None else None
            took = time.perf_counter() - began
            yield msgspec.json.encode(DriverAnswer(told[0], told[1:], problem.evaluations - before, took, reason))


class Driver:
    """One process, and the points that it has been given and not answered."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.process = Guarded(Measure(problem), timeout=math.inf)
        self._since = 0.0  # when it began with the first of its points
        self.points: list[np.ndarray] = []

    def begin(self, points: Iterable[np.ndarray]) -> None:
        self.points, self._since = list(points), time.perf_counter()
        self.process.ask(np.concatenate(self.points).astype(np.float64).tobytes())

    def look(self) -> list[Done]:
        """The evaluations that have ended since the last call."""
        found = []
        for message in self.process.hear():
            told = msgspec.json.decode(message, type=DriverAnswer)
            value, *limits = (math.nan if v is None else v for v in (told.value, *told.limits))
            point, self._since = self.points.pop(0), time.perf_counter()
            found.append(Done(point, value, np.array(limits), told.evaluations, told.seconds, told.reason))
        return found

    def lost(self) -> Done | None:
        """The evaluation in which the process ended; None if it is alive. What it had not begun goes to its successor.

        Raises:
            BadInput: the problem cannot be loaded there, or calling it failed in Shoal's own code.
        """
        gone = self.process.gone
        if gone is None:
            return None
        self.process.close()
        if gone.kind in ("bug", "unsent"):
            why, refused = gone.detail.splitlines()[-1], f"{BadInput.__module__}.{BadInput.__name__}: "
            if why.startswith(refused):  # what it would have said in this process
                raise BadInput(why.removeprefix(refused))
            raise BadInput(f"{self._problem.name} cannot be evaluated in another process: {why}")
        point, *rest = self.points
        took, none = time.perf_counter() - self._since, np.full(len(self._problem.limits), math.nan)
        self.process, self.points = Guarded(Measure(self._problem), timeout=math.inf), []
        if rest:
            self.begin(rest)
        return Done(point, math.nan, none, 1, took, f"its process {gone.detail}")

    def close(self) -> None:
        self.process.close()


class Drivers:
    """Several drivers. `close` ends their processes, even during an evaluation.

    `crash` is the reason why f must not be called in this process: it has ended a driver's. None until that happens.
    """

    def __init__(self, problem: Problem, count: int) -> None:
        self._problem, self._crashes, self._most = problem, 0, max(CRASHES, 2 * count)
        self.crash: str | None = None
        self._refusal: BadInput | None = None  # raised once all that has ended is handed back
        self._drivers: list[Driver] = []
        try:
            for _ in range(count):
                self._drivers.append(Driver(problem))
        except CannotSend as error:
            self.close()
            raise BadInput(f"{problem.name} cannot be sent to other processes: {error}; use one driver") from None

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()

    @property
    def count(self) -> int:
        return len(self._drivers)

    @property
    def idle(self) -> int:
        """Drivers that have nothing to evaluate."""
        return sum(not driver.points for driver in self._drivers)

    @property
    def points(self) -> np.ndarray:
        """The points that are being evaluated, or wait in a driver: [n, width]."""
        return np.array([p for driver in self._drivers for p in driver.points]).reshape(-1, self._problem.width)

    def begin(self, points: np.ndarray) -> None:
        """Let an idle driver evaluate points [n, width]; at least one must be idle."""
        next(driver for driver in self._drivers if not driver.points).begin(points)

    def wait(self) -> list[Done]:
        """The evaluations that have ended since the last call, at least one. At least one must be running.

        Raises:
            BadInput: f ended several processes in a row, or a driver cannot go on (`lost`). The call before has handed back what
                had ended until then.
        """
        while self._refusal is None:
            found: list[Done] = []
            for driver in self._drivers:
                if driver.points:
                    found += self._ended(driver)
            if self._crashes >= self._most:
                said = f"ended {self._crashes} processes in a row: {found[-1].reason}"
                self._refusal = BadInput(f"{self._problem.name} {said}")
            if found:
                return found
            if self._refusal is None:
                wait_for_any((driver.process for driver in self._drivers if driver.points), PAUSE)
        raise self._refusal

    def _ended(self, driver: Driver) -> list[Done]:
        """The evaluations of a driver that have ended, its crash among them. Notes a refusal."""
        found = driver.look()
        if found:
            self._crashes = 0
            return found
        try:
            lost = driver.lost()
        except BadInput as error:
            self._refusal = error
            return []
        if lost is None:
            return []
        self._crashes += 1
        self.crash = f"{self._problem.name} may end this process, as it has ended a driver: {lost.reason}"
        return [lost]
