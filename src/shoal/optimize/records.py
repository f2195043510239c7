"""Evaluations on disk: one line each, written as soon as f has answered, and tables that a lab already has.

A line of `evaluations.jsonl` is an object with every knob and condition by name, in its own unit, and `value`: f, or null if it
failed. A CSV file has the same columns, in any order; an empty value is a failure.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from shoal.core.errors import BadInput, nearest
from shoal.optimize.axes import Axis, Choice, Whole
from shoal.optimize.problem import Problem

VALUE = "value"
FILE = "evaluations.jsonl"


class Record:
    """Appends evaluations to a file. Each `add` is on disk when it returns, so that a kill loses none."""

    def __init__(self, problem: Problem, path: Path) -> None:
        refuse_value(problem)
        self._problem, self._path = problem, path
        if path.exists():
            written = path.read_bytes()
            whole = written.rfind(b"\n") + 1
            if whole < len(written):  # a kill has left half a line
                os.truncate(path, whole)
        self._file: IO[bytes] = path.open("ab")

    def add(self, points: np.ndarray, values: np.ndarray, limits: np.ndarray | None = None) -> None:
        """Points [n, width] with f [n] and the constraints [G, n]."""
        names = (*self._problem.limit_names, VALUE)
        columns = [values] if limits is None else [*limits, values]
        for point, told in zip(points, np.stack(columns, 1).tolist(), strict=True):
            row = {name: plain(v) for name, v in self._problem.denormalise(point).items()}
            found = {n: v if math.isfinite(v) else None for n, v in zip(names, told, strict=True)}
            self._file.write(msgspec.json.encode({**row, **found}) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(problem: Problem, path: str | Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points [n, width], values [n] and constraints [G, n], NaN where they failed, of a .jsonl or .csv file.

    Raises:
        BadInput: the file cannot be read, its columns are not those of the problem, or a value is outside its bounds.
    """
    path = Path(path)
    refuse_value(problem)
    if path.suffix not in (".jsonl", ".csv"):
        raise BadInput(f"data {str(path)!r}: expected a file that ends in .jsonl or .csv")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read data {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    rows = _from_csv(text) if path.suffix == ".csv" else _from_lines(text, path)
    points, values, limits = [], [], []
    for number, row in rows:
        where = f"data {str(path)!r}, line {number}: "
        _check_columns(problem, row, where)
        try:
            points.append(problem.normalise(**{axis.name: _typed(axis, row[axis.name]) for axis in problem.axes}))
        except BadInput as error:
            raise BadInput(f"{where}{error}") from None
        outside = np.abs(points[-1]) > 1.0 + 1e-9
        if outside.any():
            name = _axis_at(problem, int(outside.argmax()))
            raise BadInput(f"{where}{name} is {row[name]}: outside its bounds")
        values.append(_number(row[VALUE], where, VALUE))
        limits.append([_number(row[name], where, name) for name in problem.limit_names])
    if not points:
        return np.zeros((0, problem.width)), np.zeros(0), np.zeros((len(problem.limits), 0))
    return np.array(points), np.array(values), np.array(limits).T


def refuse_value(problem: Problem) -> None:
    """Raise `BadInput` if an axis or a constraint has the name of another column."""
    if VALUE in (*problem.names, *problem.limit_names):
        raise BadInput(f"{problem.name}: a knob or condition cannot be called {VALUE!r} here, as f's own column is")
    for name in problem.limit_names:
        if name in problem.names:
            raise BadInput(f"{problem.name}: constraint {name!r} has the name of a knob or condition: rename it")


def _from_csv(text: str) -> Iterable[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    return ((reader.line_num, row) for row in reader)


def _from_lines(text: str, path: Path) -> Iterable[tuple[int, Mapping[str, Any]]]:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            if number == len(lines):
                return  # half a line, from a kill
            raise BadInput(f"data {str(path)!r}, line {number}: expected a JSON object: {error}") from None


def _check_columns(problem: Problem, row: Mapping[str, Any], where: str) -> None:
    wanted = (*problem.names, *problem.limit_names, VALUE)
    if None in row or any(name in row and row[name] is None for name in problem.names):
        raise BadInput(f"{where}the number of values differs from the number of names")
    for name in row:
        if name not in wanted:
            raise BadInput(f"{where}unknown column {name!r}.{nearest(name, wanted)} Expected: {', '.join(wanted)}.")
    for name in wanted:
        if name not in row:
            raise BadInput(f"{where}column {name!r} is missing. Expected: {', '.join(wanted)}.")


def _typed(axis: Axis, told: Any) -> Any:
    """A value of a table as the axis has it."""
    if isinstance(axis, Choice):
        return next((value for value in axis.among if str(told) in (str(value), repr(value))), told)
    try:
        number = float(told)
    except (TypeError, ValueError):
        return told
    return int(number) if isinstance(axis, Whole) and number.is_integer() else number


def _number(told: Any, where: str, name: str) -> float:
    if told is None or (isinstance(told, str) and not told.strip()):
        return math.nan
    try:
        number = float(told)
    except (TypeError, ValueError):
        raise BadInput(f"{where}{name} is {told!r}: expected a number, or nothing if it failed") from None
    return number if math.isfinite(number) else math.nan


def _axis_at(problem: Problem, column: int) -> str:
    for axis in problem.axes:
        if column < axis.width:
            return axis.name
        column -= axis.width
    raise AssertionError


def plain(value: Any) -> Any:
    """A value as JSON has it; a choice that is neither a word nor a number, by its text."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, str | int | float | bool) else repr(value)
