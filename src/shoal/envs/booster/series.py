"""Recorded series of the five channels: the synthetic one, made on first use, and a user's own CSV."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import jax
import numpy as np

from shoal.core.errors import BadInput
from shoal.envs.booster import plant
from shoal.envs.booster.plant import CHANNELS, VIMIN

SEED = 0  # of the synthetic series
LEAST_ROWS = 1000
FITTED = 0.8  # the first part of a series, for fitting and training; the rest is held out


@dataclass(frozen=True, eq=False)
class Series:
    """Channels over time, and what environments derive from them."""

    name: str
    rows: np.ndarray  # [N, 5] float32, in the order of CHANNELS
    states: plant.Plant | None = None  # of the synthetic plant, each [N]; None for a user's series

    @property
    def split(self) -> int:
        """The first row that is held out."""
        return int(FITTED * len(self.rows))

    @cached_property
    def mean(self) -> np.ndarray:
        return np.asarray(self.rows.mean(0, dtype=np.float64), np.float32)  # single precision loses a long series' mean

    @cached_property
    def scale(self) -> np.ndarray:
        """Standard deviation of each channel."""
        return np.asarray(self.rows.std(0, dtype=np.float64), np.float32)

    def changes(self, quantiles: np.ndarray) -> np.ndarray:
        """Quantiles of the change of VIMIN from tick to tick."""
        return np.asarray(np.quantile(np.diff(self.rows[:, VIMIN]), quantiles), np.float32)


@cache
def load(data: str | None = None) -> Series:
    """The synthetic series, or that of a CSV file. Raises `BadInput` if the file cannot be used."""
    if data is not None:
        return Series(data, read_csv(Path(data)))
    with jax.ensure_compile_time_eval():  # the first use may be while an environment is traced
        rows, states = jax.tree.map(np.asarray, jax.jit(plant.record)(SEED))
    return Series("synthetic", rows, states)


def read_csv(path: Path) -> np.ndarray:
    """The five channels [N, 5] of a file whose first line names its columns, as `VIMIN` or `B:VIMIN`. Ignores other columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *lines = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"data {str(path)!r} cannot be read: {error}") from error
    names = [name.strip().rpartition(":")[2] for name in header]
    missing = [channel for channel in CHANNELS if channel not in names]
    if missing:
        raise BadInput(f"data {str(path)!r} lacks {', '.join(missing)}: it must have columns {', '.join(CHANNELS)}")
    twice = [channel for channel in CHANNELS if names.count(channel) > 1]
    if twice:
        raise BadInput(f"data {str(path)!r} has several columns {', '.join(twice)}: each may occur once")
    columns = [names.index(channel) for channel in CHANNELS]
    lines = [line for line in lines if line]
    if len(lines) < LEAST_ROWS:
        raise BadInput(f"data {str(path)!r} has {len(lines)} rows: at least {LEAST_ROWS}")
    rows = np.empty((len(lines), len(CHANNELS)), np.float32)
    for number, line in enumerate(lines):
        for at, column in enumerate(columns):
            text = line[column].strip() if column < len(line) else ""
            try:
                rows[number, at] = float(text)
            except ValueError:
                rows[number, at] = np.nan
            if not np.isfinite(rows[number, at]):
                where = f"{CHANNELS[at]} of row {number + 1}"
                raise BadInput(f"data {str(path)!r}: {where} is {text!r}: every value must be a finite number")
    still = [channel for channel, spread in zip(CHANNELS, np.ptp(rows, 0), strict=True) if spread == 0]
    if still:
        raise BadInput(f"data {str(path)!r}: {', '.join(still)} never changes: there is nothing to learn from it")
    low, high = np.quantile(np.diff(rows[:, VIMIN]), (0.25, 0.75))
    if low == high:
        raise BadInput(
            f"data {str(path)!r}: VIMIN changes by {low:g} in half of the rows or more, so the quartiles of its change, between"
            " which actions lie, coincide"
        )
    return rows
