"""The Gaussian process against formulas written out slowly, and its gradients against differences."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from shoal.optimize import Problem, surrogate
from shoal.optimize.explorer import Explorer
from shoal.optimize.kernel import Kernel
from shoal.optimize.search import Search, even_points
from shoal.optimize.surrogate import JITTER, Surrogate, kernel_of
from shoal.optimize.threads import _libraries, one_thread

MIXED = Problem(
    lambda x, mode, y, c: 0.0,
    knobs={"x": (-1, 1), "mode": ["a", "b", "c"], "y": (0, 5)},
    conditions={"c": (-1, 1)},
    kind="python",
)
KERNEL = kernel_of(MIXED)


def theta(kernel: Kernel, seed: int = 1) -> np.ndarray:
    return kernel.start(0.6, 0.2, 1e-3) + np.random.default_rng(seed).normal(0, 0.3, kernel.size)


def slow_kernel(kernel: Kernel, t: np.ndarray, z: np.ndarray, w: np.ndarray) -> float:
    """The formula of the module's docstring, for one pair of points."""
    a, r = kernel.axes, kernel.short
    lengths, shorts = np.exp(t[:a]), iter(np.exp(t[a : a + r]))
    a1, a2, a3, b = np.exp(t[a + r : -1])
    d2 = [sum((z[c] - w[c]) ** 2 for c in group) for group in kernel.groups]
    k = [np.exp(-d / (2 * length**2)) for d, length in zip(d2, lengths, strict=True)]
    ripples = [np.exp(-d / (2 * next(shorts) ** 2)) for d, real in zip(d2, kernel.rippled, strict=True) if real]
    pairs = [x * y for x, y in combinations(k, 2)]
    return float(a1 * np.mean(k) + a2 * np.mean(pairs) + a3 * np.prod(k) + b * np.mean(ripples))


def some(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rows = even_points(MIXED, n, np.random.default_rng(seed))
    return rows, np.sin(3 * rows[:, 0]) + rows[:, 4] * rows[:, 5] + rows[:, 1]


def test_mean_and_variance_are_the_textbooks() -> None:
    rows, values = some(24)
    gp = Surrogate(KERNEL, theta(KERNEL))
    gp.given(rows, values)
    points, _ = some(7, seed=5)
    k = np.array([[slow_kernel(KERNEL, gp.theta, z, w) for w in rows] for z in rows])
    kz = np.array([[slow_kernel(KERNEL, gp.theta, z, w) for w in rows] for z in points])
    alone = slow_kernel(KERNEL, gp.theta, points[0], points[0])
    noise = np.exp(gp.theta[-1]) + JITTER * max(1.0, alone)
    inverse = np.linalg.inv(k + noise * np.eye(len(rows)))
    y = (values - values.mean()) / values.std()
    mean, spread = gp.both(points)
    np.testing.assert_allclose(mean, values.mean() + values.std() * (kz @ inverse @ y), rtol=1e-7, atol=1e-7)
    left = alone - np.einsum("ij,jk,ik->i", kz, inverse, kz)
    np.testing.assert_allclose(spread, values.std() * np.sqrt(left), rtol=1e-5)
    np.testing.assert_allclose(gp.mean(points), mean, rtol=1e-12, atol=1e-12)


def test_new_rows_extend_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, values = some(40)
    points, _ = some(9, seed=5)
    whole = Surrogate(KERNEL, theta(KERNEL))
    whole.given(rows, values)
    grown = Surrogate(KERNEL, whole.theta)
    grown.given(rows[:10], values[:10])
    monkeypatch.setattr(grown, "_factored", lambda: pytest.fail("factorised all rows again"))
    for n in (10, 23, 40):
        grown.given(rows[:n], values[:n])
    for a, b in zip(whole.both(points), grown.both(points), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    monkeypatch.undo()
    twins = np.concatenate([rows, rows[:1], rows[:1]])  # no factor can be extended by these without noise
    whole.theta = np.append(whole.theta[:-1], -60.0)
    whole.given(rows, values)
    whole.given(twins, np.append(values, values[[0, 0]]))
    np.testing.assert_allclose(whole.mean(rows[:5]), values[:5], atol=1e-3)
    whole.given(rows[5:], values[5:])  # other rows: nothing can be kept
    np.testing.assert_allclose(whole.mean(rows[5:9]), values[5:9], atol=1e-3)


def test_matrices_use_one_thread_and_f_keeps_its_own() -> None:
    blas = _libraries()
    if not blas:
        pytest.skip("NumPy and SciPy have no OpenBLAS of their own here")
    before = [library.get() for library in blas]
    try:
        for library in blas:
            library.set(2)
        had = [library.get() for library in blas]  # 1 on a machine with one core
        with one_thread():
            with pytest.raises(ZeroDivisionError), one_thread():
                raise ZeroDivisionError
            assert [library.get() for library in blas] == [1] * len(blas)
        assert [library.get() for library in blas] == had
        seen = []
        explorer = Explorer(MIXED)
        explorer.tell(*some(24))
        explorer.surrogate.fit = lambda *a, **k: seen.extend(library.get() for library in blas)  # type: ignore[method-assign]
        explorer.ask(4)
        assert seen == [1] * len(blas) and [library.get() for library in blas] == had
    finally:
        for library, threads in zip(blas, before, strict=True):
            library.set(threads)


def test_means_over_knobs_and_conditions_are_those_of_their_points() -> None:
    gp = Surrogate(KERNEL, theta(KERNEL))
    gp.given(*some(24))
    knobs, conditions = some(5, seed=2)[0], some(3, seed=3)[0]
    together = gp.over(gp.side_of(knobs, range(MIXED.n_knobs)), conditions, MIXED.n_knobs)
    width = MIXED.knob_width
    for i, given in enumerate(conditions):
        points = np.concatenate([knobs[:, :width], np.tile(given[width:], (5, 1))], 1)
        np.testing.assert_allclose(together[i], gp.mean(points), rtol=1e-10, atol=1e-10)


def test_the_likelihoods_gradient_is_its_difference() -> None:
    rows, values = some(20)
    gp, t = Surrogate(KERNEL), theta(KERNEL)
    d2, y = KERNEL.gaps(rows), (values - values.mean()) / values.std()
    _, slope = gp.surprise(t, d2, y)
    for i, step in enumerate(np.eye(len(t)) * 1e-6):
        difference = (gp.surprise(t + step, d2, y)[0] - gp.surprise(t - step, d2, y)[0]) / 2e-6
        assert slope[i] == pytest.approx(difference, rel=1e-4, abs=1e-5), i


def test_the_means_gradient_is_its_difference() -> None:
    gp = Surrogate(KERNEL, theta(KERNEL))
    gp.given(*some(24))
    search = Search(MIXED, gp)
    points = np.clip(some(6, seed=4)[0], -0.9, 0.9)
    held = search.held(points)
    mean, slope = search.slopes(points, held)
    np.testing.assert_allclose(mean, gp.mean(points), rtol=1e-10, atol=1e-10)
    for i, column in enumerate((0, 4)):
        step = np.zeros(MIXED.width)
        step[column] = 1e-6
        difference = (gp.mean(points + step) - gp.mean(points - step)) / 2e-6
        np.testing.assert_allclose(slope[:, i], difference, rtol=1e-4, atol=1e-5)


def test_values_without_noise_are_interpolated_and_noise_is_found() -> None:
    rng = np.random.default_rng(0)
    noisy, line = (
        Problem(lambda x, c: 0.0, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="python", noisy=noisy)
        for noisy in (True, False)
    )
    rows = even_points(line, 60, rng)
    exact = (rows[:, 0] - 0.5 * rows[:, 1]) ** 2
    found = {}
    for noise in (0.0, 0.1):
        gp = Surrogate(kernel_of(noisy if noise else line))
        values = exact + noise * rng.standard_normal(60)
        gp.fit(rows, values, rng, fresh=True)
        gp.given(rows, values)
        found[noise] = gp.noise
        if not noise:
            np.testing.assert_allclose(gp.mean(rows), values, atol=2e-3)
    assert found[0.0] < 0.01 and 0.05 < found[0.1] < 0.2


def test_the_same_seed_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogate, "FITTED", 30)

    def fitted(seed: int) -> dict[str, Any]:
        rows, values = some(60)
        gp = Surrogate(KERNEL)
        gp.fit(rows, values, np.random.default_rng(seed))  # of 60 rows, 30 are drawn
        gp.given(rows[:40], values[:40])
        return gp.arrays()

    first, again, other = fitted(0), fitted(0), fitted(1)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["theta"], other["theta"])


def test_answers_avoid_where_f_fails() -> None:
    line = Problem(lambda x: 0.0, knobs={"x": (-1, 1)}, kind="python")
    rows = np.linspace(-1, 0.4, 15)[:, None]
    gp = Surrogate(kernel_of(line))
    gp.given(rows, -rows[:, 0], failed=np.linspace(0.5, 1, 6)[:, None])
    assert not gp.works(np.array([[0.6]]))[0] and gp.works(np.array([[0.3]]))[0]
    assert Search(line, gp).minima(np.zeros((1, 0)))[0, 0] <= 0.45 + 1e-9
