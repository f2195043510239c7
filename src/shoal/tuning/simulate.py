"""Schedules without training: a discrete-event model of any scheduler on n nodes.

A trial has a speed and a value to report after each unit, drawn beforehand, so that all schedulers see the same trials. The time
of a unit is lognormal with mean 1 and spread `sigma`, one draw per trial: a slow configuration (a longer unroll, a wider net) is
slow in all its phases. `checkpoint` is the time to save or to load one. A pause saves; a node loads if it resumes a trial that
it no longer holds, or if its trial copies another. `start` and `end` are a worker's times to begin a trial and to become free
after one, as in real studies, whose trials are processes.

    metric          what a trial reports
    constant        its own quality in every phase: ranks never change
    exchangeable    a fresh draw in every phase: what HyperTrick's expectation assumes
    slow            its own quality, and better trials are slower: good trials arrive last
    walk            the sum of one draw per unit: curves cross, and early reports say little about the final score
"""

from __future__ import annotations

import heapq
import itertools
from typing import Literal, NamedTuple

import numpy as np

from shoal.core.errors import BadInput
from shoal.tuning.scheduler import Decision, Scheduler, Task, at_least

Metric = Literal["constant", "exchangeable", "slow", "walk"]
METRICS: tuple[Metric, ...] = ("constant", "exchangeable", "slow", "walk")


class Trials(NamedTuple):
    """Speeds and values of all trials, drawn beforehand."""

    times: np.ndarray  # [N] time of one unit
    values: np.ndarray  # [N, units] reported values


class Piece(NamedTuple):
    """A stretch of training of one trial on one node, up to a report: a bar of the Gantt chart."""

    node: int
    trial: int
    begin: int  # units done before and after
    end: int
    start: float  # time
    stop: float
    loading: float  # part of that time, at its start
    saving: float  # after `stop`
    resumed: bool  # a context switch: the node had to load the checkpoint of an earlier piece
    value: float  # as reported at `stop`
    verdict: str  # on that report; also `stop` if a later report of another trial ended this one's pause


class Schedule(NamedTuple):
    nodes: int
    trials: int
    units: int
    pieces: list[Piece]  # in the order of their reports
    winner: float  # the best value that any trial would have after all units

    @property
    def wall(self) -> float:
        """Time of the last report."""
        return max(piece.stop for piece in self.pieces)

    @property
    def work(self) -> int:
        """Number of trained units."""
        return sum(piece.end - piece.begin for piece in self.pieces)

    @property
    def alpha(self) -> float:
        """Completion rate: trained units as a share of the units of all trials trained to the end."""
        return self.work / (self.trials * self.units)

    @property
    def switches(self) -> int:
        return sum(piece.resumed for piece in self.pieces)

    @property
    def idle(self) -> float:
        """Share of the nodes' time without training."""
        trained = sum(piece.stop - piece.start - piece.loading for piece in self.pieces)
        return 1 - trained / (self.nodes * self.wall)

    @property
    def to_best(self) -> float:
        """Time at which the best value was reported."""
        return max(self.pieces, key=lambda piece: (piece.value, -piece.stop)).stop

    @property
    def found(self) -> float:
        """1 if the trial with the best final value was trained to the end, else 0."""
        return float(any(piece.verdict == "complete" and piece.value >= self.winner for piece in self.pieces))


def draw_trials(count: int, units: int, *, sigma: float, metric: Metric = "constant", seed: int = 0) -> Trials:
    """Draw trials. `BadInput` for a spread below 0 or an unknown metric."""
    at_least("trials", count, 1), at_least("phases", units, 1)
    if not 0 <= sigma < 10:
        raise BadInput(f"sigma is {sigma!r}: expected a number from 0 to 10")
    if metric not in METRICS:
        raise BadInput(f"metric is {metric!r}: expected one of {', '.join(METRICS)}")
    random = np.random.default_rng(seed)
    times = np.exp(sigma * random.standard_normal(count) - sigma**2 / 2)
    if metric in ("exchangeable", "walk"):
        values = random.standard_normal((count, units))
        return Trials(times, values if metric == "exchangeable" else values.cumsum(axis=1))
    quality = random.standard_normal(count)
    if metric == "slow":
        times = np.sort(times)[np.argsort(np.argsort(quality))]
    return Trials(times, np.repeat(quality[:, None], units, axis=1))


class Costs(NamedTuple):
    """Times without training."""

    checkpoint: float = 0.0  # to save a checkpoint, and to load one
    start: float = 0.0  # to begin a trial on a node, new or resumed
    end: float = 0.0  # until a node is free after a trial


def simulate(
    scheduler: Scheduler, trials: Trials, *, nodes: int, checkpoint: float = 0.0, start: float = 0.0, end: float = 0.0
) -> Schedule:
    """Run `scheduler` to its end on `nodes` nodes."""
    at_least("nodes", nodes, 1)
    costs = Costs(checkpoint, start, end)
    for name, value in costs._asdict().items():
        if not 0 <= value < float("inf"):
            raise BadInput(f"{name} is {value!r}: expected a time, at least 0")
    return _Model(scheduler, trials, nodes, costs).run()


class _Running(NamedTuple):
    task: Task
    start: float
    loading: float
    resumed: bool


class _Model:
    def __init__(self, scheduler: Scheduler, trials: Trials, nodes: int, costs: Costs) -> None:
        self._scheduler, self._trials, self._costs = scheduler, trials, costs
        self._nodes = nodes
        self._idle = set(range(nodes))
        self._held: dict[int, int] = {}  # {trial: the node that holds it in memory}
        self._memory: dict[int, int] = {}  # {node: the trial that it holds}
        self._running: dict[int, _Running] = {}
        self._copying: set[int] = set()  # trials that load another's checkpoint before they continue
        self._as: dict[int, int] = {}  # {trial: the copied trial whose values it now has}
        self._order = itertools.count()
        self._events: list[tuple[float, int, int]] = []  # (time, order, node)
        self._pieces: list[Piece] = []
        self._last: dict[int, int] = {}  # {trial: index of its last piece}

    def run(self) -> Schedule:
        self._fill(0.0)
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, _, node = heapq.heappop(self._events)
                if node in self._running:
                    self._report(node, now)
                else:
                    self._idle.add(node)  # after saving
            self._fill(now)
        s = self._scheduler
        return Schedule(self._nodes, s.trials, s.units, self._pieces, float(self._trials.values[: s.trials, -1].max()))

    def _fill(self, now: float) -> None:
        """Give tasks to idle nodes; a trial prefers the node that still holds it, if that one is idle."""
        tasks: list[Task] = []
        while len(tasks) < len(self._idle):
            task = self._scheduler.next()
            if task is None:
                break
            tasks.append(task)
        elsewhere = []
        for task in tasks:
            home = self._held.get(task.trial)
            if home in self._idle:
                self._start(home, task, now)
            else:
                elsewhere.append(task)
        free = sorted(self._idle)[: len(elsewhere)] if elsewhere else []
        for node, task in zip(free, elsewhere, strict=True):
            self._start(node, task, now)

    def _start(self, node: int, task: Task, now: float, *, continues: bool = False) -> None:
        resumed = task.begin > 0 and self._held.get(task.trial) != node
        copied = task.trial in self._copying
        loading = self._costs.checkpoint if resumed or copied else 0.0
        if not continues or self._scheduler.copies:
            loading += self._costs.start
        self._copying.discard(task.trial)
        self._idle.discard(node)
        self._held.pop(self._memory.get(node, -1), None)
        self._held[task.trial], self._memory[node] = node, task.trial
        self._running[node] = _Running(task, now, loading, resumed)
        stop = now + loading + (task.end - task.begin) * float(self._trials.times[task.trial])
        heapq.heappush(self._events, (stop, next(self._order), node))

    def _report(self, node: int, now: float) -> None:
        task, start, loading, resumed = self._running.pop(node)
        value = float(self._trials.values[self._as.get(task.trial, task.trial), task.end - 1])
        decision = self._scheduler.report(task.trial, task.end, value)
        saving = self._costs.checkpoint if decision.verdict == "pause" else 0.0
        if decision.verdict != "continue":
            saving += self._costs.end
        end = (task.begin, task.end, start, now, loading, saving, resumed, value, decision.verdict)
        for trial in decision.stopped:
            at = self._last[trial]
            self._pieces[at] = self._pieces[at]._replace(verdict="stop")
        self._last[task.trial] = len(self._pieces)
        self._pieces.append(Piece(node, task.trial, *end))
        self._copy(decision)
        if decision.verdict == "continue":
            self._start(node, Task(task.trial, task.end, decision.end), now, continues=True)
        elif saving:
            heapq.heappush(self._events, (now + saving, next(self._order), node))
        else:
            self._idle.add(node)

    def _copy(self, decision: Decision) -> None:
        if decision.source is not None:
            self._copying.add(decision.trial)
            self._as[decision.trial] = self._as.get(decision.source, decision.source)
