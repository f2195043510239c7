"""Rows of `metrics.jsonl` as a timeline: the rows that led to a run's end, and one metric as a series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Rows = Sequence[Mapping[str, Any]]


def timeline(rows: Rows) -> list[Mapping[str, Any]]:
    """The rows that led to the run's end: rows of a resumed run replace earlier rows after its checkpoint."""
    kept: list[Mapping[str, Any]] = []
    for row in rows:
        if kept and kept[-1]["step"] > row["step"]:  # two rows in a row with one step belong to one update
            while kept and kept[-1]["step"] >= row["step"]:
                kept.pop()
        kept.append(row)
    return kept


def series(rows: Rows, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(positions in `rows`, values) where `name` is a finite number."""
    found = [(i, float(row[name])) for i, row in enumerate(rows) if is_number(row.get(name))]
    return np.array([i for i, _ in found], int), np.array([v for _, v in found], float)


def is_number(value: Any) -> bool:
    """Whether a value of a row is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
