"""Where each sampler starts episodes: what it promises, and that it promises the same everywhere."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.acting.compiled_act import compiled_starts
from shoal.algos import ALGOS
from shoal.core.algorithm import ActorState, Task
from shoal.core.errors import BadInput
from shoal.nets.actor_critic import ActorCritic, NetConfig
from shoal.optimize import Problem
from shoal.optimize.mdp import cube_of, env_spec
from shoal.optimize.samplers import HETEROGENEOUS, SAMPLERS, drivers_starts
from shoal.optimize.samplers.cube import Cube
from shoal.optimize.samplers.grid import GridStarts
from shoal.optimize.samplers.heterogeneous import SplitStarts
from shoal.optimize.samplers.latin_hypercube import LatinHypercubeStarts
from shoal.optimize.samplers.latin_scipy import SIZE, LatinScipyStarts
from shoal.optimize.samplers.random import RandomStarts
from shoal.optimize.samplers.uncertainty import UncertaintyStarts

SQUARE = Cube((1, 1))
NOBODY = ActorState({}, None, None)  # what samplers get that do not ask the policy
MIXED = Problem(
    lambda x, mode, n, c: x,
    knobs={"x": (0, 1), "mode": ["a", "b", "c"], "n": range(4)},
    conditions={"c": (0, 1)},
    kind="python",
    name="mixed",
)


def draw(starts: Any, n: int, times: int = 1, actor: Any = NOBODY, seed: int = 0) -> np.ndarray:
    """[times, n, columns], as an actor would ask for them."""
    state, found = starts.init(jax.random.key(seed)), []
    sample = compiled_starts(starts, n)
    for i in range(times):
        key = jax.random.key_data(jax.random.fold_in(jax.random.key(seed + 1), i))
        points, state = sample(state, actor, key)
        found.append(np.asarray(points))
    return np.stack(found)


@cache
def law_algorithm(problem: Problem = MIXED, state_scale: bool = True) -> tuple[Any, Any]:
    """REINFORCE on a problem, and a policy that is not the first one."""
    net = ActorCritic(NetConfig(hidden=(8,), state_scale=state_scale), env_spec(problem))
    algorithm = ALGOS["reinforce"](ALGOS["reinforce"].Config(unroll=2), Task(env_spec(problem), 4, fresh=True), net)
    state = algorithm.init(jax.random.key(0))
    moved = jax.tree.map(lambda x: x + jnp.sin(3.0 * jnp.arange(x.size)).reshape(x.shape), state.params)
    return algorithm, algorithm.actor_state(state._replace(params=moved))


@partial(jax.jit, static_argnums=0)
def entropy_of(algorithm: Any, actor: Any, points: Any) -> Any:
    return algorithm.uncertainty(actor, points)


def bins(points: np.ndarray, count: int = 10) -> np.ndarray:
    """[columns, count]: how many points lie in each tenth of each column."""
    return np.stack([np.histogram(column, count, (-1, 1))[0] for column in points.T])


def test_random_is_uniform_and_each_draw_is_new() -> None:
    points = draw(RandomStarts(SQUARE), 1000, 4)
    assert points.min() >= -1 and points.max() <= 1
    expected = 400
    chi = ((bins(points.reshape(-1, 2)) - expected) ** 2 / expected).sum(1)
    assert (chi < 27.9).all()  # nine degrees of freedom, one in a thousand
    assert abs(np.corrcoef(points.reshape(-1, 2).T)[0, 1]) < 0.06
    assert not np.array_equal(points[0], points[1])


def test_latin_hypercube_fills_the_least_filled_bin() -> None:
    """M bins a coordinate: at no time, within a draw or between draws, do two bins differ by more than one."""
    draws = draw(LatinHypercubeStarts(Cube((1, 1, 1))), 7, 9).reshape(-1, 3)
    for seen in range(1, len(draws) + 1):
        counts = bins(draws[:seen])
        assert counts.max() - counts.min() <= 1, seen
    assert (bins(draws[:60]) == 6).all()


def test_latin_hypercube_breaks_ties_at_random() -> None:
    firsts = {tuple(bins(draw(LatinHypercubeStarts(SQUARE), 1, seed=s)[0]).argmax(1)) for s in range(20)}
    assert len(firsts) > 8  # of a hundred cells
    points = draw(LatinHypercubeStarts(SQUARE), 1000)[0]
    assert abs(np.corrcoef(points.T)[0, 1]) < 0.12  # the coordinates' orders are not the same
    inside = (points + 1) * 5 % 1
    assert inside.std() == pytest.approx(12**-0.5, abs=0.02)  # uniform within its bin


def test_latin_scipy_is_a_whole_design_at_a_time() -> None:
    starts = LatinScipyStarts(SQUARE)
    points = draw(starts, SIZE // 4, 8).reshape(2, SIZE, 2)
    shift = np.asarray(starts.init(jax.random.key(0))[1])
    for design in points:
        unit = ((design + 1) / 2 - shift) % 1.0
        for column in unit.T:
            assert (np.histogram(column, SIZE, (0, 1))[0] <= 2).all()  # one a row, but for rounding at an edge
            assert (np.histogram(column, SIZE // 4, (0, 1))[0] >= 3).all()
    assert not np.array_equal(points[0], points[1])
    assert not np.allclose(draw(starts, 8, seed=1), draw(starts, 8, seed=2))  # drivers are set apart


def test_uncertainty_takes_the_candidate_of_highest_entropy() -> None:
    algorithm, actor = law_algorithm()
    starts = UncertaintyStarts(cube_of(MIXED), algorithm, candidates=16)
    key = jax.random.key(5)
    points, _ = compiled_starts(starts, 6)((), actor, jax.random.key_data(key))
    unit = np.array(jax.random.uniform(key, (6, 16, 4)))
    unit[:, :, 3] = unit[:, :1, 3]  # one condition for all candidates of a start
    candidates = cube_of(MIXED).points(jnp.asarray(unit.reshape(6 * 16, 4)))
    entropy = np.asarray(entropy_of(algorithm, actor, candidates)).reshape(6, 16)
    chosen = np.asarray(candidates).reshape(6, 16, -1)[np.arange(6), entropy.argmax(1)]
    np.testing.assert_array_equal(np.asarray(points), chosen)
    assert np.ptp(entropy) > 0.5
    plain = entropy_of(algorithm, actor, draw(RandomStarts(cube_of(MIXED)), 256)[0])
    asked = entropy_of(algorithm, actor, draw(starts, 256, actor=actor)[0])
    assert float(asked.mean()) > float(plain.mean()) + 0.2


def test_uncertainty_shuns_no_condition() -> None:
    """A policy that is wide for high conditions alone: starts there must not crowd out the others."""

    class Wide:
        def uncertainty(self, actor: Any, obs: Any) -> Any:
            return 10.0 * obs[:, 1] - jnp.abs(obs[:, 0])

    points = draw(UncertaintyStarts(Cube((1, 1), conditions=1), Wide()), 1000)[0]
    assert bins(points)[1].min() > 60
    assert np.abs(points[:, 0]).mean() < 0.15  # the knob is where it is least sure


def test_uncertainty_is_random_where_the_spread_does_not_depend_on_the_state() -> None:
    """The control: why laws are learnt with a spread that depends on the state."""
    real = Problem(lambda x, c: x, knobs={"x": (0, 1)}, conditions={"c": (0, 1)}, kind="python", name="real")
    algorithm, actor = law_algorithm(real, state_scale=False)
    entropy = np.asarray(entropy_of(algorithm, actor, draw(RandomStarts(cube_of(real)), 64)[0]))
    assert np.ptp(entropy) < 1e-6
    algorithm, actor = law_algorithm(real, state_scale=True)
    assert np.ptp(np.asarray(entropy_of(algorithm, actor, draw(RandomStarts(cube_of(real)), 64)[0]))) > 0.1


@pytest.mark.parametrize("drivers", [1, 2, 3, 7])
def test_grid_drivers_together_visit_every_cell_once_before_any_twice(drivers: int) -> None:
    cube = Cube((1, 1))
    per_side = GridStarts(cube).per_side
    total, n = per_side**2, 10
    rounds = -(-total // (n * drivers))
    each = [draw(GridStarts(cube, i, drivers), n, rounds) for i in range(drivers)]
    # As drivers in step would: the k-th start of each, then the next.
    walk = np.stack([points.reshape(-1, 2) for points in each], 1).reshape(-1, 2)[:total]
    cells = {tuple(np.round((point + 1) / 2 * per_side - 0.5).astype(int)) for point in walk}
    assert len(cells) == total
    assert {axis for cell in cells for axis in cell} == set(range(per_side))


def test_grid_covers_the_whole_from_the_beginning_and_comes_round_again() -> None:
    grid = GridStarts(SQUARE)
    points = draw(grid, 63, 21).reshape(-1, 2)
    assert (bins(points[:60], 3) > 10).all()
    assert len(np.unique(points[: grid.per_side**2], axis=0)) == grid.per_side**2
    np.testing.assert_array_equal(points[:100], points[grid.per_side**2 : grid.per_side**2 + 100])


def test_grid_of_many_sides_stays_small_and_whole() -> None:
    grid = GridStarts(Cube((1,) * 12))
    points = draw(grid, 1024, 4).reshape(-1, 12)
    assert len(np.unique(points, axis=0)) == len(points) == grid.per_side**12


def test_heterogeneous_is_one_of_each_a_driver() -> None:
    algorithm, actor = law_algorithm()
    cube = cube_of(MIXED)
    apart = drivers_starts("heterogeneous", cube, algorithm, 5, 5)
    kinds = [RandomStarts, LatinHypercubeStarts, UncertaintyStarts, RandomStarts, LatinHypercubeStarts]
    assert [type(s) for s in apart] == kinds and len(HETEROGENEOUS) == 3
    [together] = drivers_starts("heterogeneous", cube, algorithm, 3, 1)
    assert isinstance(together, SplitStarts)
    points = draw(together, 11, actor=actor)[0]
    assert points.shape == (11, MIXED.width)
    # Shares of 4, 4 and 3: the first is what its own sampler draws with its own key.
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(1), 0), 0)
    first, _ = RandomStarts(cube).sample((), actor, key, 4)
    np.testing.assert_array_equal(points[:4], np.asarray(first))


def test_more_drivers_than_episodes_leave_some_without() -> None:
    algorithm, actor = law_algorithm()
    for name in ("uncertainty", "latin_hypercube", "latin_scipy", "grid"):
        [starts] = drivers_starts(name, cube_of(MIXED), algorithm, 4, 1)
        assert draw(starts, 3, actor=actor).shape == (1, 3, MIXED.width)


@pytest.mark.parametrize("name", SAMPLERS)
def test_categorical_columns_are_one_hot_and_every_value_comes(name: str) -> None:
    algorithm, actor = law_algorithm()
    [starts] = drivers_starts(name, cube_of(MIXED), algorithm, 1, 1)
    points = draw(starts, 200, 4, actor)
    assert points.dtype == np.float32 and points.shape == (4, 200, 6)
    flat = points.reshape(-1, 6)
    one_hot = flat[:, 1:4]
    assert np.isin(one_hot, (0, 1)).all() and (one_hot.sum(1) == 1).all()
    if name != "uncertainty":
        assert (one_hot.sum(0) > 100).all()
    assert (np.abs(flat[:, [0, 4, 5]]) <= 1).all()
    values = MIXED.denormalise(flat)
    assert set(values["n"].tolist()) <= {0, 1, 2, 3} and set(values["mode"]) <= {"a", "b", "c"}


def test_two_samplers_never_share_a_compiled_function() -> None:
    algorithm, _ = law_algorithm()
    other, _ = law_algorithm(state_scale=False)
    cube = cube_of(MIXED)
    distinct = [
        RandomStarts(cube),
        RandomStarts(SQUARE),
        LatinHypercubeStarts(cube),
        LatinHypercubeStarts(cube, bins=20),
        LatinScipyStarts(cube),
        UncertaintyStarts(cube, algorithm),
        UncertaintyStarts(cube, algorithm, candidates=8),
        UncertaintyStarts(cube, other),
        *(GridStarts(cube, i, n) for n in (1, 2, 3) for i in range(n)),
        SplitStarts((RandomStarts(cube),)),
        SplitStarts((RandomStarts(cube), LatinHypercubeStarts(cube))),
        SplitStarts((LatinHypercubeStarts(cube), RandomStarts(cube))),
    ]
    assert len(set(distinct)) == len(distinct)
    assert len({id(compiled_starts(starts, 4)) for starts in distinct}) == len(distinct)
    assert compiled_starts(RandomStarts(cube), 4) is compiled_starts(RandomStarts(Cube(*cube)), 4)


def test_a_grid_of_too_many_sides_is_refused() -> None:
    with pytest.raises(BadInput, match="40 knobs and conditions"):
        GridStarts(Cube((1,) * 40))


def test_an_unknown_sampler_is_refused() -> None:
    with pytest.raises(BadInput, match=r"'latin_hypercub'.*Did you mean 'latin_hypercube'"):
        drivers_starts("latin_hypercub", SQUARE, law_algorithm()[0], 1, 1)


def test_the_picture_has_a_panel_a_sampler() -> None:
    from shoal.observe import sampling
    from shoal.observe.plots import render

    drawn = {"random": draw(RandomStarts(SQUARE), 50)[0], "latin": draw(LatinHypercubeStarts(SQUARE), 50)[0]}
    figure = sampling.starts(drawn, ("knob", "condition"), new=10)
    assert [axes.get_title() for axes in figure.axes][1] == "latin\n5 to 5 of 50 in a tenth"
    assert [len(line.get_xdata()) for line in figure.axes[0].get_lines()] == [40, 10]  # type: ignore[arg-type]
    assert len(render(figure, "png")) > 5000
    assert sampling.counts(drawn["latin"]).tolist() == [[5] * 10] * 2
    for odd in ({}, {"random": np.zeros(5)}, {"random": np.zeros((5, 3))}):
        with pytest.raises(BadInput):
            sampling.starts(odd, ("knob", "condition"))
