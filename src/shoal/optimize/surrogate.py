"""A surrogate of f: an exact Gaussian process over knobs and conditions, in double precision.

It predicts f with a spread, and its mean has gradients, so that minima are searched without evaluating f. The kernel is in
`kernel`; its lengths and scales maximise the marginal likelihood of some of the rows (Rasmussen and Williams 2006, chapter 5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, lapack, solve_triangular
from scipy.optimize import minimize

from shoal.optimize.axes import Real
from shoal.optimize.kernel import Kernel, Side
from shoal.optimize.problem import Problem
from shoal.optimize.threads import one_thread

ROWS = 2048  # rows that predictions use, at most: time grows with their square, and a factorisation with their cube
FITTED = 320  # rows that the lengths are fitted to, at most
ITERATIONS = 25  # of a fit
TRIAL = 6  # iterations from each of several starts; only the best goes on
AT_ONCE = 512  # points whose spread is computed at a time, to bound memory
JITTER = 1e-9  # added to the noise, in units of the variance: keeps factorisations possible


def kernel_of(problem: Problem, ripples: bool | None = None) -> Kernel:
    """The kernel over a problem's axes, knobs first. Real axes have ripples, unless f is noisy or `ripples` is False."""
    groups, at = [], 0
    for axis in problem.axes:
        groups.append(tuple(range(at, at + axis.width)))
        at += axis.width
    some = not problem.noisy if ripples is None else ripples
    return Kernel(tuple(groups), tuple(some and isinstance(axis, Real) for axis in problem.axes))


class Factor(NamedTuple):
    """The Cholesky factor of the rows' covariance."""

    lower: np.ndarray  # [n, n]
    jitter: float  # that was added to the diagonal


class Surrogate:
    """A Gaussian process given rows [n, width] with values [n]. `fit` chooses the lengths, `given` sets the rows."""

    def __init__(self, kernel: Kernel, theta: np.ndarray | None = None) -> None:
        self.kernel = kernel
        self.theta = kernel.start() if theta is None else np.asarray(theta, np.float64)
        self.rows = np.zeros((0, sum(map(len, kernel.groups))))
        self.values = np.zeros(0)
        self.failed = self.rows  # points at which f failed
        self.weights = np.zeros(0)  # the mean is the kernel times these
        self.centre, self.scale = 0.0, 1.0
        self._factor: Factor | None = None
        self._of: np.ndarray | None = None  # the theta of the factor

    # From data

    def fit(self, rows: np.ndarray, values: np.ndarray, rng: np.random.Generator, *, fresh: bool = False) -> None:
        """Choose theta. Of many rows, the lowest values and a random rest count; `fresh` starts from several lengths as well."""
        if len(rows) < 3 or np.ptp(values) == 0.0:
            return
        values = (values - values.mean()) / values.std()
        if len(rows) > FITTED:
            order = np.argsort(values, kind="stable")
            low, rest = order[: FITTED // 2], order[FITTED // 2 :]
            keep = np.concatenate([low, rng.choice(rest, FITTED - len(low), replace=False)])
            rows, values = rows[keep], values[keep]
        gaps = self.kernel.gaps(rows)
        starts = [self.theta]
        if fresh:
            starts += [self.kernel.start(length, ripple) for length, ripple in ((0.2, 0.03), (1.0, 0.03), (1.0, 1.0))]
            tried = [self._improved(start, gaps, values, TRIAL) for start in starts]
            starts = [min(tried, key=lambda found: found.fun).x]
        self.theta = np.asarray(self._improved(starts[0], gaps, values, ITERATIONS).x)

    def _improved(self, theta: np.ndarray, gaps: list[np.ndarray], values: np.ndarray, iterations: int) -> Any:
        """SciPy's result of minimising the surprise from theta."""
        return minimize(
            self.surprise,
            theta,
            args=(gaps, values),
            jac=True,
            method="L-BFGS-B",
            bounds=self.kernel.bounds(),
            options={"maxiter": iterations},
        )

    def surprise(self, theta: np.ndarray, gaps: list[np.ndarray], y: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log marginal likelihood of y [n] and minus the log prior, up to a constant, and the gradient.

        `gaps` are the squared distances of the rows (`Kernel.gaps`).
        """
        n, noise = len(y), math.exp(theta[-1])
        parts = self.kernel.parts(theta, gaps)
        below = np.tril_indices(n, -1)
        k = np.zeros((n, n), order="F")
        k[below] = self.kernel.sums(theta, *parts)
        k[np.diag_indices(n)] = self.kernel.variance(theta) + noise + JITTER
        factor, info = lapack.dpotrf(k, lower=1, overwrite_a=1)
        if info:
            return 1e10, np.zeros_like(theta)
        solved = lapack.dpotrs(factor, y, lower=1)[0]
        value = 0.5 * float(y @ solved) + float(np.log(np.diag(factor)).sum())
        inverse = lapack.dpotri(factor, lower=1, overwrite_c=1)[0]
        weights = 2.0 * (solved[below[0]] * solved[below[1]] - inverse[below])
        trace = float(solved @ solved - np.trace(inverse))
        slope = np.append(self.kernel.slopes(theta, gaps, parts, weights, trace), trace * noise)
        prior, pull = self.kernel.prior(theta)
        return value + prior, -0.5 * slope + pull

    def given(
        self, rows: np.ndarray, values: np.ndarray, failed: np.ndarray | None = None, centre: float | None = None
    ) -> None:
        """Condition on exactly these rows. If they begin with those of the previous call, only the new ones are factorised.

        Far from all rows `centre` is expected, by default the mean of the values.
        """
        known = len(self.rows)
        grown = self._of is self.theta and known <= len(rows) and np.array_equal(rows[:known], self.rows)
        self.rows, self.values = rows, values
        self.failed = rows[:0] if failed is None else failed
        self.centre, self.scale = float(values.mean()) if centre is None else centre, float(values.std()) or 1.0
        self._factor = (self._extended(known) if grown else None) or self._factored()
        self._of = self.theta
        self.weights = cho_solve((self._factor.lower, True), (values - self.centre) / self.scale, check_finite=False)

    def _factored(self) -> Factor:
        k = self.kernel.combine(self.theta, self.kernel.side(self.theta, self.rows, self.rows))
        jitter = JITTER * max(1.0, self.kernel.variance(self.theta))
        while True:
            full = k.copy()
            full[np.diag_indices(len(k))] += math.exp(self.theta[-1]) + jitter
            try:
                return Factor(np.asarray(cholesky(full, lower=True, overwrite_a=True, check_finite=False)), jitter)
            except np.linalg.LinAlgError:  # rows too close for the lengths
                jitter *= 10.0

    def _extended(self, known: int) -> Factor | None:
        """The factor for all rows from that of the first `known`; None if the new rows are too close to others."""
        if self._factor is None:
            return None
        lower, jitter = self._factor
        new, n = self.rows[known:], len(self.rows)
        k = self.kernel.combine(self.theta, self.kernel.side(self.theta, new, self.rows))
        side = solve_triangular(lower, k[:, :known].T, lower=True, check_finite=False).T
        corner = k[:, known:] - side @ side.T
        corner[np.diag_indices(len(new))] += math.exp(self.theta[-1]) + jitter
        try:
            corner = cholesky(corner, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        found = np.zeros((n, n))
        found[:known, :known], found[known:, :known], found[known:, known:] = lower, side, corner
        return Factor(found, jitter)

    # Predictions, in units of f

    def mean(self, points: np.ndarray) -> np.ndarray:
        """[M, width] to [M]."""
        k = self.kernel.combine(self.theta, self.kernel.side(self.theta, points, self.rows))
        return np.asarray(self.centre + self.scale * (k @ self.weights))

    @one_thread()
    def both(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the standard deviation, without noise, at points [M, width]: [M] each."""
        if self._factor is None:
            self._factor = self._factored()
        means, spreads = [], []
        for at in range(0, len(points), AT_ONCE):
            some = points[at : at + AT_ONCE]
            k = self.kernel.combine(self.theta, self.kernel.side(self.theta, some, self.rows))
            v = solve_triangular(self._factor.lower, k.T, lower=True, check_finite=False)
            means.append(k @ self.weights)
            spreads.append(self.kernel.variance(self.theta) - np.einsum("nm,nm->m", v, v))
        left = np.maximum(np.concatenate(spreads), 1e-12)
        return self.centre + self.scale * np.concatenate(means), self.scale * np.sqrt(left)

    def over(self, knobs: Side, conditions: np.ndarray, split: int) -> np.ndarray:
        """The mean for each condition [C, width] and each of the knobs, [C, S].

        `knobs` is the side (`side_of`) of the first `split` axes. A kernel over all axes is made of sums over each side, so that
        this takes products of matrices and few exponentials.
        """
        a1, a2, a3, b = self.kernel.scales(self.theta)
        x, c = knobs, self.side_of(conditions, range(split, self.kernel.axes))
        w = self.weights
        alone = [a1 * s.total @ w + a2 * (s.total**2 - s.square) @ w + b * s.ripple @ w for s in (c, x)]
        crossed = (2.0 * a2 * c.total * w) @ x.total.T + (a3 * c.product * w) @ x.product.T
        return np.asarray(self.centre + self.scale * (alone[0][:, None] + alone[1][None] + crossed))

    def side_of(self, points: np.ndarray, axes: Sequence[int]) -> Side:
        """Sums over these axes for points [M, width] against the rows."""
        return self.kernel.side(self.theta, points, self.rows, axes)

    def ripples_unseen(self, knobs: np.ndarray, split: int) -> np.ndarray:
        """About the standard deviation of the ripples along the first `split` axes, at knobs [S, columns]: [S].

        Each ripple is taken to be known from the nearest row along its axis alone. That is quick, and enough to compare candidates.
        """
        kernel, variance = self.kernel, np.zeros(len(knobs))
        b = kernel.scales(self.theta)[-1]
        for i in range(split):
            if kernel.rippled[i]:
                column = kernel.groups[i][0]
                at = np.sort(self.rows[:, column])
                place = np.searchsorted(at, knobs[:, column])
                low, high = at[np.maximum(place - 1, 0)], at[np.minimum(place, len(at) - 1)]
                gap = np.minimum(np.abs(knobs[:, column] - low), np.abs(high - knobs[:, column]))
                variance += b * (1.0 - np.exp(-(gap**2) * math.exp(-2.0 * kernel.short_of(self.theta, i))))
        return self.scale * np.sqrt(variance)

    def works(self, points: np.ndarray) -> np.ndarray:
        """Whether the nearest tried point is one at which f did not fail: [M] bool."""
        if not len(self.failed):
            return np.ones(len(points), bool)
        return np.asarray(self.nearest(points) <= _nearest(points, self.failed))

    def nearest(self, points: np.ndarray) -> np.ndarray:
        """The distance to the nearest row, in normalised coordinates: [M]."""
        return _nearest(points, self.rows)

    @property
    def noise(self) -> float:
        """The standard deviation of f's noise, as fitted."""
        return self.scale * math.exp(0.5 * self.theta[-1])

    # To and from a file

    def arrays(self) -> dict[str, np.ndarray]:
        """All that predictions need, in double precision."""
        numbers = np.array([self.centre, self.scale])
        names = ("theta", "rows", "values", "failed", "weights")
        return {name: np.asarray(getattr(self, name)) for name in names} | {"standard": numbers}

    @classmethod
    def of(cls, problem: Problem, arrays: Mapping[str, np.ndarray]) -> Surrogate:
        """The surrogate of `arrays`; its means are the same, bit for bit."""
        plain = kernel_of(problem, ripples=False)
        made = cls(kernel_of(problem, ripples=len(arrays["theta"]) > plain.size), arrays["theta"])
        made.rows, made.values, made.failed = arrays["rows"], arrays["values"], arrays["failed"]
        made.weights = arrays["weights"]
        made.centre, made.scale = map(float, arrays["standard"])
        return made


def _nearest(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if not len(rows):
        return np.full(len(points), np.inf)
    squares = (points**2).sum(1)[:, None] + (rows**2).sum(1)[None] - 2.0 * points @ rows.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0).min(1)))
