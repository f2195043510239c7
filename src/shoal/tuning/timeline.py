"""Timeline of a study: which worker trained which trial, how much was trained, and when the best score was found.

Times are seconds during which a driver worked: the clock stands still between a stop and the resumption.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from shoal.tuning.events import Course, Event, Lost, Opened, Reported, Started, Tested

if TYPE_CHECKING:
    from shoal.tuning.config import Plan


class Piece(NamedTuple):
    """A stretch of training on one worker up to a report or a loss; `verdict` is lost, tested, or the scheduler's."""

    slot: int
    trial: int
    begin: int
    end: int
    start: float
    stop: float
    resumed: bool  # a context switch: the worker had to load a checkpoint
    value: float
    verdict: str


def clock(events: list[Event]) -> list[float]:
    """The time of each event."""
    found: list[float] = []
    now, before = 0.0, None
    for event in events:
        if before is not None and not isinstance(event, Opened):
            now += max(0.0, event.at - before)
        before = event.at
        found.append(now)
    return found


def pieces_of(course: Course) -> list[Piece]:
    """Stretches of training, in the order of their ends, without those that a driver's end cut off."""
    pieces: list[Piece] = []
    running: dict[int, tuple[float, int, bool]] = {}  # {slot: (start, begin, resumed)}
    units: dict[int, int] = {}
    for at, event in zip(clock(course.events), course.events, strict=True):
        if isinstance(event, Opened):
            running.clear()
        elif isinstance(event, Started):
            begin = 0 if event.seed is not None else units.get(event.trial, 0)
            running[event.slot] = (at, begin, begin > 0)
        elif isinstance(event, Reported | Tested | Lost) and event.slot in running:
            start, begin, resumed = running.pop(event.slot)
            end = event.unit if isinstance(event, Reported) else begin
            value = math.nan if isinstance(event, Lost) else event.value
            verdict = (
                event.verdict if isinstance(event, Reported) else "tested" if isinstance(event, Tested) else "lost"
            )
            pieces.append(Piece(event.slot, event.trial, begin, end, start, at, resumed, value, verdict))
        if isinstance(event, Reported):  # also of a trial that was lost too often, whose worker has no lease
            units[event.trial] = event.unit
            if event.verdict == "continue":
                running[event.slot] = (at, event.unit, False)
            for other in event.stopped:
                last = max(i for i, piece in enumerate(pieces) if piece.trial == other)
                pieces[last] = pieces[last]._replace(verdict="stop")
    return pieces


def alpha_of(plan: Plan, course: Course) -> float:
    return sum(trial.unit for trial in course.trials.values()) / (plan.config.trials * plan.config.phases)


def seconds_of(course: Course) -> float:
    """Seconds from the first event to the last."""
    return clock(course.events)[-1] if course.events else 0.0


def to_best_of(course: Course) -> float | None:
    """Time at which the best trial first reported its highest score; None without a score."""
    ranked = course.ranked()
    if not ranked:
        return None
    return next(
        at
        for at, event in zip(clock(course.events), course.events, strict=True)
        if isinstance(event, Reported) and event.trial == ranked[0].number and event.value == ranked[0].value
    )
