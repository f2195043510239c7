"""One coordinate of a problem: a real number, a whole number or a choice, and its columns in a normalised point.

| written as | axis | columns of a point | action |
| --- | --- | --- | --- |
| `(low, high)`, two numbers | Real | one, from -1 (low) to 1 (high) | the column itself, clipped |
| `range(...)` | Whole | one, from -1 (first) to 1 (last) | the position in the range, from 0 |
| another sequence | Choice | one for each value: 1 for the chosen, 0 for the others | the position in the sequence, from 0 |

`columns` and `index` run on NumPy and on JAX arrays alike; `xp` is the module that fits the array.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

from shoal.core.errors import BadInput
from shoal.core.spec import ActionPart, Categorical, Continuous
from shoal.core.trajectory import Array


def module_of(array: Array) -> ModuleType:
    """`jax.numpy` for JAX arrays and tracers, `numpy` for the rest."""
    return jnp if isinstance(array, jax.Array) else np


@dataclass(frozen=True)
class Real:
    """A real number from `low` to `high`."""

    name: str
    low: float
    high: float
    width = 1
    numeric = True

    def columns(self, action: Array) -> Array:
        """[...] of an action to the columns [..., 1] of a point."""
        return module_of(action).clip(action, -1.0, 1.0)[..., None]

    def values(self, columns: Array) -> Array:
        """[..., 1] to [...] in the axis' own units; not clipped, so that a condition may lie outside."""
        return self.low + (columns[..., 0] + 1.0) * ((self.high - self.low) / 2.0)

    def bounded(self, columns: Array) -> Array:
        """`values`, held between `low` and `high`."""
        return module_of(columns).clip(self.values(columns), self.low, self.high)

    def encode(self, value: Any) -> np.ndarray:
        """[...] in own units to [..., 1]."""
        try:
            numeric = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            raise BadInput(f"{self.name}={value!r}: it must be a number") from None
        if not np.isfinite(numeric).all():
            raise BadInput(f"{self.name}={value!r}: it must be finite")
        return np.asarray((numeric - self.low) * (2.0 / (self.high - self.low)) - 1.0)[..., None]

    def middle(self) -> np.ndarray:
        return np.zeros(1)

    def random(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.uniform(-1.0, 1.0, (n, 1))

    def describe(self) -> Any:
        return [self.low, self.high]


@dataclass(frozen=True)
class Whole:
    """A whole number of a range."""

    name: str
    among: range
    width = 1
    numeric = True

    @property
    def size(self) -> int:
        return len(self.among)

    def index(self, columns: Array) -> Array:
        """[..., 1] to the position in the range [...], the nearest one."""
        xp = module_of(columns)
        return xp.clip(xp.rint((columns[..., 0] + 1.0) * ((self.size - 1) / 2.0)), 0, self.size - 1).astype(xp.int32)

    def columns(self, action: Array) -> Array:
        xp = module_of(action)
        index = xp.clip(xp.rint(action), 0, self.size - 1)
        share = index / (self.size - 1) if self.size > 1 else xp.full_like(index, 0.5)
        return xp.clip(2.0 * share - 1.0, -1.0, 1.0)[..., None]  # a compiled division may round past the end

    def bounded(self, columns: Array) -> Array:
        return self.among.start + self.among.step * self.index(columns)

    def encode(self, value: Any) -> np.ndarray:
        given = np.asarray(value)
        if not np.isin(given, np.asarray(self.among)).all():
            raise BadInput(f"{self.name}={value!r}: it must be one of {self.among}")
        index = (given.astype(np.float64) - self.among.start) / self.among.step
        return np.asarray(self.columns(index))

    def middle(self) -> np.ndarray:
        return np.asarray(self.columns(np.asarray((self.size - 1) // 2, np.float64)))

    def random(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.asarray(self.columns(rng.integers(self.size, size=n).astype(np.float64)))

    def describe(self) -> Any:
        return {"range": [self.among.start, self.among.stop, self.among.step]}


@dataclass(frozen=True)
class Choice:
    """One of several unordered values."""

    name: str
    among: tuple[Any, ...]

    @property
    def width(self) -> int:
        return len(self.among)

    @property
    def size(self) -> int:
        return len(self.among)

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers, which JAX can hold."""
        return all(_is_number(value) for value in self.among)

    @property
    def table(self) -> np.ndarray:
        """The values as one array; an object array unless all are numbers or of one plain type."""
        plain = len({type(value) for value in self.among}) == 1 and isinstance(self.among[0], str | int | float)
        if self.numeric or plain:
            return np.asarray(self.among)
        table = np.empty(self.size, object)
        table[:] = self.among
        return table

    def index(self, columns: Array) -> Array:
        """[..., size] to the chosen position [...]: the largest column, the first of equals."""
        return module_of(columns).argmax(columns, -1)

    def columns(self, action: Array) -> Array:
        xp = module_of(action)
        positions = xp.arange(self.size)
        chosen = xp.clip(xp.rint(action), 0, self.size - 1).astype(positions.dtype)[..., None] == positions
        return chosen.astype(action.dtype if xp.issubdtype(action.dtype, xp.floating) else np.float32)

    def bounded(self, columns: Array) -> Array:
        return module_of(columns).asarray(self.table)[self.index(columns)]

    def encode(self, value: Any) -> np.ndarray:
        several = isinstance(value, list | np.ndarray) and value not in self.among
        flat = [self._position(v) for v in np.asarray(value, object).ravel()] if several else [self._position(value)]
        shape = np.asarray(value, object).shape if several else ()
        return np.asarray(self.columns(np.asarray(flat, np.float64).reshape(shape)))

    def _position(self, value: Any) -> int:
        if value not in self.among:
            raise BadInput(f"{self.name}={value!r}: it must be one of {', '.join(map(repr, self.among))}")
        return self.among.index(value)

    def middle(self) -> np.ndarray:
        return np.asarray(self.columns(np.asarray((self.size - 1) // 2, np.float64)))

    def random(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.asarray(self.columns(rng.integers(self.size, size=n).astype(np.float64)))

    def describe(self) -> Any:
        return {"choice": [v if isinstance(v, str | int | float | bool) else repr(v) for v in self.among]}


Axis = Real | Whole | Choice


def real(name: str, bounds: Any) -> Real:
    """The axis between two finite bounds, low before high."""
    if not (isinstance(bounds, Sequence) and len(bounds) == 2 and all(_is_number(b) for b in bounds)):
        raise BadInput(f"{name}={bounds!r}: it must be two numbers (low, high)")
    low, high = float(bounds[0]), float(bounds[1])
    if not (math.isfinite(low) and math.isfinite(high)):
        raise BadInput(f"{name}=({low:g}, {high:g}): both bounds must be finite")
    if low >= high:
        raise BadInput(f"{name}=({low:g}, {high:g}): the lower bound must come first and be below the upper one")
    return Real(name, low, high)


def knob(name: str, written: Any) -> Axis:
    """The axis for `written`, by the table above."""
    if isinstance(written, tuple) and len(written) == 2 and all(_is_number(b) for b in written):
        return real(name, written)
    if isinstance(written, str) or not isinstance(written, Sequence):
        raise BadInput(f"{name}={written!r}: a knob is (low, high), a range or a list of values")
    if not len(written):
        raise BadInput(f"{name}={written!r}: a knob needs at least one value")
    if isinstance(written, range):
        return Whole(name, written)
    values = tuple(written)
    if any(value in values[:i] for i, value in enumerate(values)):
        raise BadInput(f"{name}={list(values)!r}: a value appears twice")
    return Choice(name, values)


def action_parts(knobs: Sequence[Axis]) -> tuple[ActionPart, ...]:
    """The parts of an action over these knobs; neighbours of the same sort share one."""
    parts: list[ActionPart] = []
    for is_real, group in groupby(knobs, key=lambda axis: isinstance(axis, Real)):
        same = list(group)
        if is_real:
            parts.append(Continuous((-1.0,) * len(same), (1.0,) * len(same)))
        else:
            parts.append(Categorical(tuple(axis.size for axis in same if not isinstance(axis, Real))))
    return tuple(parts)


def grid(sides: int, most: int) -> np.ndarray:
    """At most `most` points [C, sides] from -1 to 1: a grid, or a Latin hypercube if fewer than three along each side would fit."""
    if sides == 0:
        return np.zeros((1, 0))
    side = max((k for k in range(1, 22) if k**sides <= most), default=1)
    if side < 3:
        return np.asarray(2.0 * qmc.LatinHypercube(sides, rng=np.random.default_rng(0)).random(most) - 1.0)
    lines = [np.round(np.linspace(-1.0, 1.0, side), 12)] * sides
    return np.stack([line.ravel() for line in np.meshgrid(*lines, indexing="ij")], -1)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
