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


class Held(NamedTuple):
    """Sums over rows for points [M] with some axes held: see `Kernel.held`."""

    alone: np.ndarray  # [M]: terms of the held axes alone
    linear: np.ndarray  # [M, n]: factor of each k_i that moves
    product: np.ndarray  # [M, n]: factor of their product
    weights: np.ndarray  # [n]


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

    def gaps(self, rows: np.ndarray) -> list[np.ndarray]:
        """Squared distances along each axis between each row and each earlier one, as in `np.tril_indices`: [n (n - 1) / 2]."""
        later, earlier = np.tril_indices(len(rows), -1)
        return [sum((rows[later, c] - rows[earlier, c]) ** 2 for c in group) for group in self.groups]

    def parts(self, theta: np.ndarray, gaps: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The k_i of all axes and the s_i of those that have them, for squared distances along each axis."""
        ks = [np.exp(d * (-0.5 * math.exp(-2.0 * theta[i]))) for i, d in enumerate(gaps)]
        shorts = [(d, theta[self._short(i)]) for i, d in enumerate(gaps) if self.rippled[i]]
        return ks, [np.exp(d * (-0.5 * math.exp(-2.0 * length))) for d, length in shorts]

    def sums(self, theta: np.ndarray, ks: Sequence[np.ndarray], ripples: Sequence[np.ndarray]) -> np.ndarray:
        """The kernel from its parts."""
        a1, a2, a3, b = self.scales(theta)
        total, product = ks[0].copy(), ks[0].copy()
        square = ks[0] * ks[0]
        for k in ks[1:]:
            total += k
            product *= k
            square += k * k
        found = a2 * (total * total - square)
        found += a1 * total
        found += a3 * product
        for s in ripples:
            found += b * s
        return np.asarray(found)

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

    def slopes(
        self,
        theta: np.ndarray,
        gaps: Sequence[np.ndarray],
        parts: tuple[list[np.ndarray], list[np.ndarray]],
        weights: np.ndarray,
        diagonal: float,
    ) -> np.ndarray:
        """sum(W * dk/dtheta) for each entry of theta but the noise: [size - 1]. W is symmetric.

        `weights` are its entries below the diagonal, doubled, in the order of `gaps`; `diagonal` is its trace.
        """
        a1, a2, a3, b = self.scales(theta)
        ks, ripples = parts
        total, others = np.sum(ks, 0), _others(ks)
        found, a = np.zeros(self.size - 1), self.axes
        at, first = a, a + self.short
        pairs = 0.0
        for i, k in enumerate(ks):
            weighed = weights * k
            rest = total - k
            pairs += float(weighed @ rest)
            away = weighed * gaps[i]
            slope = a1 * away.sum() + 2.0 * a2 * float(away @ rest) + a3 * float(away @ others[i])
            found[i] = slope * math.exp(-2.0 * theta[i])
            if self.rippled[i]:
                weighed = weights * ripples[at - a]
                found[at] = b * float(weighed @ gaps[i]) * math.exp(-2.0 * theta[at])
                found[-1] += b * (weighed.sum() + diagonal)
                at += 1
        found[first : first + ORDERS] = (
            a1 * (float(weights @ total) + a * diagonal),
            a2 * (pairs + a * (a - 1) * diagonal),
            a3 * (float((weights * ks[0]) @ others[0]) + diagonal),
        )
        return found

    def held(self, theta: np.ndarray, fixed: Side, weights: np.ndarray) -> Held:
        """The contribution of the axes of `fixed`, a side [M, n], to sums over rows with weights [n] while the other axes move."""
        a1, a2, a3, b = self.scales(theta)
        alone = a1 * fixed.total + a2 * (fixed.total**2 - fixed.square) + b * fixed.ripple
        return Held(alone @ weights, (a1 + 2.0 * a2 * fixed.total) * weights, a3 * fixed.product * weights, weights)

    def moved(
        self, theta: np.ndarray, points: np.ndarray, rows: np.ndarray, axes: Sequence[int], held: Held
    ) -> tuple[np.ndarray, np.ndarray]:
        """The kernel times the weights of `held`, [M], and its gradient along these real axes, [M, axes], for points [M, width]."""
        _, a2, _, b = self.scales(theta)
        value, gradient = held.alone.copy(), np.empty((len(points), len(axes)))
        ks, away = [], []
        for j, i in enumerate(axes):
            off = points[:, self.groups[i][0], None] - rows[None, :, self.groups[i][0]]
            d2 = off * off
            away.append(off)
            ks.append(np.exp(d2 * (-0.5 * math.exp(-2.0 * theta[i]))))
            if self.rippled[i]:
                narrow = math.exp(-2.0 * theta[self._short(i)])
                s = np.exp(d2 * (-0.5 * narrow))
                value += b * (s @ held.weights)
                s *= off
                gradient[:, j] = (-b * narrow) * (s @ held.weights)
            else:
                gradient[:, j] = 0.0
        others = _others(ks)
        moving = np.sum(ks, 0) if len(ks) > 1 else None
        for j, (i, k) in enumerate(zip(axes, ks, strict=True)):
            factor = held.product * others[j] if moving is not None else held.product
            if j == 0:
                value += np.einsum("mn,mn->m", k, factor)
            factor = factor + held.linear
            value += np.einsum("mn,mn->m", k, held.linear)
            if moving is not None:
                rest = (2.0 * a2) * (moving - k) * held.weights
                value += 0.5 * np.einsum("mn,mn->m", k, rest)
                factor += rest
            factor *= k
            gradient[:, j] -= math.exp(-2.0 * theta[i]) * np.einsum("mn,mn->m", factor, away[j])
        return value, gradient

    def short_of(self, theta: np.ndarray, axis: int) -> float:
        """The logarithm of an axis' short length."""
        return float(theta[self._short(axis)])

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
