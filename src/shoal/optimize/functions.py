"""Benchmark functions with known minima, in n dimensions, for NumPy and JAX arrays alike.

Sphere, Ackley and Rosenbrock have the domains of the thesis; the others those of the usual collections. Each takes
coordinates `[..., n]` in its own units and gives `[...]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import e, pi
from types import ModuleType
from typing import Any

import numpy as np

from shoal.core.errors import BadInput, nearest
from shoal.core.trajectory import Array
from shoal.optimize.axes import module_of
from shoal.optimize.problem import Problem

Formula = Callable[[Array, ModuleType], Array]


@dataclass(frozen=True)
class Function:
    """A formula with its domain and its minima."""

    formula: Formula
    domain: tuple[tuple[float, float], ...]  # of each coordinate; one pair stands for all
    minima: tuple[tuple[float, ...], ...]  # one number stands for all coordinates
    value: float = 0.0  # at the minima; for one coordinate if `adds_up`
    dims: int | None = None  # the only allowed number of coordinates
    fewest: int = 1
    adds_up: bool = False  # the smallest value grows with the number of coordinates

    def __call__(self, x: Array) -> Array:
        """[..., n] to [...]."""
        return self.formula(x, module_of(x))

    def bounds(self, dims: int) -> tuple[tuple[float, float], ...]:
        return self.domain * dims if len(self.domain) == 1 else self.domain

    def minimisers(self, dims: int) -> np.ndarray:
        """[k, dims]: every global minimum, in own units."""
        return np.array([m * dims if len(m) == 1 else m for m in self.minima])

    def minimum(self, dims: int) -> float:
        return self.value * dims if self.adds_up else self.value


def _sphere(x: Array, xp: ModuleType) -> Array:
    return xp.sum(x * x, -1)


def _ackley(x: Array, xp: ModuleType) -> Array:
    square = xp.mean(x * x, -1)
    apart = square > 0  # the root has no derivative at 0, the tip of the cone: use 0 there instead of NaN
    distance = xp.where(apart, xp.sqrt(xp.where(apart, square, 1.0)), 0.0)
    return 20.0 + e - 20.0 * xp.exp(-0.2 * distance) - xp.exp(xp.mean(xp.cos(2.0 * pi * x), -1))


def _rosenbrock(x: Array, xp: ModuleType) -> Array:
    a, b = x[..., :-1], x[..., 1:]
    return xp.sum((1.0 - a) ** 2 + 100.0 * (b - a * a) ** 2, -1)


def _rastrigin(x: Array, xp: ModuleType) -> Array:
    return xp.sum(x * x - 10.0 * xp.cos(2.0 * pi * x) + 10.0, -1)


def _griewank(x: Array, xp: ModuleType) -> Array:
    root = xp.sqrt(xp.arange(1, x.shape[-1] + 1).astype(x.dtype))
    return xp.sum(x * x, -1) / 4000.0 - xp.prod(xp.cos(x / root), -1) + 1.0


def _levy(x: Array, xp: ModuleType) -> Array:
    w = 1.0 + (x - 1.0) / 4.0
    first, last, inner = w[..., 0], w[..., -1], w[..., :-1]
    middle = xp.sum((inner - 1.0) ** 2 * (1.0 + 10.0 * xp.sin(pi * inner + 1.0) ** 2), -1)
    return xp.sin(pi * first) ** 2 + middle + (last - 1.0) ** 2 * (1.0 + xp.sin(2.0 * pi * last) ** 2)


def _schwefel(x: Array, xp: ModuleType) -> Array:
    size = xp.abs(x)
    root = xp.sqrt(xp.where(size > 0, size, 1.0))  # at 0 the product is smooth enough, but its root is not
    return xp.sum(418.98288727243378 - x * xp.sin(xp.where(size > 0, root, 0.0)), -1)


def _styblinski_tang(x: Array, xp: ModuleType) -> Array:
    return xp.sum(x**4 - 16.0 * x**2 + 5.0 * x, -1) / 2.0


def _zakharov(x: Array, xp: ModuleType) -> Array:
    weighed = xp.sum(0.5 * xp.arange(1, x.shape[-1] + 1).astype(x.dtype) * x, -1)
    return xp.sum(x * x, -1) + weighed**2 + weighed**4


def _drop_wave(x: Array, xp: ModuleType) -> Array:
    square = xp.sum(x * x, -1)
    apart = square > 0  # the root has no derivative at 0, the middle of the rings: use 0 there instead of NaN
    radius = xp.where(apart, xp.sqrt(xp.where(apart, square, 1.0)), 0.0)
    return -(1.0 + xp.cos(12.0 * radius)) / (0.5 * square + 2.0)


def _branin(x: Array, xp: ModuleType) -> Array:
    a, b = x[..., 0], x[..., 1]
    bowl = b - 5.1 / (4.0 * pi**2) * a * a + 5.0 / pi * a - 6.0
    return bowl * bowl + 10.0 * (1.0 - 1.0 / (8.0 * pi)) * xp.cos(a) + 10.0


def _himmelblau(x: Array, xp: ModuleType) -> Array:
    a, b = x[..., 0], x[..., 1]
    return (a * a + b - 11.0) ** 2 + (a + b * b - 7.0) ** 2


def _box(half: float) -> tuple[tuple[float, float], ...]:
    return ((-half, half),)


FUNCTIONS: dict[str, Function] = {
    "sphere": Function(_sphere, _box(5.12), ((0.0,),)),
    "ackley": Function(_ackley, _box(32.768), ((0.0,),)),
    "rosenbrock": Function(_rosenbrock, _box(2.048), ((1.0,),), fewest=2),
    "rastrigin": Function(_rastrigin, _box(5.12), ((0.0,),)),
    "griewank": Function(_griewank, _box(600.0), ((0.0,),)),
    "levy": Function(_levy, _box(10.0), ((1.0,),)),
    "schwefel": Function(_schwefel, _box(500.0), ((420.96874635998202,),)),
    "styblinski_tang": Function(
        _styblinski_tang, _box(5.0), ((-2.9035340277711771,),), value=-39.166165703771419, adds_up=True
    ),
    "zakharov": Function(_zakharov, ((-5.0, 10.0),), ((0.0,),)),
    "drop_wave": Function(_drop_wave, _box(5.12), ((0.0,),), value=-1.0),
    "branin": Function(
        _branin,
        ((-5.0, 10.0), (0.0, 15.0)),
        ((-pi, 12.275), (pi, 2.275), (3 * pi, 2.475)),
        value=0.39788735772973816,
        dims=2,
        fewest=2,
    ),
    "himmelblau": Function(
        _himmelblau,
        _box(5.0),
        (
            (3.0, 2.0),
            (-2.8051180869527448, 3.1313125182505730),
            (-3.7793102533777469, -3.2831859912861694),
            (3.5844283403304917, -1.8481265269644036),
        ),
        dims=2,
        fewest=2,
    ),
}


@dataclass(frozen=True)
class Coordinates:
    """A function of named coordinates x1, x2, ... moved by `offset`. Hashable, and can be pickled."""

    function: str
    offset: tuple[float, ...]  # in own units, one per coordinate

    @property
    def __name__(self) -> str:
        return self.function

    def __call__(self, **x: Any) -> Array:
        if len(x) != len(self.offset):
            raise TypeError(f"{self.function} takes x1 ... x{len(self.offset)}")
        values = [x[f"x{i + 1}"] - moved for i, moved in enumerate(self.offset)]
        xp = next((m for m in map(module_of, values) if m is not np), np)
        return FUNCTIONS[self.function](xp.stack([xp.asarray(v) for v in values], -1))


def make(name: str, dims: int = 2, free: int = 1, shift: float = 0.0) -> Problem:
    """The problem of choosing the first `free` coordinates of a function, given the others.

    Args:
        name: of `FUNCTIONS`.
        dims: the number of coordinates x1, x2, ...
        free: how many of them are knobs, the first ones; the rest are conditions. `dims` leaves no condition.
        shift: how far the minimum is moved along each knob, where -1 and 1 are the ends of its box.
    """
    if name not in FUNCTIONS:
        known = f" There are: {', '.join(FUNCTIONS)}."
        raise BadInput(f"unknown function {name!r}.{nearest(name, FUNCTIONS) or known}")
    function = FUNCTIONS[name]
    if function.dims is not None and dims != function.dims:
        raise BadInput(f"--dims {dims}: {name} has exactly {function.dims} coordinates")
    if dims < function.fewest:
        raise BadInput(f"--dims {dims}: {name} needs at least {function.fewest}")
    if not 1 <= free <= dims:
        raise BadInput(f"--free {free}: it must be from 1 to --dims {dims}")
    if not -1.0 <= shift <= 1.0:
        raise BadInput(f"--shift {shift:g}: it must be from -1 to 1, in normalised knob coordinates")
    bounds = {f"x{i + 1}": pair for i, pair in enumerate(function.bounds(dims))}
    names = list(bounds)
    half = [(bounds[n][1] - bounds[n][0]) / 2.0 for n in names]
    offset = tuple(shift * h if i < free else 0.0 for i, h in enumerate(half))
    return Problem(
        Coordinates(name, offset),
        knobs={n: bounds[n] for n in names[:free]},
        conditions={n: bounds[n] for n in names[free:]},
        kind="jax",
        name=name,
    )


def published_normalisation(x: Array, low: float, high: float) -> Array:
    """The thesis' map from [-1, 1] to a symmetric domain: `x (b - a) / 2`, the same as Shoal's.

    The thesis also prints a general form, `x (b - a) / 2 + (b + 3a) / 2`. On [-1, 1] it does not reach [a, b]: a symmetric
    domain [-b, b] would become [-2b, 0], contrary to the simplified form on the same page. It is taken for a misprint of
    `(a + b) / 2`, so a domain that is not symmetric is refused here.
    """
    if low != -high:
        raise BadInput(f"({low:g}, {high:g}): the published normalisation holds only for symmetric domains [-a, a]")
    return x * ((high - low) / 2.0)
