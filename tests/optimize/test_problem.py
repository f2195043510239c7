"""A problem maps points to values and back, calls f in every way, and refuses what makes no sense in one line."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.core.spec import Categorical, Continuous
from shoal.ops import distributions
from shoal.optimize.problem import Problem

KNOBS: dict[str, Any] = {"bias": (0.1, 5.0), "gain": (-2, 2), "mode": ["a", "b", "c"], "taps": range(1, 9)}
CONDITIONS = {"temp": (-40, 125), "vdd": (1.6, 2.0)}


def mixed(bias: float, gain: float, mode: str, taps: int, temp: float, vdd: float) -> float:
    return (bias - vdd) ** 2 + gain**2 + {"a": 0.0, "b": 1.0, "c": 2.0}[mode] + taps + temp / 100


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(mixed, knobs=KNOBS, conditions=CONDITIONS)


def bowl(x: Any, c: Any) -> Any:
    return (x - c) ** 2


def plain(f: Any, **more: Any) -> Problem:
    return Problem(f, knobs={"x": (0.0, 4.0)}, conditions={"c": (0.0, 4.0)}, **more)


def test_columns_and_actions(problem: Problem) -> None:
    assert (problem.n_knobs, problem.n_conditions, problem.knob_width, problem.width) == (4, 2, 6, 8)
    spec = problem.action_spec()
    assert spec.parts == (Continuous((-1.0, -1.0), (1.0, 1.0)), Categorical((3, 8)))
    assert spec.shape == (4,) and spec.dtype == np.float32
    assert Problem(lambda m: m, knobs={"m": [1, 2]}).action_spec().dtype == np.int32


def test_values_survive_the_way_to_a_point_and_back(problem: Problem) -> None:
    given = {"bias": 5.0, "gain": -2.0, "mode": "b", "taps": 8, "temp": -40.0, "vdd": 1.9}
    point = problem.normalise(**given)
    assert point.tolist()[:6] == [1.0, -1.0, 0.0, 1.0, 0.0, 1.0]
    back = problem.denormalise(point)
    assert back.pop("mode") == given.pop("mode")
    assert back == pytest.approx(given)
    assert isinstance(back["taps"], int)


def test_random_points_are_their_own_images(problem: Problem) -> None:
    points = problem.sample(np.random.default_rng(1), 50)
    values = problem.denormalise(points)
    assert set(values["taps"]) <= set(KNOBS["taps"]) and set(values["mode"]) == {"a", "b", "c"}
    np.testing.assert_allclose(problem.normalise(**values), points, atol=1e-12)


def test_knobs_left_out_stand_in_the_middle(problem: Problem) -> None:
    point = problem.normalise(temp=42.5, vdd=[1.6, 1.8, 2.0])
    assert point.shape == (3, 8)
    np.testing.assert_allclose(point[:, :6], np.tile(problem.mid(), (3, 1)))
    np.testing.assert_allclose(point[:, 6:], [[0, -1], [0, 0], [0, 1]], atol=1e-12)
    middle = problem.denormalise(point)
    assert middle["mode"] == ["b"] * 3 and middle["taps"].tolist() == [4] * 3
    np.testing.assert_allclose(middle["bias"], 2.55)


@pytest.mark.parametrize("traced", [False, True])
def test_actions_replace_knobs_and_leave_conditions(problem: Problem, traced: bool) -> None:
    points = np.full((2, 8), 0.25, np.float32)
    action = np.array([[3.0, -0.5, 2, 7], [-0.1, -9.0, 0, 0]], np.float32)
    moved = (jax.jit(problem.from_action) if traced else problem.from_action)(points, action)
    want = [[1, -0.5, 0, 0, 1, 1, 0.25, 0.25], [-0.1, -1, 1, 0, 0, -1, 0.25, 0.25]]
    np.testing.assert_allclose(moved, want, rtol=1e-6)
    assert moved.dtype == np.float32 and isinstance(moved, jax.Array) == traced


def test_sampled_actions_fit(problem: Problem) -> None:
    spec = problem.action_spec()
    params = jnp.zeros((32, distributions.parameter_size(spec)))
    action = distributions.sample(spec, params, jax.random.key(0), jnp.ones(32))
    values = problem.denormalise(problem.from_action(jnp.zeros((32, problem.width)), action))
    assert set(values["mode"]) == {"a", "b", "c"}
    assert set(values["taps"]) <= set(range(1, 9)) and len(set(values["taps"])) > 4


def test_knobs_are_held_in_their_bounds_and_conditions_are_not() -> None:
    seen = plain(bowl).denormalise(np.array([[3.0, 3.0]]))
    assert seen["x"].tolist() == [4.0] and seen["c"].tolist() == [8.0]


@pytest.mark.parametrize("kind", ["jax", "numpy", "python"])
def test_every_kind_gives_the_same_values(kind: str) -> None:
    problem = plain(bowl, kind=kind)
    points = problem.sample(np.random.default_rng(0), 37)
    values = problem.denormalise(points)
    np.testing.assert_allclose(problem.evaluate(points), (values["x"] - values["c"]) ** 2, rtol=1e-9)
    assert problem.kind == kind and problem.traceable == (kind == "jax") and problem.failures == 0
    assert problem.evaluate(points[:0]).shape == (0,)


def test_traced_values_keep_the_precision_of_the_points() -> None:
    problem = plain(bowl, kind="jax")
    assert problem.evaluate(np.zeros((3, 2), np.float32)).dtype == np.float32
    assert problem.evaluate(np.zeros((3, 2))).dtype == np.float64
    inside = jax.jit(problem.evaluate_jax)(jnp.zeros((2, 5, 2)))
    assert inside.shape == (2, 5)


def test_whole_numbers_and_numeric_choices_can_be_traced() -> None:
    problem = Problem(
        lambda n, k, c: n * k + c, knobs={"n": range(0, 10, 3), "k": [0.5, 2.5]}, conditions={"c": (0, 1)}
    )
    assert problem.traceable
    points = problem.normalise(n=[0, 3, 9], k=[0.5, 2.5, 2.5], c=0.5)
    np.testing.assert_allclose(problem.evaluate(points), [0.5, 8.0, 23.0])
    np.testing.assert_allclose(problem.evaluate_jax(jnp.asarray(points)), [0.5, 8.0, 23.0], rtol=1e-6)


def burning(x: Any, c: Any) -> Any:
    until = time.perf_counter() + 2e-3
    while time.perf_counter() < until:
        pass
    return (x - c) ** 2


@pytest.mark.parametrize(
    ("f", "kind"),
    [
        (bowl, "jax"),
        (lambda x, c: jnp.where(x > c, x, c), "jax"),
        (lambda x, c: np.where(x > c, x, c), "numpy"),
        (lambda x, c: math.sin(x) + c, "python"),
        (lambda x, c: x if x > c else c, "python"),
        (lambda x, c: x + c + random.random(), "python"),
        (burning, "python"),
    ],
)
def test_the_kind_is_found_out(f: Any, kind: str) -> None:
    assert plain(f).kind == kind


def test_several_devices_are_called_in_the_way_that_all_allow() -> None:
    assert plain([bowl, lambda x, c: math.cos(x) + c]).kind == "python"


def flaky(x: float, c: float) -> float:
    if x < 1:
        raise ValueError("the simulator did not\nconverge")
    return math.inf if x > 3 else x + c


@pytest.mark.parametrize("kind", ["python", "numpy"])
def test_failures_are_dropped_and_counted(kind: str) -> None:
    problem = plain(flaky, kind=kind)
    values = problem.evaluate(problem.normalise(x=[0.5, 2.0, 3.5, 1.0], c=1.0))
    np.testing.assert_array_equal(np.isnan(values), [True, False, True, False])
    assert values[[1, 3]].tolist() == [3.0, 2.0] and problem.failures == 2
    problem.evaluate(problem.normalise(x=[0.5], c=1.0))
    assert problem.failures == 3 and problem.last_error == "ValueError: the simulator did not"


def test_a_traced_f_fails_where_it_is_not_finite() -> None:
    problem = plain(lambda x, c: jnp.log(x - c), kind="jax")
    points = problem.normalise(x=[1.0, 2.0], c=[2.0, 2.0 - math.e])
    assert np.isnan(problem.evaluate(points)).tolist() == [True, False] and problem.failures == 1
    assert np.isnan(problem.evaluate_jax(jnp.asarray(points))).tolist() == [True, False]


@pytest.mark.parametrize(("robust", "want"), [("mean", [1.5, 3.0]), ("worst", [2.0, 5.0]), (0.75, [1.75, 4.0])])
@pytest.mark.parametrize("kind", ["jax", "python"])
def test_robust_over_devices(robust: str | float, want: list[float], kind: str) -> None:
    problem = plain([lambda x, c: x + 0 * c, lambda x, c: 2 * c + 0 * x], robust=robust, kind=kind)
    points = problem.normalise(x=[2.0, 1.0], c=[0.5, 2.5])
    np.testing.assert_allclose(problem.evaluate(points), want)
    assert problem.evaluate_each(points).shape == (2, 2)


@pytest.mark.parametrize("robust", ["worst", 0.5])
def test_a_device_that_fails_fails_the_point(robust: str | float) -> None:
    problem = plain([lambda x, c: float(x), flaky], robust=robust, kind="python")
    assert np.isnan(problem.evaluate(problem.normalise(x=[0.5], c=0.0))).all() and problem.failures == 1


def test_noise_is_kept() -> None:
    problem = plain(lambda x, c: x + c + random.gauss(0, 1), noisy=True)
    first, second = problem.evaluate(np.zeros((2, 2)))
    assert first != second
    with pytest.raises(BadInput, match=r"is noisy and kind='jax'"):
        plain(bowl, noisy=True, kind="jax")


def test_the_grid_of_conditions() -> None:
    one = plain(bowl).condition_grid()
    assert one.ravel().tolist() == pytest.approx([round(-1 + 0.1 * i, 1) for i in range(21)])
    for count, size in ((0, 1), (2, 441), (3, 343), (4, 256), (12, 441)):
        names = {f"c{i}": (0.0, 1.0) for i in range(count)}
        problem = Problem(lambda x, **c: x, knobs={"x": (0, 1)}, conditions=names, kind="python")
        grid = problem.condition_grid()
        assert grid.shape == (size, count) and (np.abs(grid) <= 1).all()
        assert len(np.unique(grid, axis=0)) == size


def test_plain_optimisation_has_no_conditions() -> None:
    problem = Problem(lambda x: (x - 1) ** 2, knobs={"x": (-2, 2)})
    assert problem.width == 1 and problem.evaluate(problem.normalise(x=1.0)[None]).tolist() == [0.0]


def test_conditions_outside_the_range_are_named(problem: Problem) -> None:
    assert problem.check_range(temp=-40, vdd=2.0) == []
    assert problem.check_range(temp=[0, 200], vdd=1.5) == ["temp", "vdd"]


def test_equal_hashed_and_sent_away(problem: Problem) -> None:
    again = Problem(mixed, knobs=dict(KNOBS), conditions=dict(CONDITIONS))
    assert again == problem and hash(again) == hash(problem)
    assert Problem(mixed, knobs=KNOBS | {"gain": (-2, 3)}, conditions=CONDITIONS) != problem
    there = cloudpickle.loads(cloudpickle.dumps(plain(lambda x, c: jnp.sin(x) * c)))
    assert there.traceable and there.failures == 0
    np.testing.assert_allclose(there.evaluate(there.normalise(x=[1.0], c=2.0)), 2 * math.sin(1.0))


def test_the_fingerprint_tells_problems_apart(problem: Problem) -> None:
    other = Problem(mixed, knobs=KNOBS, conditions=CONDITIONS | {"vdd": (1.6, 2.1)})
    assert other.fingerprint != problem.fingerprint
    assert Problem(mixed, knobs=KNOBS, conditions=CONDITIONS, robust="worst").fingerprint == problem.fingerprint


X: dict[str, Any] = {"x": (0.0, 1.0)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Problem(bowl, knobs={"x": (2, 1)}), r"x=\(2, 1\): the lower bound must come first"),
        (lambda: Problem(bowl, knobs={"x": (1, 1)}), "the lower bound must come first"),
        (lambda: Problem(bowl, knobs=X, conditions={"c": (0, math.inf)}), r"c=\(0, inf\): both bounds must be finite"),
        (lambda: Problem(bowl, knobs=X, conditions={"c": (0, math.nan)}), "finite"),
        (lambda: Problem(bowl, knobs=X, conditions={"c": (0,)}), "must be two numbers"),
        (lambda: Problem(bowl, knobs=X, conditions={"c": "ab"}), "must be two numbers"),
        (lambda: Problem(bowl, knobs={"x": []}), "at least one value"),
        (lambda: Problem(bowl, knobs={"x": range(3, 3)}), "at least one value"),
        (lambda: Problem(bowl, knobs={"x": ["a", "a"]}), "appears twice"),
        (lambda: Problem(bowl, knobs={"x": "abc"}), "a knob is"),
        (lambda: Problem(bowl, knobs={"x": 3}), "a knob is"),
        (lambda: Problem(bowl, knobs={}), "at least one knob"),
        (lambda: Problem(bowl, knobs=X, conditions={"x": (0, 1)}), "both a knob and a condition"),
        (lambda: Problem(bowl, knobs=X), "needs a parameter 'c'"),
        (lambda: Problem(bowl, knobs=X, conditions={"c": (0, 1), "d": (0, 1)}), "takes no parameter 'd'"),
        (lambda: Problem(lambda x, /: x, knobs=X), "takes no parameter 'x'"),
        (lambda: Problem(3, knobs=X), "must be a function"),  # type: ignore[arg-type]
        (lambda: Problem([], knobs=X), "must be a function"),
        (lambda: Problem(bowl, knobs=X, conditions={"c": (0, 1)}, kind="fast"), "kind='fast'"),
        (lambda: Problem(bowl, knobs=X, conditions={"c": (0, 1)}, robust="best"), "robust='best'"),
        (lambda: Problem(bowl, knobs=X, conditions={"c": (0, 1)}, robust=1.5), "robust=1.5: .* a quantile from 0 to 1"),
        (lambda: Problem(lambda x: [x, x], knobs=X), "must return one number"),
        (lambda: Problem(lambda x: np.array([x, x]), knobs=X), r"shape \(2,\): it must return one number"),
        (lambda: Problem(lambda x: jnp.stack([x, x]), knobs=X, kind="jax"), r"shape \(2,\): it must return one number"),
        (lambda: Problem(lambda x: None, knobs=X), "returned None"),
        (lambda: Problem(lambda x: 1j * x, knobs=X), "must return one number"),
        (lambda: Problem(lambda x: math.sin(x), knobs=X, kind="jax"), "cannot be traced by JAX"),
        (lambda: Problem(lambda x: 0, knobs={"x": ["a", "b"]}, kind="jax"), "values that JAX cannot carry"),
        (lambda: plain(lambda x, c: 1.0, kind="numpy").evaluate(np.zeros((3, 2))), "one value for each"),
        (lambda: plain(bowl).evaluate(np.zeros((3, 5))), "has 2 columns"),
        (lambda: plain(bowl).normalise(x=1.0), "condition 'c' is missing"),
        (lambda: plain(bowl).normalise(x=1.0, cc=1.0), "has no 'cc'.*Did you mean 'c'"),
        (lambda: plain(bowl).normalise(x=1.0, c=math.nan), "must be finite"),
        (lambda: plain(bowl).normalise(x=1.0, c="warm"), "must be a number"),
        (lambda: plain(bowl).check_range(x=1.0), "has no 'x'"),
        (lambda: plain(math.sin).evaluate(np.zeros((1, 2))), "takes no parameter|needs a parameter"),
        (lambda: plain(lambda x, c: math.sin(x)).evaluate_jax(jnp.zeros((1, 2))), "only a JAX-traceable f"),
    ],
)
def test_bad_input_is_refused_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_values_outside_discrete_knobs_are_refused(problem: Problem) -> None:
    with pytest.raises(BadInput, match=r"mode='z': it must be one of 'a', 'b', 'c'"):
        problem.normalise(mode="z", temp=0, vdd=1.8)
    with pytest.raises(BadInput, match=r"taps=9: it must be one of range"):
        problem.normalise(taps=9, temp=0, vdd=1.8)
