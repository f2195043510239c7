"""Every function is smallest where it is said to be, in NumPy and in JAX, and becomes a problem."""

from __future__ import annotations

import cloudpickle
import jax
import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.optimize.functions import FUNCTIONS, make, published_normalisation


def sizes(name: str) -> list[int]:
    function = FUNCTIONS[name]
    return [function.dims] if function.dims else [n for n in (1, 2, 5) if n >= function.fewest]


CASES = [(name, n) for name in FUNCTIONS for n in sizes(name)]


@pytest.mark.parametrize(("name", "dims"), CASES)
def test_the_minima_are_minima(name: str, dims: int) -> None:
    function = FUNCTIONS[name]
    points, value = function.minimisers(dims), function.minimum(dims)
    np.testing.assert_allclose(function(points), value, atol=1e-9)
    with jax.enable_x64(True):
        slopes = jax.vmap(jax.grad(lambda x: function(x)))(points)
        np.testing.assert_allclose(slopes, 0.0, atol=1e-4)
        np.testing.assert_allclose(jax.jit(function)(points), value, atol=1e-9)
    low, high = np.array(function.bounds(dims)).T
    assert ((points >= low) & (points <= high)).all()
    rng = np.random.default_rng(0)
    around = np.clip(points[0] + rng.normal(0, 0.01, (200, dims)) * (high - low), low, high)
    anywhere = rng.uniform(low, high, (4000, dims))
    assert (function(np.concatenate([around, anywhere])) >= value - 1e-9).all()


@pytest.mark.parametrize(("name", "dims"), CASES)
def test_numpy_and_jax_agree(name: str, dims: int) -> None:
    function = FUNCTIONS[name]
    low, high = np.array(function.bounds(dims)).T
    points = np.random.default_rng(1).uniform(low, high, (50, dims))
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(function)(points), function(points), rtol=1e-9)


@pytest.mark.parametrize(("name", "half"), [("ackley", 32.768), ("rosenbrock", 2.048), ("sphere", 5.12)])
def test_the_domains_of_the_thesis(name: str, half: float) -> None:
    assert FUNCTIONS[name].bounds(2) == ((-half, half), (-half, half))
    x = np.linspace(-1, 1, 5)
    problem = make(name)
    np.testing.assert_allclose(published_normalisation(x, -half, half), problem.knobs[0].bounded(x[:, None]))


def test_the_formulas_of_the_thesis() -> None:
    x, y = 0.7, -1.3
    ackley = -20 * np.exp(-0.2 * np.sqrt(0.5 * (x * x + y * y)))
    ackley += -np.exp(0.5 * (np.cos(2 * np.pi * x) + np.cos(2 * np.pi * y))) + np.e + 20
    want = {"ackley": ackley, "rosenbrock": (1 - x) ** 2 + 100 * (y - x * x) ** 2, "sphere": x * x + y * y}
    for name, value in want.items():
        assert float(FUNCTIONS[name](np.array([x, y]))) == pytest.approx(value, rel=1e-12)


def test_free_coordinates_are_knobs_and_the_rest_conditions() -> None:
    problem = make("rosenbrock", dims=4, free=3)
    assert [axis.name for axis in problem.knobs] == ["x1", "x2", "x3"]
    assert [axis.name for axis in problem.conditions] == ["x4"]
    assert problem.traceable and problem.name == "rosenbrock"
    point = problem.normalise(x1=1.0, x2=1.0, x3=1.0, x4=1.0)
    assert problem.evaluate(point[None])[0] == pytest.approx(0.0, abs=1e-12)
    assert make("branin", free=2).n_conditions == 0


def test_a_shift_moves_the_minimum_along_the_knobs() -> None:
    problem = make("ackley", dims=3, free=2, shift=0.3)
    at = np.array([[0.3, 0.3, 0.0], [0.0, 0.0, 0.0], [0.3, 0.3, 0.3]])
    values = problem.evaluate(at)
    assert values[0] == pytest.approx(0.0, abs=1e-9) and (values[1:] > 10).all()
    branin = make("branin", free=1, shift=0.2)
    where = branin.normalise(x1=np.pi + 0.2 * 7.5, x2=2.275)
    assert branin.evaluate(where[None])[0] == pytest.approx(0.39788735772973816)


def test_problems_of_functions_compare_and_travel() -> None:
    assert make("ackley", shift=0.3) == make("ackley", shift=0.3) != make("ackley", shift=0.2)
    there = cloudpickle.loads(cloudpickle.dumps(make("levy")))
    assert there == make("levy") and hash(there) == hash(make("levy"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "akley"}, r"unknown function 'akley'. Did you mean 'ackley'"),
        ({"name": "zzz"}, "There are: sphere, ackley"),
        ({"name": "branin", "dims": 3}, "--dims 3: branin has exactly 2 coordinates"),
        ({"name": "rosenbrock", "dims": 1}, "--dims 1: rosenbrock needs at least 2"),
        ({"name": "sphere", "dims": 0}, "--dims 0"),
        ({"name": "sphere", "free": 3}, "--free 3: it must be from 1 to --dims 2"),
        ({"name": "sphere", "free": 0}, "--free 0"),
        ({"name": "sphere", "shift": 2.0}, "--shift 2"),
        ({"name": "sphere", "shift": float("nan")}, "--shift nan"),
    ],
)
def test_bad_requests_are_refused_in_one_line(given: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        make(**given)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_the_published_normalisation_is_for_symmetric_domains() -> None:
    with pytest.raises(BadInput, match="symmetric"):
        published_normalisation(0.0, -5.0, 10.0)
