"""The result of a measurement: rows, and targets for them."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple


class Target(NamedTuple):
    what: str
    value: float | None
    rule: str  # ">= 20", "<= 12"

    @property
    def met(self) -> bool | None:
        """None when there is nothing to compare."""
        if self.value is None:
            return None
        sign, bound = self.rule.split()
        return self.value >= float(bound) if sign == ">=" else self.value <= float(bound)


class Result(NamedTuple):
    rows: list[dict[str, Any]]
    targets: list[Target]


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def median(values: list[float | None], least: int) -> float | None:
    """The median over all runs, where a run that did not get there counts as infinitely late."""
    there = [value for value in values if value is not None]
    late = [float("inf")] * (len(values) - len(there))
    middle = statistics.median(there + late) if len(there) >= least else None
    return middle if middle != float("inf") else None
