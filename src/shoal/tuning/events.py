"""Events of a study, the entries of its ledger, and the state that follows from a sequence of them.

The ledger is the only source of truth: a study is continued, replayed and reported from it. `Tasked` and `Reported` are the
calls of the scheduler in their order. `Started` leases a trial to a worker; the lease ends with the worker's report or with
`Lost`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from shoal.tuning.scheduler import Decision, Task, Verdict
from shoal.tuning.spaces import Value

Settings = dict[str, Value]
BASELINE = -1  # stands for a trial in the confirmation: the environment's default settings


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """A driver began or continued the study."""

    at: float  # seconds since 1970
    pid: int
    host: str


class Warmed(msgspec.Struct, frozen=True, tag="warmed"):
    """The warm start from an earlier study; comes before the first task."""

    at: float
    source: str  # the folder of the earlier study
    configurations: list[Settings]  # of trials 0, 1, ...
    informing: int  # earlier trials that the sampler knows
    seeds: list[int] = []  # seeds on which the earlier study, and those before it, tuned and tested


class Tasked(msgspec.Struct, frozen=True, tag="tasked"):
    """The scheduler's answer to a free worker."""

    at: float
    trial: int
    begin: int
    end: int
    settings: Settings  # of the trial
    number: int | None = None  # of the trial in Optuna's study


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A worker took a trial's task: a lease."""

    at: float
    trial: int
    slot: int
    seed: int | None = None  # of a confirmation; None in the search


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """A report and the scheduler's decision on it."""

    at: float
    trial: int
    slot: int
    unit: int
    value: float
    scores: list[float]  # one per seed
    verdict: Verdict
    end: int
    stopped: list[int] = []
    source: int | None = None
    settings: Settings | None = None  # perturbed settings of the source, if there is one
    why: str = ""  # why the value is missing

    @property
    def decision(self) -> Decision:
        return Decision(self.trial, self.unit, self.verdict, self.end, tuple(self.stopped), self.source)


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A worker died or stopped responding; its task returns to the queue."""

    at: float
    trial: int
    slot: int
    why: str
    seed: int | None = None


class Tested(msgspec.Struct, frozen=True, tag="tested"):
    """A configuration, or the `BASELINE`, was trained on a fresh seed."""

    at: float
    trial: int
    seed: int
    slot: int
    value: float
    why: str = ""
    steps: float | None = None  # of the run, when it reached the study's goal
    seconds: float | None = None


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The driver ended: `done`, or `stopped` on request."""

    at: float
    why: str


Event = Opened | Warmed | Tasked | Started | Reported | Lost | Tested | Closed


def encode(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(event)
    return found


def decode(plain: Any) -> Event:
    """Decode an event; `msgspec.ValidationError` for anything else."""
    found: Event = msgspec.convert(plain, Event)
    return found


@dataclasses.dataclass
class Trial:
    """One configuration and its history."""

    number: int
    settings: Settings
    optuna: int | None = None
    unit: int = 0  # units done
    reports: list[Reported] = dataclasses.field(default_factory=list)
    state: str = "waiting"  # waiting, running, paused, stopped, complete
    task: Task | None = None  # not reported yet
    losses: int = 0
    copies: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # (unit, source): PBT's lineage
    origin: tuple[tuple[int, int], ...] = ()  # the source's own `copies` when this trial copied it last

    @property
    def value(self) -> float:
        """The newest score; NaN before the first."""
        return self.reports[-1].value if self.reports else math.nan

    @property
    def spread(self) -> float | None:
        """The standard deviation of the newest score over the seeds; None for a single seed."""
        scores = self.reports[-1].scores if self.reports else []
        if len(scores) < 2:
            return None
        mean = math.fsum(scores) / len(scores)
        return math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1))


class Course:
    """The state of a study after the events so far."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = []
        self.trials: dict[int, Trial] = {}
        self.tests: dict[int, dict[int, float]] = {}  # {trial: {seed: score}}
        self.solved: dict[int, dict[int, tuple[float, float]]] = {}  # {trial: {seed: steps and seconds to the goal}}
        self.warmed: Warmed | None = None
        self.done = False
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Tasked):
            trial = self.trials.setdefault(event.trial, Trial(event.trial, event.settings, event.number))
            trial.task, trial.state = Task(event.trial, event.begin, event.end), "waiting"
        elif isinstance(event, Started) and event.seed is None:
            self.trials[event.trial].state = "running"
        elif isinstance(event, Lost) and event.seed is None:
            trial = self.trials[event.trial]
            trial.losses, trial.state = trial.losses + 1, "waiting"
        elif isinstance(event, Reported):
            self._report(event)
        elif isinstance(event, Tested):
            self.tests.setdefault(event.trial, {})[event.seed] = event.value
            if event.steps is not None and event.seconds is not None:
                self.solved.setdefault(event.trial, {})[event.seed] = event.steps, event.seconds
        elif isinstance(event, Warmed):
            self.warmed = event
        elif isinstance(event, Closed):
            self.done = event.why == "done"

    def given(self, trial: int) -> Settings | None:
        """The trial's configuration from a warm start; None if the sampler draws it."""
        first = [] if self.warmed is None else self.warmed.configurations
        return first[trial] if trial < len(first) else None

    def _report(self, event: Reported) -> None:
        trial = self.trials[event.trial]
        trial.reports.append(event)
        trial.unit = event.unit
        trial.task = Task(event.trial, event.unit, event.end) if event.verdict == "continue" else None
        ends = {"continue": "running", "pause": "paused", "stop": "stopped", "complete": "complete"}
        trial.state = ends[event.verdict]
        if event.source is not None:
            assert event.settings is not None
            trial.settings, trial.origin = event.settings, tuple(self.trials[event.source].copies)
            trial.copies.append((event.unit, event.source))
        for other in event.stopped:
            self.trials[other].state = "stopped"

    @property
    def open_tasks(self) -> list[Trial]:
        """Trials with an unreported task, with which a continued study begins."""
        return [trial for trial in self.trials.values() if trial.task is not None]

    def ranked(self) -> list[Trial]:
        """Trials with a score, best first: by phases trained, then by score."""
        scored = [trial for trial in self.trials.values() if not math.isnan(trial.value)]
        return sorted(scored, key=lambda trial: (-trial.unit, -trial.value, trial.number))
