"""The contract of every algorithm with a replay: what topologies may rely on."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import continuous_algos
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_policy_algos import ACTIONS, ON_POLICY, WIDTH, B, T, bits

from shoal.algos import ALGOS
from shoal.core.algorithm import Replay, Task
from shoal.core.spec import EnvSpec, ObsSpec
from shoal.core.weights import layout_of, params_hash
from shoal.learning.compiled_update import apply
from shoal.nets.q_network import QNetConfig, QNetwork

OFF_POLICY = [name for name in ALGOS if name not in ON_POLICY]


@cache
def with_replay(name: str, **settings: Any) -> Any:
    if name in continuous_algos.NAMES:
        return continuous_algos.make(name, **settings)
    spec = EnvSpec("test", ObsSpec((WIDTH,)), ACTIONS["discrete"])
    config = ALGOS[name].Config(**{"unroll": T, "batch_size": 8, "warmup": 0, **settings})
    return ALGOS[name](config, Task(spec=spec, envs=B), QNetwork(QNetConfig(hidden=(8,)), spec))


def minibatch(algorithm: Any) -> Any:
    if algorithm.task.spec.action.dtype == np.float32:
        return continuous_algos.drawn()
    rows = continuous_algos.drawn().rows
    return continuous_algos.drawn()._replace(rows=rows._replace(action=np.zeros(len(rows.reward), np.int32)))


def begin_eagerly(algorithm: Any) -> Any:
    """A state with params that are not symmetric."""
    state, rng = jax.jit(algorithm.init)(jax.random.key(1)), np.random.default_rng(2)
    return state._replace(params=jax.tree.map(lambda p: p + np.float32(rng.normal(size=p.shape)) * 0.3, state.params))


@pytest.mark.parametrize("name", OFF_POLICY)
class TestReplayAlgorithm:
    """`core.algorithm.Algorithm`, of those that learn from a replay."""

    def test_equal_ones_are_one(self, name: str) -> None:
        one = with_replay(name)
        other = type(one)(dataclasses.replace(one.config), one.task, one.net)
        assert one is not other and one == other and hash(one) == hash(other)
        assert one != with_replay(name, gamma=0.5) and one.replays and isinstance(one.experience, Replay)

    def test_state_is_arrays_and_what_travels_is_float32(self, name: str) -> None:
        algorithm = with_replay(name, normalise_obs=True, normalise_reward=True)
        state = algorithm.init(jax.random.key(0))
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
        actor = algorithm.actor_state(state)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(actor)) and actor.explore
        assert "target" not in actor.params and layout_of(actor).size > 0
        assert state.step == 0 and state.progress == 0

    def test_groups_name_all_params_in_order(self, name: str) -> None:
        algorithm = with_replay(name)
        params = algorithm.init(jax.random.key(0)).params
        assert not algorithm.groups or [group.name for group in algorithm.groups] == sorted(params)

    def test_a_gradient_is_of_every_param_and_tells_errors(self, name: str) -> None:
        algorithm, batch = with_replay(name), minibatch(with_replay(name))
        state = begin_eagerly(algorithm)._replace(step=jnp.int32(1))  # the second gradient moves a delayed policy too
        before = bits(state)
        grads, feedback = jax.jit(algorithm.gradients)(state, batch, jax.random.key(0))
        assert jax.tree.structure(grads) == jax.tree.structure(state.params) and bits(state) == before
        assert all(np.any(leaf) for leaf in jax.tree.leaves(grads)), "every weight has a gradient"
        assert feedback.td.shape == batch.weight.shape and not bool(feedback.stop)
        assert feedback.moved is None or feedback.moved.shape == (len(algorithm.groups),)
        assert {"value", "q", "td", "grad_norm"} <= set(feedback.metrics)
        after = apply(algorithm, state, grads, feedback.moved)
        assert jax.tree.structure(after) == jax.tree.structure(state) and int(after.step) == 2
        pairs = zip(*map(jax.tree.leaves, (after.params, state.params)), strict=True)
        assert not any(np.array_equal(a, b) for a, b in pairs)

    def test_weights_of_rows_count(self, name: str) -> None:
        algorithm, batch = with_replay(name), minibatch(with_replay(name))
        state = begin_eagerly(algorithm)
        half = batch._replace(weight=batch.weight * np.float32(0.5))
        losses = [jax.jit(algorithm.gradients)(state, b, jax.random.key(0))[1].metrics["value"] for b in (batch, half)]
        assert float(losses[1]) == pytest.approx(0.5 * float(losses[0]), rel=1e-5)

    def test_settle_counts_and_adopt_does_not(self, name: str) -> None:
        algorithm = with_replay(name)
        state = begin_eagerly(algorithm)
        given = jax.tree.map(lambda p: p + 1, state.params)
        settled, adopted = algorithm.settle(state, given), algorithm.adopt(state, given)
        assert params_hash(settled.params) == params_hash(adopted.params) == params_hash(given)
        assert int(settled.step) == 1 and bits(settled.moments) == bits(state.moments)
        assert bits(adopted._replace(params=state.params)) == bits(state)
