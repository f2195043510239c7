"""Each optimiser finds what is easy within its evaluations, and spends no more than they."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.optimize import baselines
from shoal.optimize.baselines import METHODS, break_even, evaluations_to_reach, optimise
from shoal.optimize.functions import make
from shoal.optimize.problem import Problem

LIBRARIES = ("cma", "nevergrad")
HERE = [m for m in METHODS if m not in LIBRARIES or importlib.util.find_spec(m)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:(nevergrad|cma|bayes_opt|pandas).*")
@pytest.mark.parametrize("free", [1, 2])
@pytest.mark.parametrize("method", HERE)
def test_the_sphere_within_300_evaluations(method: str, free: int) -> None:
    problem = make("sphere", free=free, shift=0.3)
    result = optimise(method, problem, np.full(2 - free, 0.5), 300)
    lowest = (2 - free) * 2.56**2
    rough = method in ("random_search", "nevergrad")
    assert lowest - 1e-9 <= result.value < lowest + (0.3 if rough else 0.02)
    np.testing.assert_allclose(result.point, [0.3, 0.3 if free == 2 else 0.5], atol=0.15 if rough else 0.03)
    assert result.evaluations == len(result.trace) == 300
    assert (np.diff(result.trace) <= 0).all() and result.trace[-1] == result.value
    assert problem.evaluate(result.point[None])[0] == pytest.approx(result.value)


@pytest.mark.parametrize("method", ["random_search", "differential_evolution"])
def test_the_same_seed_gives_the_same_search(method: str) -> None:
    problem = make("ackley", shift=0.3)
    first, again, other = (optimise(method, problem, [0.2], 60, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.trace, again.trace)
    assert not np.array_equal(first.trace, other.trace)


@pytest.mark.parametrize("method", ["gradient_descent", "momentum"])
def test_slopes_without_tracing_cost_evaluations(method: str) -> None:
    calls = [0]

    def f(x: float, y: float) -> float:
        calls[0] += 1
        return math.pow(x - 1, 2) + math.pow(y + 1, 2)

    problem = Problem(f, knobs={"x": (-2, 2), "y": (-2, 2)}, kind="python")
    result = optimise(method, problem, [], 400)
    assert calls[0] == result.evaluations == 400
    assert result.value < 1e-2


def test_gradient_descent_steps_by_the_formula() -> None:
    problem = Problem(lambda x: x**2, knobs={"x": (-1.0, 1.0)}, kind="jax")
    f = baselines.Objective(problem, np.zeros(0), 100, np.random.default_rng(0))
    history = baselines.History([np.array([0.5])])
    np.testing.assert_allclose(baselines.gradient_descent(f, history), [-baselines.RATE * 1.0])
    np.testing.assert_allclose(baselines.momentum(f, history), [-baselines.RATE * 1.0])
    history.points.append(np.array([0.25]))
    np.testing.assert_allclose(baselines.momentum(f, history), [-baselines.RATE * (0.5 + baselines.DECAY * 1.0)])


def test_random_search_stays_at_the_best() -> None:
    f = baselines.Objective(make("sphere"), np.zeros(1), 30, np.random.default_rng(0))
    history = baselines.History([f.random()])
    for _ in range(10):
        history.points.append(history.points[-1] + baselines.random_search(f, history))
    assert f(history.points[-1]) == pytest.approx(f.best)


@pytest.mark.parametrize("method", ["random_search", "differential_evolution", "dual_annealing"])
def test_mixed_knobs_and_failures(method: str) -> None:
    def f(x: float, mode: str, n: int) -> float:
        if x > 0.9:
            raise ValueError("too much")
        return (x - 0.5) ** 2 + (mode != "b") + abs(n - 3)

    problem = Problem(f, knobs={"x": (0.0, 1.0), "mode": ["a", "b", "c"], "n": range(6)}, kind="python")
    result = optimise(method, problem, [], 400)
    answer = problem.denormalise(result.point)
    assert result.value < 0.1 and answer["mode"] == "b" and answer["n"] == 3 and abs(answer["x"] - 0.5) < 0.3


def test_bad_requests_are_refused_in_one_line() -> None:
    problem = make("sphere")
    mixed = Problem(lambda n: n, knobs={"n": range(3)}, kind="python")
    for given, message in (
        (("cmaes", problem, [0.0], 10), r"unknown method 'cmaes'. Did you mean 'cma'"),
        (("random_search", problem, [0.0], 0), "budget=0"),
        (("random_search", problem, [0.0, 1.0], 10), "condition of 2 values: sphere has 1"),
        (("momentum", mixed, [], 10), "'momentum' needs real knobs, and 'n' is not one"),
    ):
        with pytest.raises(BadInput, match=message):
            optimise(*given)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", LIBRARIES)
def test_a_missing_library_is_named(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, *_: Any) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(BadInput, match=f"method '{method}' is not installed: pip install {method}"):
        optimise(method, make("sphere"), [0.0], 10)


def test_break_even() -> None:
    told = break_even(
        law_evaluations=1000, law_seconds_per_query=0.5, baseline_evaluations=50, seconds_per_evaluation=0.1
    )
    assert told.queries == 23  # 100 s once; 4.5 s saved a query: after 22 the law has cost 111 against 110, then less
    law, baseline = 100 + 0.5 * told.at, 5.0 * told.at
    np.testing.assert_allclose(told.law, law)
    np.testing.assert_allclose(told.baseline, baseline)
    assert (baseline[told.at >= 23] > law[told.at >= 23]).all() and (baseline[told.at < 23] <= law[told.at < 23]).all()
    assert told.at[0] == 1 and told.at[-1] > 23
    with_training = break_even(
        law_evaluations=1000,
        law_seconds_per_query=0.5,
        baseline_evaluations=50,
        seconds_per_evaluation=0.1,
        training_seconds=45.0,
    )
    assert with_training.queries == 33


def test_a_law_that_is_slower_than_searching_never_pays() -> None:
    told = break_even(law_evaluations=10, law_seconds_per_query=1.0, baseline_evaluations=5, seconds_per_evaluation=0.1)
    assert math.isinf(told.queries) and np.isfinite(told.law).all()


def test_evaluations_to_reach_a_value() -> None:
    result = optimise("random_search", make("sphere"), [0.0], 50)
    reached = evaluations_to_reach(result, 1.0)
    assert reached is not None and result.trace[reached - 1] <= 1.0 and (result.trace[: reached - 1] > 1.0).all()
    assert evaluations_to_reach(result, -1.0) is None


@pytest.mark.parametrize("method", HERE)
def test_an_f_that_always_fails_is_told_apart(method: str) -> None:
    def never(x: float, y: float) -> float:
        raise ValueError("no")

    result = optimise(method, Problem(never, knobs={"x": (0, 1), "y": (0, 1)}, kind="python"), [], 40)
    assert math.isinf(result.value) and result.evaluations == 40 and np.isinf(result.trace).all()
