"""TD3: the delayed policy, targets smoothed a row at a time, and its losses against loops."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from continuous_algos import N, begin, bits, drawn, make, stepping

from shoal.algos.continuous import GroupAdam


def moments_of(state: Any, group: str) -> list[bytes]:
    return bits([part[group] for part in state.moments])


def test_a_delayed_policy_is_left_alone_in_between_params_and_moments() -> None:
    algorithm = make("td3", policy_delay=3)
    states = [begin(algorithm)]
    for seed in range(6):
        states.append(stepping(algorithm)(states[-1], drawn(seed), seed)[2])
    for step, (before, after) in enumerate(pairwise(states), start=1):
        moved = step % 3 == 0
        assert (bits(before.params["policy"]) != bits(after.params["policy"])) == moved
        assert (moments_of(before, "policy") != moments_of(after, "policy")) == moved
        assert (bits(before.extra["target"]) != bits(after.extra["target"])) == moved
        assert bits(before.params["critic"]) != bits(after.params["critic"])
        assert moments_of(before, "critic") != moments_of(after, "critic")


def test_the_policy_moves_as_by_an_adam_of_its_own() -> None:
    algorithm = make("td3", policy_delay=2, policy_rate=0.5, learning_rate=1e-2, max_grad_norm=1e9)
    state = begin(algorithm)
    own = optax.adam(5e-3)
    update = jax.jit(own.update)
    policy, memory = state.params["policy"], own.init(state.params["policy"])
    for seed in range(6):
        grads, feedback, state = stepping(algorithm)(state, drawn(seed), seed)
        assert bool(feedback.moved[1]) == (seed % 2 == 1)
        if seed % 2:
            updates, memory = update(grads["policy"], memory)
            policy = optax.apply_updates(policy, updates)
    for found, expected in zip(*map(jax.tree.leaves, (state.params["policy"], policy)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_adam_by_entry_is_adam() -> None:
    rng, ours, theirs = np.random.default_rng(0), GroupAdam(), optax.scale_by_adam()
    vector = jnp.zeros(10)
    mine, other = ours.init(vector), theirs.init(vector)
    update = jax.jit(ours.update)
    optax_update = jax.jit(lambda grads, state: theirs.update(grads, state))
    for _ in range(5):
        grads = rng.normal(size=10).astype(np.float32)
        found, mine = update(grads, mine)
        expected, other = optax_update(grads, other)
        np.testing.assert_allclose(found, expected, rtol=1e-4)  # optax rounds 1 - 0.999^t


def test_smoothing_is_drawn_for_each_row() -> None:
    """The same row, N times: with noise for the whole batch, all targets would be equal."""
    batch = drawn()
    same = batch._replace(
        rows=batch.rows._replace(**{n: np.repeat(a[:1], N, 0) for n, a in batch.rows._asdict().items()})
    )
    same = same._replace(rows=same.rows._replace(discount=np.full(N, 0.9, np.float32)))
    errors = {
        s: np.asarray(stepping(make("td3", smoothing=s))(begin(make("td3", smoothing=s)), same, 0)[1].td)
        for s in (0.2, 0.0)
    }
    assert len(np.unique(errors[0.2])) == N
    np.testing.assert_allclose(errors[0.0], errors[0.0][0], rtol=1e-5)


def test_the_critics_learn_the_lower_target() -> None:
    algorithm, batch = make("td3", smoothing=0.0), drawn(3)
    state, net, rows = begin(algorithm), make("td3", smoothing=0.0).net, drawn(3).rows
    old = state.extra["target"]
    q_next = np.asarray(net.q(old["critic"], rows.next_obs, net.policy(old["policy"], rows.next_obs)))
    y = [
        r + d * min(q_next[0][n], q_next[1][n]) for n, (r, d) in enumerate(zip(rows.reward, rows.discount, strict=True))
    ]
    q = np.asarray(net.q(state.params["critic"], rows.obs, rows.action))
    _, feedback, _ = stepping(algorithm)(state, batch, 0)
    np.testing.assert_allclose(feedback.td, np.abs(np.asarray(y) - q).mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(feedback.metrics["value"], 0.5 * ((np.asarray(y) - q) ** 2).mean(1).sum(), rtol=1e-4)


def test_the_policy_climbs_the_first_critic() -> None:
    algorithm, batch = make("td3", policy_delay=1, max_grad_norm=1e9), drawn(1)
    state, net = begin(algorithm), make("td3", policy_delay=1, max_grad_norm=1e9).net

    def loss(policy: Any) -> Any:
        return -jnp.mean(net.q(state.params["critic"], batch.rows.obs, net.policy(policy, batch.rows.obs))[0])

    grads, _, _ = stepping(algorithm)(state, batch, 0)
    for found, expected in zip(
        *map(jax.tree.leaves, (grads["policy"], jax.jit(jax.grad(loss))(state.params["policy"]))), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
