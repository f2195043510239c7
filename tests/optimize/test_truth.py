"""Searched optima against known ones, and the score."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import RunFailed
from shoal.optimize.functions import make
from shoal.optimize.problem import Problem
from shoal.optimize.truth import Scores, cost, monte_carlo, mse, msle, optimum, refined


def test_sphere() -> None:
    problem = make("sphere", shift=0.3)
    conditions = problem.condition_grid()
    found = optimum(problem, conditions)
    np.testing.assert_allclose(found.points[:, 0], 0.3, atol=1e-4)
    np.testing.assert_allclose(found.values, (5.12 * conditions[:, 0]) ** 2, atol=1e-7)
    np.testing.assert_array_equal(found.points[:, 1:], conditions)


def test_shifted_ackley_in_its_deepest_valley() -> None:
    problem = make("ackley", shift=0.3)
    conditions = problem.condition_grid()
    found = optimum(problem, conditions)
    np.testing.assert_allclose(found.points[:, 0], 0.3, atol=1e-4)
    best = problem.evaluate(problem.join(np.array([0.3]), conditions))
    np.testing.assert_allclose(found.values, best, atol=1e-6)


def test_rosenbrock_by_its_cubic() -> None:
    """df/dx1 = 2 (x1 - 1) - 400 x1 (x2 - x1^2) = 0 has at most three roots; the best one is the truth."""
    problem = make("rosenbrock")
    conditions = problem.condition_grid()
    for (c,), value in zip(conditions * 2.048, refined(problem, conditions), strict=True):
        roots = np.roots([400.0, 0.0, 2.0 - 400.0 * c, -2.0])
        x = roots[np.abs(roots.imag) < 1e-9].real.clip(-2.048, 2.048)
        assert value == pytest.approx(float(np.min((1 - x) ** 2 + 100 * (c - x * x) ** 2)), abs=1e-7)


def test_monte_carlo_is_a_little_worse() -> None:
    problem = make("rosenbrock", dims=3, free=2)
    conditions = problem.condition_grid()
    random_best, best = monte_carlo(problem, conditions, samples=500), refined(problem, conditions)
    assert (random_best >= best - 1e-9).all() and (random_best > best + 1e-3).any()
    again = np.random.default_rng(0)
    knobs = problem.sample_knobs(again, 500)
    assert random_best[3] == pytest.approx(problem.evaluate(problem.join(knobs, conditions[[3]])).min())


def plain(bias: float, mode: str, taps: int, c: float) -> float:
    return abs(bias - c) + {"a": 1.0, "b": 0.25, "c": 0.75}[mode] + (taps - 5) ** 2 * 0.1


def test_mixed_knobs_one_call_at_a_time() -> None:
    knobs: dict[str, Any] = {"bias": (0.0, 2.0), "mode": ["a", "b", "c"], "taps": range(1, 9)}
    problem = Problem(plain, knobs=knobs, conditions={"c": (0.0, 2.0)}, kind="python")
    found = optimum(problem, np.array([[-1.0], [0.5]]), samples=32)
    np.testing.assert_allclose(found.values, 0.25, atol=1e-3)
    answer = problem.denormalise(found.points)
    assert answer["mode"] == ["b", "b"] and answer["taps"].tolist() == [5, 5]
    np.testing.assert_allclose(answer["bias"], [0.0, 1.5], atol=1e-3)


@pytest.mark.parametrize("samples", [32, 128])
def test_the_best_combination_is_found_at_a_bounded_cost(samples: int) -> None:
    calls = 0
    centres = {mode: (7 * i % 24) / 24.0 for i, mode in enumerate("abcdefghijklmnopqrstuvwx")}

    def f(x: float, mode: str, c: float) -> float:
        """24 valleys at different places, whose depths change with the condition."""
        nonlocal calls
        calls += 1
        i = ord(mode) - ord("a")
        return (x - centres[mode]) ** 2 + 0.3 * abs(math.sin(i + 2.0 * c))

    problem = Problem(f, knobs={"x": (0.0, 1.0), "mode": list(centres)}, conditions={"c": (0.0, 1.0)}, kind="python")
    conditions = np.linspace(-1.0, 1.0, 5)[:, None]
    found = optimum(problem, conditions, samples=samples)
    depths = 0.3 * np.abs(np.sin(np.arange(24)[None] + 2.0 * (conditions + 1.0) / 2.0))
    np.testing.assert_allclose(found.values, depths.min(1), atol=1e-5)
    assert calls <= len(conditions) * cost(problem, samples)
    assert cost(problem, samples) < 1600


def test_the_cost_of_other_problems_is_a_bound_too() -> None:
    for knobs, conditions in (
        ({"x": (0.0, 1.0)}, 3),
        ({"x": (0.0, 1.0), "y": (0.0, 1.0)}, 2),
        ({"n": range(40)}, 2),
        ({"n": range(40), "m": range(40)}, 1),
        ({"n": range(40), "m": range(40), "x": (0.0, 1.0)}, 1),
    ):
        problem = Problem(lambda **k: float(sum(k.values())), knobs=knobs, conditions={"c": (0, 1)}, kind="python")
        refined(problem, np.zeros((conditions, 1)))
        assert conditions * cost(problem) * 0.4 <= problem.evaluations <= conditions * cost(problem), knobs


def test_too_many_combinations_to_try_all() -> None:
    knobs = {f"n{i}": range(10) for i in range(6)}
    want = [7, 0, 9, 3, 4, 1]

    def f(**n: Any) -> Any:
        return sum((n[f"n{i}"] - want[i]) ** 2 for i in range(6)) + 0.0

    problem = Problem(f, knobs=knobs, kind="numpy")
    found = optimum(problem, np.zeros((1, 0)))
    assert found.values.tolist() == [0.0]
    assert [int(v[0]) for v in problem.denormalise(found.points).values()] == want


def test_a_noisy_optimum_is_a_mean() -> None:
    draw = random.Random(0)
    problem = Problem(lambda x: (x - 1) ** 2 + draw.gauss(0, 0.1), knobs={"x": (0.0, 2.0)}, noisy=True)
    found = optimum(problem, np.zeros((1, 0)), samples=64)
    assert abs(problem.denormalise(found.points)["x"][0] - 1.0) < 0.4 and abs(found.values[0]) < 0.25


def test_failures_are_passed_over_until_all_fail() -> None:
    def holes(x: float) -> float:
        if x < 0.5:
            raise ValueError("no convergence")
        return x

    half = Problem(holes, knobs={"x": (0.0, 1.0)}, kind="python")
    assert refined(half, np.zeros((1, 0)))[0] == pytest.approx(0.5, abs=1e-3)
    never = Problem(holes, knobs={"x": (0.0, 0.4)}, kind="python")
    with pytest.raises(RunFailed, match=r"^every evaluation of holes failed: ValueError: no convergence$"):
        refined(never, np.zeros((1, 0)))


def test_the_second_question_costs_nothing() -> None:
    calls = [0]

    def f(x: float) -> float:
        calls[0] += 1
        return x * x

    problem = Problem(f, knobs={"x": (0.0, 1.0)}, kind="python")
    first = monte_carlo(problem, np.zeros((1, 0)), 50)
    spent = calls[0]
    assert spent == 50
    np.testing.assert_array_equal(monte_carlo(problem, np.zeros((1, 0)), 50), first)
    assert calls[0] == spent
    monte_carlo(problem, np.zeros((1, 0)), 50, seed=1)
    assert calls[0] == 2 * spent


def test_scores() -> None:
    assert mse([1.0, 2.0], [1.0, 0.0]) == 2.0
    assert mse([math.nan, 2.0], [1.0, 0.0]) == 4.0 and math.isnan(mse([math.nan], [1.0]))
    assert msle([math.e, -1e-9], [1.0, 0.0]) == pytest.approx(0.5)
    values, truth = np.array([3.0, 500.0, 0.2]), np.array([0.0, 400.0, 0.1])
    assert np.mean((np.log1p(values) - np.log1p(truth)) ** 2) <= msle(values, truth)


def test_the_summary_of_a_curve() -> None:
    scores = Scores()
    for step in range(0, 3001, 10):
        scores.add(step, 0.0 if step == 0 else 9.0 if step <= 1000 else 4.0 if step <= 2000 else 1.0 + (step == 3000))
    scores.values[scores.steps.index(490)] = 0.5  # better than all, and too early to count
    told = scores.summary()
    assert told.start == 0.0 and told.best == 1.0
    assert told.first_mean == pytest.approx((99 * 9 + 0.5) / 100)
    assert told.last_mean == pytest.approx(1.01) and told.last_var == pytest.approx(0.0099)


def test_a_short_run_counts_after_its_start() -> None:
    scores = Scores([0, 10, 20], [0.1, 3.0, 2.0])
    told = scores.summary()
    assert (told.start, told.best, told.first_mean, told.last_mean) == (0.1, 2.0, 2.5, 2.5)
    assert all(math.isnan(value) for value in Scores().summary())
