"""A surrogate of f: an exact Gaussian process over knobs and conditions, in double precision.

It predicts f with a spread, and its mean has gradients, so that minima are searched without evaluating f. The kernel is in
`kernel`; its lengths and scales maximise the marginal likelihood of some of the rows (Rasmussen and Williams 2006, chapter 5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.linalg import cho_solve, cholesky, lapack, solve_triangular
from scipy.optimize import minimize

from shoal.optimize.axes import Real
from shoal.optimize.kernel import Kernel
from shoal.optimize.problem import Problem

ROWS = 2048  # rows that predictions use, at most: time grows with their square, and a factorisation with their cube
FITTED = 320  # rows that the lengths are fitted to, at most
ITERATIONS = 25  # of a fit
JITTER = 1e-9  # added to the noise, in units of the variance: keeps factorisations possible


def kernel_of(problem: Problem, ripples: bool | None = None) -> Kernel:
    """The kernel over a problem's axes, knobs first. Real axes have ripples, unless f is noisy or `ripples` is False."""
    groups, at = [], 0
    for axis in problem.axes:
        groups.append(tuple(range(at, at + axis.width)))
        at += axis.width
    some = not problem.noisy if ripples is None else ripples
    return Kernel(tuple(groups), tuple(some and isinstance(axis, Real) for axis in problem.axes))


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
        self._factor: np.ndarray | None = None

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
        d2 = self.kernel.distances(rows, rows)
        starts = [self.theta]
        if fresh:
            starts += [self.kernel.start(length, ripple) for length, ripple in ((0.2, 0.03), (1.0, 0.03), (1.0, 1.0))]
        best = None
        for start in starts:
            found = minimize(
                self.surprise,
                start,
                args=(d2, values),
                jac=True,
                method="L-BFGS-B",
                bounds=self.kernel.bounds(),
                options={"maxiter": ITERATIONS},
            )
            if best is None or found.fun < best.fun:
                best = found
        assert best is not None
        self.theta = np.asarray(best.x)

    def surprise(self, theta: np.ndarray, d2: list[np.ndarray], y: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log marginal likelihood of y [n] and minus the log prior, up to a constant, and the gradient."""
        n, noise = len(y), math.exp(theta[-1])
        k = self.kernel.matrix(theta, d2)
        k[np.diag_indices(n)] += noise + JITTER
        factor, info = lapack.dpotrf(k, lower=1)
        if info:
            return 1e10, np.zeros_like(theta)
        inverse = lapack.dpotri(factor, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        solved = inverse @ y
        value = 0.5 * float(y @ solved) + float(np.log(np.diag(factor)).sum())
        w = np.outer(solved, solved) - inverse
        slope = np.append(self.kernel.slopes(theta, d2, w), np.trace(w) * noise)
        prior, pull = self.kernel.prior(theta)
        return value + prior, -0.5 * slope + pull

    def given(self, rows: np.ndarray, values: np.ndarray, failed: np.ndarray | None = None) -> None:
        """Condition on these rows, all of them."""
        self.rows, self.values = rows, values
        self.failed = rows[:0] if failed is None else failed
        self.centre, self.scale = float(values.mean()), float(values.std()) or 1.0
        self._factor = self._factored()
        self.weights = cho_solve((self._factor, True), (values - self.centre) / self.scale)

    def _factored(self) -> np.ndarray:
        k = self.kernel.combine(self.theta, self.kernel.side(self.theta, self.rows, self.rows))
        jitter = JITTER * max(1.0, self.kernel.variance(self.theta))
        while True:
            full = k.copy()
            full[np.diag_indices(len(k))] += math.exp(self.theta[-1]) + jitter
            try:
                return np.asarray(cholesky(full, lower=True, overwrite_a=True))
            except np.linalg.LinAlgError:  # rows too close for the lengths
                jitter *= 10.0

    # Predictions, in units of f

    def mean(self, points: np.ndarray) -> np.ndarray:
        """[M, width] to [M]."""
        k = self.kernel.combine(self.theta, self.kernel.side(self.theta, points, self.rows))
        return np.asarray(self.centre + self.scale * (k @ self.weights))

    def both(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the standard deviation, without noise, at points [M, width]: [M] each."""
        if self._factor is None:
            self._factor = self._factored()
        k = self.kernel.combine(self.theta, self.kernel.side(self.theta, points, self.rows))
        v = solve_triangular(self._factor, k.T, lower=True, check_finite=False)
        left = np.maximum(self.kernel.variance(self.theta) - np.einsum("nm,nm->m", v, v), 1e-12)
        return self.centre + self.scale * (k @ self.weights), self.scale * np.sqrt(left)

    def over(self, knobs: np.ndarray, conditions: np.ndarray, split: int) -> np.ndarray:
        """The mean for each condition [C, width] and knobs [S, width], whose first `split` axes are used: [C, S].

        A kernel over all axes is made of sums over each side, so that this takes products of matrices and few exponentials.
        """
        a1, a2, a3, b = self.kernel.scales(self.theta)
        sides = range(split), range(split, self.kernel.axes)
        x, c = (self.kernel.side(self.theta, p, self.rows, s) for p, s in zip((knobs, conditions), sides, strict=True))
        w = self.weights
        alone = [a1 * s.total @ w + a2 * (s.total**2 - s.square) @ w + b * s.ripple @ w for s in (c, x)]
        crossed = (2.0 * a2 * c.total * w) @ x.total.T + (a3 * c.product * w) @ x.product.T
        return np.asarray(self.centre + self.scale * (alone[0][:, None] + alone[1][None] + crossed))

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
