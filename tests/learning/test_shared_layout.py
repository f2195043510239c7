"""A learner's state as a shared vector and own words, and back; gradients one by one are those of an update."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from shoal.core.algorithm import Drawn, LearnerState
from shoal.core.blueprint import Blueprint
from shoal.core.keys import key_data
from shoal.core.program import Context
from shoal.core.trajectory import as_trajectory
from shoal.core.weights import to_vector
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.compiled_update import compiled_update
from shoal.learning.gradient_steps import UnrollGradients
from shoal.learning.replay_update import compiled_replay, row_record, rows_of
from shoal.learning.shared_layout import SharedLayout
from shoal.learning.soundness import Watch
from shoal.learning.weight_exchange import compiled_gradients

WATCH = Watch(Context(name="worker-0", fault=lambda fault: pytest.fail(fault.detail)))
OPTIMISERS = ("rmsprop", "adam", "momentum")


def blueprint_of(**algo: Any) -> Blueprint:
    settings = {"actors": 1, "envs": 4, "net": {"hidden": (6,)}, "backend": "jax", "topology": "sequential"}
    plan = resolve("CartPole-v1", {**settings, "algo": {"name": "a2c", "unroll": 5, **algo}})
    return make_blueprint(plan, None, None)


def scrambled(state: LearnerState) -> LearnerState:
    """Every leaf another number."""
    rng = np.random.default_rng(0)

    def draw(leaf: Any) -> np.ndarray:
        if np.issubdtype(leaf.dtype, np.floating):
            return np.asarray(rng.random(leaf.shape), leaf.dtype)
        return np.asarray(rng.integers(1, 1000, leaf.shape), leaf.dtype)

    drawn: LearnerState = jax.tree.map(draw, state)
    return drawn


def same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_state_comes_back_bit_for_bit(optimiser: str, share: bool) -> None:
    blueprint = blueprint_of(optimiser=optimiser, normalise_obs=True, normalise_reward=True)
    state, layout = scrambled(blueprint.initial_state()), SharedLayout(blueprint.algorithm, share)
    vector, own, seen = layout.pack(state), layout.pack_own(state), layout.pack_statistics(state)
    assert (vector.shape, own.shape, seen.shape) == ((layout.width,), (layout.own_size,), (layout.statistics_size,))
    assert len(vector) == layout.size * (1 + layout.vectors) + layout.singles
    back = layout.unpack_statistics(seen, layout.unpack_own(own, layout.unpack(vector, layout.blank())))
    assert same(back, state)


def test_moments_lie_where_they_are_shared() -> None:
    algorithm = blueprint_of(optimiser="adam").algorithm
    shared, own = SharedLayout(algorithm, True), SharedLayout(algorithm, False)
    assert (shared.vectors, shared.singles) == (2, 1) and (own.vectors, own.singles) == (0, 0)
    assert own.own_size - shared.own_size == 2 * shared.size + 1


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_are_put_together_again(shards: int) -> None:
    layout = SharedLayout(blueprint_of(optimiser="adam").algorithm, True)
    vector = np.arange(layout.width, dtype=np.float32)
    rows = layout.to_shards(vector, shards)
    assert rows.shape == (shards, layout.shard_width(shards))
    np.testing.assert_array_equal(layout.from_shards(rows), vector)
    head = layout.slice_size(shards)
    np.testing.assert_array_equal(rows[:, :head].ravel()[: layout.size], vector[: layout.size])


def test_squares_that_overshot_are_taken_for_zero() -> None:
    blueprint = blueprint_of(optimiser="adam")
    layout, state = SharedLayout(blueprint.algorithm, True), blueprint.initial_state()
    vector = -np.ones(layout.width, np.float32)
    unpacked = layout.unpack(vector, state)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(unpacked.moments.nu))
    assert all((np.asarray(leaf) == -1).all() for leaf in jax.tree.leaves((unpacked.params, unpacked.moments.mu)))


def test_the_mask_names_the_value_function() -> None:
    layout = SharedLayout(blueprint_of().algorithm, True)
    actor, critic = layout.mask(critic=False), layout.mask(critic=True)
    assert (actor ^ critic).all() and actor.any() and critic.any()
    value = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(layout.shape.params["value"]))
    assert critic.sum() == 2 * value  # in the params and in the squares


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_gradients_one_by_one_on_shards_are_an_update(optimiser: str) -> None:
    blueprint = blueprint_of(optimiser=optimiser)
    state = blueprint.initial_state()
    acted = blueprint.algorithm.actor_state(state)
    slot, rng = blueprint.record.empty(), np.random.default_rng(1)
    slot["obs"][...] = rng.normal(size=slot["obs"].shape)
    slot["reward"][...] = rng.normal(size=slot["reward"].shape)
    slot["valid"][...], slot["discount"][...] = True, 1
    trajectory, key, progress = as_trajectory(slot), key_data(blueprint.seed, 1, 0), np.float32(0.25)
    whole, _, _ = compiled_update(blueprint.algorithm)(state, acted, [trajectory], key, progress)
    steps = UnrollGradients(blueprint, WATCH)
    taken, due = steps.take(state, acted, trajectory, 0, 0.25)
    assert due == 1
    layout, shards = SharedLayout(blueprint.algorithm, True), 4
    gradient = np.zeros(layout.slice_size(shards) * shards, np.float32)
    gradient[: layout.size] = steps.gradient(taken, 0).vector
    rows = layout.to_shards(layout.pack(state), shards)
    served = np.stack(
        [
            layout.apply_slice(layout.group_slice(i, shards), row, piece, progress, np.ones(1, bool))
            for i, (row, piece) in enumerate(zip(rows, gradient.reshape(shards, -1), strict=True))
        ]
    )
    np.testing.assert_allclose(layout.from_shards(served), layout.pack(whole), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(("share", "count"), [(True, 1), (False, 1), (False, 3)])
def test_gradients_on_the_shared_vector_are_those_of_an_update(share: bool, count: int) -> None:
    """What a worker pushes for a few gradients on its replay, moments and target included."""
    blueprint = blueprint_of(name="dqn", batch_size=16, target_every=1, tau=0.5)
    state, layout = scrambled(blueprint.initial_state()), SharedLayout(blueprint.algorithm, share)
    rng = np.random.default_rng(1)
    rows = {f.name: rng.integers(0, 2, (count, 16, *f.shape)).astype(f.dtype) for f in row_record(blueprint).fields}
    drawn = Drawn(type(rows_of(blueprint))(**rows), np.ones((count, 16), np.float32))
    expected, _, _, errors = compiled_replay(blueprint.algorithm).learn(state, drawn, key_data(3))
    step = compiled_gradients(blueprint.algorithm, share)
    vector, own, _, found = step(layout.pack(state), layout.without_shared(state), drawn, key_data(3))
    np.testing.assert_allclose(vector, layout.pack(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found, errors, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(to_vector(own.extra["target"]), to_vector(expected.extra["target"]), rtol=1e-5)
    assert int(own.step) == int(expected.step) and not np.array_equal(vector, layout.pack(state))
