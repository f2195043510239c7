"""The covariance of a surrogate: a sum over orders of interaction (Duvenaud, Nickisch and Rasmussen 2011).

Each axis i has a kernel k_i = exp(-d_i^2 / 2 l_i^2) with its own length, where d_i is the distance along the columns of that
axis, so that a choice of several columns is one axis. With A axes,

    k = a_1 / A sum_i k_i  +  a_2 / pairs sum_{i<j} k_i k_j  +  a_A prod_i k_i  +  b / R sum_i s_i.

The first order learns the effect of one axis from all rows, whatever their other coordinates, which is why few rows suffice for
functions that are nearly additive; the product learns what is left. The s_i have short lengths, along R of the axes:
ripples on top of a trend. Without them, ripples are fitted as noise; if f is noisy, noise would be fitted as ripples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LENGTH, SHORT = 0.5, 0.02  # typical lengths; a box is 2 wide
WIDE = 1.5  # standard deviation of the logarithm of a length, before any data
ORDERS = 3


class Side(NamedTuple):
    """Sums over some of the axes, for points [M] against rows [n]. Sides over different axes combine without new exponentials."""

    total: np.ndarray  # [M, n]: sum of k_i
    square: np.ndarray  # sum of k_i^2
    product: np.ndarray  # product of k_i
    ripple: np.ndarray  # sum of s_i

    def __add__(self, other: Side) -> Side:  # type: ignore[override]
        return Side(
            self.total + other.total,
            self.square + other.square,
            self.product * other.product,
            self.ripple + other.ripple,
        )


@dataclass(frozen=True)
class Kernel:
    """Axes and their columns. `theta` [size] holds logarithms: lengths, short lengths, a_1, a_2, a_A, b, noise variance."""

    groups: tuple[tuple[int, ...], ...]  # the columns of each axis
    rippled: tuple[bool, ...]  # which of them have a short length as well

    @property
    def axes(self) -> int:
        return len(self.groups)

    @property
    def short(self) -> int:
        return sum(self.rippled)

    @property
    def size(self) -> int:
        return self.axes + self.short + ORDERS + 2

    def start(self, length: float = LENGTH, ripple: float = 0.03, noise: float = 1e-4) -> np.ndarray:
        lengths = [math.log(length)] * self.axes + [math.log(SHORT)] * self.short
        return np.array([*lengths, 0.0, math.log(0.3), 0.0, math.log(ripple), math.log(noise)])

    def bounds(self) -> list[tuple[float, float]]:
        lengths = [(math.log(0.05), math.log(20.0))] * self.axes + [(math.log(0.002), math.log(0.1))] * self.short
        return [*lengths, *[(-9.0, 7.0)] * ORDERS, (-12.0, 2.0), (math.log(1e-8), 0.0)]

    def prior(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the logarithm of the density of the lengths before any data, and its gradient."""
        typical = np.log([LENGTH] * self.axes + [SHORT] * self.short)
        off = (theta[: len(typical)] - typical) / WIDE
        slope = np.zeros_like(theta)
        slope[: len(off)] = off / WIDE
        return 0.5 * float(off @ off), slope

    def distances(self, points: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        """Squared distances along each axis, [M, n]."""
        found = []
        for group in self.groups:
            parts = [(points[:, c, None] - rows[None, :, c]) ** 2 for c in group]
            found.append(parts[0] if len(parts) == 1 else np.sum(parts, 0))
        return found

    def matrix(self, theta: np.ndarray, d2: Sequence[np.ndarray]) -> np.ndarray:
        """The kernel [M, n] from squared distances along each axis."""
        a1, a2, a3, b = self.scales(theta)
        ks = [np.exp(d * (-0.5 * math.exp(-2.0 * theta[i]))) for i, d in enumerate(d2)]
        total = np.sum(ks, 0)
        k = a1 * total + a2 * (total**2 - np.sum([x * x for x in ks], 0)) + a3 * np.prod(ks, 0)
        for i, d in enumerate(d2):
            if self.rippled[i]:
                k += b * np.exp(d * (-0.5 * math.exp(-2.0 * theta[self._short(i)])))
        return np.asarray(k)

    def side(self, theta: np.ndarray, points: np.ndarray, rows: np.ndarray, axes: Sequence[int] | None = None) -> Side:
        """Sums over these axes (all by default), for points [M, width] against rows [n, width]."""
        axes = range(self.axes) if axes is None else axes
        shape = len(points), len(rows)
        total, square, product, ripple = np.zeros(shape), np.zeros(shape), np.ones(shape), np.zeros(shape)
        for i in axes:
            d2 = sum((points[:, c, None] - rows[None, :, c]) ** 2 for c in self.groups[i])
            k = np.exp(d2 * (-0.5 * math.exp(-2.0 * theta[i])))
            total += k
            square += k * k
            product *= k
            if self.rippled[i]:
                ripple += np.exp(d2 * (-0.5 * math.exp(-2.0 * theta[self._short(i)])))
        return Side(total, square, product, ripple)

    def combine(self, theta: np.ndarray, side: Side) -> np.ndarray:
        """The kernel [M, n] from a side over all axes."""
        a1, a2, a3, b = self.scales(theta)
        k = a1 * side.total + a2 * (side.total**2 - side.square) + a3 * side.product + b * side.ripple
        return np.asarray(k)

    def scales(self, theta: np.ndarray) -> tuple[float, float, float, float]:
        """Factors of the sums: a_1 / A, a_2 / 2 pairs, a_A and b / R."""
        a1, a2, a3, b = np.exp(theta[self.axes + self.short : -1])
        pairs = self.axes * (self.axes - 1)
        return a1 / self.axes, a2 / pairs if pairs else 0.0, float(a3), b / self.short if self.short else 0.0

    def variance(self, theta: np.ndarray) -> float:
        """k(z, z), the same for every z."""
        a1, a2, a3, b = self.scales(theta)
        return a1 * self.axes + a2 * self.axes * (self.axes - 1) + a3 + b * self.short

    def slopes(self, theta: np.ndarray, d2: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
        """sum(weights * dk/dtheta) for each entry of theta but the noise: [size - 1]. `weights` is [n, n]."""
        a1, a2, a3, b = self.scales(theta)
        ks = [np.exp(d2[i] * (-0.5 * math.exp(-2.0 * theta[i]))) for i in range(self.axes)]
        total, others = np.sum(ks, 0), _others(ks)
        found = np.zeros(self.size - 1)
        pairs = np.zeros_like(total)
        for i, k in enumerate(ks):
            pairs += k * (total - k)
            factor = a1 + 2.0 * a2 * (total - k) + a3 * others[i]
            found[i] = _dot(weights, factor * k * d2[i]) * math.exp(-2.0 * theta[i])
            if self.rippled[i]:
                at = self._short(i)
                s = np.exp(d2[i] * (-0.5 * math.exp(-2.0 * theta[at])))
                found[at] = b * _dot(weights, s * d2[i]) * math.exp(-2.0 * theta[at])
                found[-1] += b * _dot(weights, s)
        first = self.axes + self.short
        found[first : first + ORDERS] = (
            a1 * _dot(weights, total),
            a2 * _dot(weights, pairs),
            a3 * _dot(weights, others[0] * ks[0]),
        )
        return found

    def moves(
        self, theta: np.ndarray, points: np.ndarray, rows: np.ndarray, axes: Sequence[int], fixed: Side
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """k [M, n], and dk/dcolumn [M, n] for each of these real axes; `fixed` is the side over all others."""
        a1, a2, a3, b = self.scales(theta)
        ks, away, ripples = [], [], []
        for i in axes:
            off = points[:, self.groups[i][0], None] - rows[None, :, self.groups[i][0]]
            d2 = off * off
            away.append(off)
            ks.append(np.exp(d2 * (-0.5 * math.exp(-2.0 * theta[i]))))
            narrow = -0.5 * math.exp(-2.0 * theta[self._short(i)]) if self.rippled[i] else 0.0
            ripples.append(np.exp(d2 * narrow) if narrow else np.zeros_like(d2))
        total = fixed.total + np.sum(ks, 0)
        square = fixed.square + np.sum([k * k for k in ks], 0)
        others = _others([*ks, fixed.product])
        value = a1 * total + a2 * (total**2 - square) + a3 * others[-1] * fixed.product
        value += b * (fixed.ripple + np.sum(ripples, 0))
        slopes = []
        for i, k, s, other, off in zip(axes, ks, ripples, others, away, strict=False):
            inner = (a1 + 2.0 * a2 * (total - k) + a3 * other) * k * -math.exp(-2.0 * theta[i])
            narrow = math.exp(-2.0 * theta[self._short(i)]) if self.rippled[i] else 0.0
            slopes.append((inner - b * narrow * s) * off)
        return value, slopes

    def _short(self, axis: int) -> int:
        """The place in theta of an axis' short length."""
        return self.axes + sum(self.rippled[:axis])


def _others(factors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each factor, the product of all others. Nothing is divided: factors may underflow."""
    before = [np.ones_like(factors[0])]
    for factor in factors[:-1]:
        before.append(before[-1] * factor)
    after = np.ones_like(factors[0])
    for i in reversed(range(len(factors))):
        before[i] = before[i] * after
        after = after * factors[i]
    return before


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.vdot(a, b))
