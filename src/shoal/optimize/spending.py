"""The loop that spends a budget of evaluations: propose, evaluate, learn; here, or in drivers that never wait for each other."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from shoal.core.errors import BadInput, RunFailed
from shoal.optimize import limits, records
from shoal.optimize.drivers import Drivers
from shoal.optimize.explorer import Explorer
from shoal.optimize.judge import Scorer
from shoal.optimize.problem import Problem
from shoal.optimize.search import Search
from shoal.run.folder import RunFolder

TRIES = 64  # consecutive failures after which f is refused
BATCH = 12  # a batch of proposals is this fraction of the rows
MOST_EACH = 128  # points that a driver is given at a time
AHEAD = 4  # points that are proposed and not evaluated are at most this fraction of the rows, or two for each driver
LOOKS = 2.0  # the curve is scored each time the evaluations have grown by this factor
CHECKS = 8  # evaluations of a stopped run that are made again, to see whether f changed
SAME = 1e-5  # by how much values may differ, in standard deviations of f or of themselves
TRIED = 1e-9  # by how much coordinates may differ after a file
Known = tuple[np.ndarray, np.ndarray, np.ndarray]  # points [n, width], values [n], constraints [G, n]


class Answering(Protocol):
    """Conditions [N, n_conditions] to points [N, width]."""

    def answers(self, conditions: np.ndarray) -> np.ndarray: ...


Look = Callable[[int, Answering], None]  # given the number of evaluations


class Spending:
    """The loop that spends the budget: it proposes points, evaluates f there and fits the surrogate.

    `called` counts the calls of f, and `fresh` the new points that they gave. `known` are the points of a stopped run.
    """

    def __init__(
        self,
        problem: Problem,
        explorer: Explorer,
        allowed: int,
        folder: RunFolder,
        quiet: bool,
        score: bool,
        known: Known | None,
        announce: str,
        drivers: int = 1,
        crash: str | None = None,
        look: Look | None = None,
    ) -> None:
        self._told_of = look
        self._known, self._replayed, self._announce = known, 0, announce
        self.checked = 0  # evaluations that compared f with the stopped run's
        self._score = score
        self.scorer: Scorer | None = None  # made when f has answered for the first time
        self.crash = (
            crash  # of a driver, in this run or before it was stopped: f is not called here once the budget is spent
        )
        self.unscored: str | None = None  # why there is no curve, or no more of it, though there should be
        self.scoring = 0  # evaluations of the curve
        self._problem, self._explorer, self._folder, self._quiet = problem, explorer, folder, quiet
        self._first = problem.evaluations
        self._allowed = allowed
        self.fresh, self.f_s = 0, 0.0
        self._began = time.monotonic()
        self.found = known is not None and bool(np.isfinite(known[1]).any())  # f has given a value in this run
        self._asking_s = 0.0  # seconds that the last proposals took
        self._reason: str | None = None  # of the last failure in a driver
        self._drivers = drivers
        self._design = min(max(4, self._points_of(allowed) // 4), max(16, 10 * len(problem.axes)))
        self._next_look = (
            float(self._design) if drivers > 1 else 0.0
        )  # number of evaluations; one driver looks after a batch

    @property
    def called(self) -> int:
        return self._problem.evaluations - self._first

    @property
    def kept(self) -> int:
        """Evaluations in the run's file."""
        return self.fresh + (0 if self._known is None else len(self._known[1]))

    @property
    def replaying(self) -> bool:
        return self._known is not None and self._replayed < len(self._known[1])

    @property
    def seconds_each(self) -> float:
        return self.f_s / max(1, self.fresh)

    @property
    def room(self) -> int:
        """Points that can be evaluated."""
        return self._points_of(self._allowed - self.called - self._replayed)

    def _points_of(self, evaluations: int) -> int:
        """Points for this number of evaluations. An f called with arrays that raises is called once more for each of them."""
        return evaluations // 2 if self._problem.kind == "numpy" else evaluations

    def check(self) -> None:
        """Evaluate f again at some of the known points, within the budget.

        Raises:
            BadInput: f changed.
        """
        if self._known is None:
            return
        problem, (points, values, found) = self._problem, self._known
        worked = np.flatnonzero(np.isfinite(values))
        picks = worked[np.linspace(0, len(worked) - 1, min(CHECKS, len(worked))).astype(int)] if len(worked) else worked
        picks = picks[: max(0, self._points_of(self._allowed - len(values)))]
        if not len(picks):
            return
        before = problem.evaluations
        now, limits_now = problem.measure(points[picks])
        self.checked = problem.evaluations - before
        for was, new in zip((values, *found), (now, *limits_now), strict=True):
            finite, old = was[np.isfinite(was)], was[picks]
            spread = float(finite.std()) if len(finite) else 0.0  # a constraint may have failed everywhere
            gaps = np.where(np.isfinite(old) | np.isfinite(new), np.abs(new - old), 0.0)
            if problem.noisy:  # values differ anyway, by less than f does over its box
                gaps = np.full(len(old), np.sqrt(np.nanmean(gaps**2)) - spread)
            odd = ~(gaps <= SAME * np.fmax(spread, np.abs(old)))  # `old` is NaN where a constraint failed
            if odd.any():
                i = int(odd.argmax())
                at = ", ".join(f"{n}={records.plain(v)}" for n, v in problem.denormalise(points[picks[i]]).items())
                raise BadInput(
                    f"{problem.name} changed since this run was stopped: at {at} it was {old[i]:.6g} and is {new[i]:.6g};"
                    f" begin a new run, with --data {self._folder.path / records.FILE} if the old values still help"
                )

    def run(self) -> None:
        """Spend the evaluations; score the law now and then.

        Raises:
            BadInput: f failed wherever it was tried.
            RunFailed: nothing was left to evaluate, and nothing is known.
        """
        explorer, problem = self._explorer, self._problem
        record = records.Record(problem, self._folder.path / records.FILE)
        try:
            if self._drivers == 1:
                self._spend(record)
            else:
                self._tell_rest()
                with contextlib.closing(Drivers(problem, self._drivers)) as drivers:
                    self._spend_apart(record, drivers)
        finally:
            record.close()
        self._tell_rest()
        if not np.isfinite(explorer.values).any():
            if not len(explorer.values):
                raise RunFailed(f"{problem.name}: no evaluation is left, and none is known")
            self._refuse()
        limits.refuse(problem, explorer.limits)
        explorer.refresh()
        self._judge()

    def _spend(self, record: records.Record) -> None:
        """Propose some points, evaluate them here, and so on."""
        while self.room > 0:
            points = self._propose(self.room)
            if not len(points):
                break  # all points of a finite problem have been tried
            self._evaluate(points, record)
            self._look_now_and_then()

    def _spend_apart(self, record: records.Record, drivers: Drivers) -> None:
        """Keep every driver busy: propose while points are evaluated, without waiting for the slowest of them."""
        waiting = np.zeros((0, self._problem.width))
        while True:
            each = self._points_each()
            waiting = _begun(drivers, waiting, each)
            pending = np.concatenate([drivers.points, waiting])
            room = min(self.room, self._ahead(each)) - len(pending)
            if room > 0:
                waiting = np.concatenate([waiting, self._propose(room, pending)])
                waiting = _begun(drivers, waiting, each)
            if not len(drivers.points):
                return
            ended = drivers.wait()
            if drivers.crash is not None and self.crash is None:
                self.crash = drivers.crash
                self._folder.amend_config(crash=self.crash)  # a resumed run has to know
            self._problem.evaluations += sum(done.evaluations for done in ended)
            self.f_s += sum(done.seconds for done in ended)
            points, values = np.array([done.point for done in ended]), np.array([done.value for done in ended])
            reasons = [done.reason for done in ended if done.reason]
            found = np.array([done.limits for done in ended]).T
            self._told(points, values, found, record, reasons[-1] if reasons else None)
            self._look_now_and_then()

    def _ahead(self, each: int) -> int:
        """Points that may wait for their values: as many as are evaluated while new ones are proposed, but not too many."""
        known = len(self._explorer.values)
        if known < self._design:
            return self._design
        return min(self._drivers * (each + 1), max(2 * self._drivers, known // AHEAD))

    def _points_each(self) -> int:
        """Points that a driver gets at a time: as many as it evaluates while new ones are proposed; one, unless f is quick."""
        if not self.fresh:
            return 1
        return int(np.clip(math.ceil(self._asking_s / max(self.seconds_each, 1e-6)), 1, MOST_EACH))

    def _propose(self, room: int, pending: np.ndarray | None = None) -> np.ndarray:
        """The next points, at most `room`: the rest of the design, or some that the surrogate proposes."""
        explorer, problem, began = self._explorer, self._problem, time.perf_counter()
        known = len(explorer.values) + (0 if pending is None else len(pending))
        if known < self._design:
            count, asked = self._design - known, explorer.design
        else:
            count, asked = max(1 if not problem.n_conditions else 4, known // BATCH, self._drivers), explorer.ask
        points = asked(min(count, room, TRIES if not np.isfinite(explorer.values).any() else count), pending=pending)
        self._asking_s = time.perf_counter() - began
        return points

    def _look_now_and_then(self) -> None:
        explorer = self._explorer
        if np.isfinite(explorer.values).any() and len(explorer.values) >= self._next_look:
            self._next_look = LOOKS * len(explorer.values)
            self._look()

    def _evaluate(self, points: np.ndarray, record: records.Record) -> None:
        """f at each of them: one by one, and written at once, if each is a call of its own."""
        problem = self._problem
        points = self._replay(points)
        self._say()
        if not len(points):
            return
        for some in np.array_split(points, len(points)) if problem.kind == "python" else [points]:
            began = time.perf_counter()
            values, found = problem.measure(some)
            self.f_s += time.perf_counter() - began
            self._told(some, values, found, record)

    def _told(
        self,
        points: np.ndarray,
        values: np.ndarray,
        found: np.ndarray,
        record: records.Record,
        reason: str | None = None,
    ) -> None:
        """Write and learn new evaluations. Raises `BadInput` if f failed wherever it was tried, or nothing is allowed."""
        explorer = self._explorer
        record.add(points, values, found)
        explorer.tell(points, values, found)
        self.fresh += len(points)
        self.found |= bool(np.isfinite(values).any())
        self._reason = reason or self._reason
        self._say()
        if len(explorer.values) >= TRIES and not np.isfinite(explorer.values).any():
            self._refuse()
        if len(explorer.values) >= max(limits.FEW_TRIES, self._allowed // limits.SHARE):
            limits.refuse(self._problem, explorer.limits)

    def _replay(self, points: np.ndarray) -> np.ndarray:
        """Tell the known values of the first points; the others are left. None is, if the stopped run had other points."""
        if self._known is None or not self.replaying:
            return points
        known, values, found = self._known
        now = slice(self._replayed, self._replayed + len(points))
        n = len(values[now])
        if (np.abs(points[:n] - known[now]) > TRIED).any():  # made by another version
            self._tell_rest()
            return points[:0]
        self._explorer.tell(points[:n], values[now], found[:, now])
        self._replayed += n
        return points[n:]

    def _tell_rest(self) -> None:
        """Tell the known values that have not been told."""
        if self._known is not None and self.replaying:
            points, values, found = (column[..., self._replayed :] for column in (self._known[0].T, *self._known[1:]))
            self._explorer.tell(points.T, values, found)
            self._replayed += len(values)

    def _say(self) -> None:
        """Print the announcement, once there is a value that is allowed."""
        found = np.isfinite(self._explorer.values) & limits.satisfied(self._explorer.limits)
        if self._announce and found.any():
            print(self._announce, file=sys.stderr, flush=True)
            self._announce = ""

    def _refuse(self) -> None:
        reason = self._reason or self._problem.last_error
        n, why = len(self._explorer.values), reason or "it returned a value that is not finite"
        raise BadInput(f"{self._problem.name}: all of {n} evaluations failed: {why}")

    def _look(self) -> None:
        self._explorer.refresh()
        values = np.where(limits.satisfied(self._explorer.limits), self._explorer.values, np.nan)
        if self.replaying or not np.isfinite(values).any():  # optima cannot be searched if nothing is allowed
            return
        if self._told_of is not None:
            self._told_of(len(values), Polished(self._problem, self._explorer))
        if self._drivers == 1:  # else f may end this process, which is known only when the drivers are done
            self._judge()
        if not self._quiet:
            told = f"lowest {np.nanmin(values):.4g}, regret about {self._explorer.regret():.3g}"
            each, left = 1000 * self.seconds_each, self._left_s()
            print(
                f"{self._problem.name}: {len(values):,} evaluations, {told}, {each:.3g} ms an evaluation, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def _left_s(self) -> float:
        """Seconds until the budget is spent, if evaluations and proposals go on as they did."""
        return (time.monotonic() - self._began) / max(1, self.fresh) * (self._allowed - self.called - self._replayed)

    def _judge(self) -> None:
        if self._score and self.crash is not None:
            self.unscored = self.unscored or self.crash
        if not self._score or self.unscored is not None:
            return
        first, at = self._problem.evaluations, len(self._explorer.values)
        try:
            self.scorer = self.scorer or Scorer(self._problem)
            if at not in self.scorer.mse.steps:
                self.scorer.judge(at, Polished(self._problem, self._explorer))
        except RunFailed as error:  # the law needs no searched optima
            self.unscored = str(error)
        took = self._problem.evaluations - first
        self.scoring, self._first = self.scoring + took, self._first + took  # its own account


def _begun(drivers: Drivers, waiting: np.ndarray, each: int) -> np.ndarray:
    """Give the first points [n, width] to idle drivers, at most `each` to one, or its share of them; the points that are left."""
    share = min(each, math.ceil(len(waiting) / drivers.count))
    while drivers.idle and len(waiting):
        drivers.begin(waiting[:share])
        waiting = waiting[share:]
    return waiting


class Polished:
    """The answers that a law with this surrogate would give."""

    def __init__(self, problem: Problem, explorer: Explorer) -> None:
        self._search = Search(problem, explorer.surrogate, limits=explorer.models)

    def answers(self, conditions: np.ndarray) -> np.ndarray:
        return self._search.minima(conditions)
