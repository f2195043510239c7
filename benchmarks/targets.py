"""The result of a measurement: rows, and targets for them."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

NEVER = float("inf")


class Target(NamedTuple):
    what: str
    value: float | None  # inf: it was tried and not reached
    rule: str  # ">= 20", "<= 12"

    @property
    def met(self) -> bool | None:
        """None when there is nothing to compare."""
        if self.value is None:
            return None
        if self.value == NEVER:
            return False
        sign, bound = self.rule.split()
        return self.value >= float(bound) if sign == ">=" else self.value <= float(bound)

    def saved(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        return {**self._asdict(), "value": None if self.value == NEVER else self.value, "met": self.met}


class Result(NamedTuple):
    rows: list[dict[str, Any]]
    targets: list[Target]


def ratio(a: float | None, b: float | None) -> float | None:
    if a == NEVER:
        return NEVER
    return a / b if a is not None and b else None


def median(values: list[float | None], least: int) -> float | None:
    """The median over all runs, where a run that did not get there counts as infinitely late. None if fewer than
    `least` got there."""
    there = [value for value in values if value is not None]
    late = [NEVER] * (len(values) - len(there))
    return statistics.median(there + late) if len(there) >= least else None
