"""A study that was run beside the model of its schedule, which is driven by the study's own times.

The model knows one time per unit for each trial, one time to start a trial on a worker and one time until the worker is free
again, all fitted to the measured pieces. Everything else follows from the scheduler: arrival order, evictions, barriers, waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.tuning.events import Course
from shoal.tuning.simulate import Schedule, Trials, simulate
from shoal.tuning.timeline import Piece, pieces_of

if TYPE_CHECKING:
    from shoal.tuning.config import Plan


class Times(NamedTuple):
    """Fitted seconds."""

    units: np.ndarray  # [N] one unit of each trial
    start: float  # a worker begins a trial, new or resumed
    end: float  # a worker becomes free after a trial


class Modelled(NamedTuple):
    measured: float  # seconds up to the last report of the search
    schedule: Schedule
    times: Times

    @property
    def ratio(self) -> float:
        """Simulated seconds over measured ones."""
        return self.schedule.wall / self.measured


def modelled(plan: Plan, course: Course, others: Sequence[Course] = ()) -> Modelled | None:
    """The model of a finished search. None if it does not apply: a population is one program, and the model loses no worker.

    Args:
        others: studies of the same configurations, whose reports complete those that are missing here.
    """
    pieces = search_pieces(course)
    trials = plan.config.trials
    known = {piece.trial for piece in pieces}
    if plan.config.population or known != set(range(trials)) or any(piece.verdict == "lost" for piece in pieces):
        return None
    scheduler = plan.scheduler()
    times = fitted(pieces, trials, restarts=scheduler.copies)
    drawn = Trials(times.units, reported([course, *others], trials, plan.config.phases))
    made = simulate(scheduler, drawn, nodes=plan.config.workers, start=times.start, end=times.end)
    return Modelled(max(piece.stop for piece in pieces), made, times)


def search_pieces(course: Course) -> list[Piece]:
    """The pieces of the search, without the runs that confirm its winners."""
    return [piece for piece in pieces_of(course) if piece.verdict != "tested"]


def fitted(pieces: Sequence[Piece], trials: int, *, restarts: bool = False) -> Times:
    """Times whose sums come nearest to the measured pieces. `restarts`: a trial starts again after each report."""
    from scipy.optimize import nnls

    matrix, seconds, gaps = np.zeros((len(pieces), trials + 1)), np.zeros(len(pieces)), []
    before: dict[int, Piece] = {}  # {slot: its last piece}
    for row, piece in enumerate(pieces):
        last = before.get(piece.slot)
        follows = last is not None and last.trial == piece.trial and last.verdict == "continue"
        matrix[row, piece.trial] = piece.end - piece.begin
        matrix[row, trials] = not follows or restarts
        seconds[row] = piece.stop - piece.start
        if last is not None and not follows:
            gaps.append(piece.start - last.stop)
        before[piece.slot] = piece
    found, _ = nnls(matrix, seconds)
    # The median, because a worker may also have waited for others.
    return Times(found[:trials], float(found[trials]), float(np.median(gaps)) if gaps else 0.0)


def reported(courses: Sequence[Course], trials: int, units: int) -> np.ndarray:
    """Values [N, units] of the first study that has a report; a unit without one has the value of the unit before it."""
    values = np.full((trials, units), math.nan)
    for course in reversed(courses):
        for trial in course.trials.values():
            for report in trial.reports:
                values[trial.number, report.unit - 1] = report.value
    for row in values:
        for unit in range(1, units):
            if math.isnan(row[unit]):
                row[unit] = row[unit - 1]
    return values


def measured_panel(title: str, plan: Plan, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Measured pieces as a panel of `observe.gantt`."""
    shown = [
        {
            "node": piece.slot,
            "trial": piece.trial,
            "start": piece.start,
            "stop": piece.stop,
            "loading": 0.0,
            "saving": 0.0,
            "resumed": piece.resumed,
            "verdict": piece.verdict,
        }
        for piece in pieces
    ]
    return {"title": title, "nodes": plan.config.workers, "pieces": shown}


def simulated_panel(title: str, found: Modelled) -> dict[str, Any]:
    """The model's pieces as a panel of `observe.gantt`."""
    title = f"{title}: {found.schedule.wall:.0f} s, {100 * (found.ratio - 1):+.0f} %"
    return {
        "title": title,
        "nodes": found.schedule.nodes,
        "pieces": [piece._asdict() for piece in found.schedule.pieces],
    }
