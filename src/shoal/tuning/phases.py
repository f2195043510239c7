"""Phases of a trial (`200episodes`, `20000steps`, `30s`), and a run's progress and score at the end of each.

A run's score is the mean return of its last 100 training episodes, as everywhere in Shoal. Ends of phases are counted from the
run's beginning: a run that continues while a decision is made reaches its next report sooner.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from shoal.core.errors import BadInput

WINDOW = 100  # episodes in a score
_PHASE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*(episodes?|steps?|s|seconds?)")

Unit = Literal["episodes", "steps", "seconds"]


class Phase(NamedTuple):
    amount: float
    unit: Unit

    def __str__(self) -> str:
        return f"{self.amount:g}{'s' if self.unit == 'seconds' else self.unit}"


def parse_phase(text: str) -> Phase:
    """Parse `200episodes`, `20000steps` or `30s`; `BadInput` for anything else."""
    match = _PHASE.fullmatch(text.strip().replace("_", "").replace(",", ""))
    if match is None:
        raise BadInput(f"--phase is {text!r}: expected a number with its unit, such as 200episodes, 20000steps or 30s")
    amount, word = float(match[1]), match[2]
    unit: Unit = "episodes" if word.startswith("e") else "steps" if word.startswith("st") else "seconds"
    if amount <= 0 or (unit != "seconds" and not amount.is_integer()):
        raise BadInput(f"--phase is {text!r}: expected a {'number above 0' if amount <= 0 else 'whole number'}")
    return Phase(amount, unit)


class _Line(NamedTuple):
    step: int
    seconds: float
    episodes: float  # since the beginning
    ended: float  # episodes on this line
    returns: float  # their sum


class Tally:
    """A run's progress at each line of its metrics. Lines come in order."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if "speed/env_steps" not in row:  # a line with only an evaluation or a fault
                continue
            count = float(row.get("episode/count", 0.0))
            before = self._lines[-1].episodes if self._lines else 0.0
            mean = row.get("episode/return", 0.0)  # JSON has null for a number that is not finite
            seconds, returns = float(row.get("speed/seconds", 0.0)), count * (math.nan if mean is None else float(mean))
            self._lines.append(_Line(int(row["step"]), seconds, before + count, count, returns))

    def done(self, unit: Unit) -> float:
        """Total episodes, steps or seconds."""
        if not self._lines:
            return 0.0
        last = self._lines[-1]
        return {"episodes": last.episodes, "steps": float(last.step), "seconds": last.seconds}[unit]

    def reached(self, unit: Unit, target: float) -> int | None:
        """Number of lines up to the first that reaches `target`; None if none does yet."""
        field = ("step", "seconds", "episodes")[("steps", "seconds", "episodes").index(unit)]
        at = bisect.bisect_left(self._lines, target, key=lambda line: float(getattr(line, field)))
        return None if at == len(self._lines) else at + 1

    def score(self, lines: int | None = None) -> float:
        """Mean return of the last 100 episodes in the first `lines` lines (all lines by default).

        NaN without an episode, or if one of them has no finite return.
        """
        episodes = returns = 0.0
        for line in reversed(self._lines[:lines]):
            episodes, returns = episodes + line.ended, returns + line.returns
            if episodes >= WINDOW:
                break
        return returns / episodes if episodes else math.nan

    def solved(self, goal: float, lines: int | None = None) -> tuple[float, float] | None:
        """Steps and seconds when the mean return of the last 100 episodes first reached `goal`; None if it did not."""
        for at, line in enumerate(self._lines[:lines]):
            if line.episodes >= WINDOW and self.score(at + 1) >= goal:
                return float(line.step), line.seconds
        return None
