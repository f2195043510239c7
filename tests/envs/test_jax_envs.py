"""JAX environments against Gymnasium's, and inside a scan."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.spec import ActionSpec, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.envs.cartpole import CartPole
from shoal.envs.jax_envs import BatchedJax, JaxBatch, JaxEnv, actor_key, to_own
from shoal.envs.pendulum import Pendulum
from shoal.envs.source import find


def test_cartpole_is_gymnasiums() -> None:
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    step = jax.jit(CartPole().step)
    ends = 0
    for _ in range(300):
        env.state = rng.uniform(-1, 1, 4) * np.array([2.5, 3, 0.22, 3])
        env.steps_beyond_terminated = None
        action = int(rng.integers(2))
        _, obs, reward, terminated = step(jnp.asarray(env.state, jnp.float32), action, jax.random.key(0))
        theirs, their_reward, their_end, _, _ = env.step(action)
        np.testing.assert_allclose(obs, theirs, rtol=1e-5, atol=1e-6)
        assert float(reward) == their_reward and bool(terminated) == their_end
        ends += their_end
    assert 10 < ends < 290
    env.close()


def test_pendulum_is_gymnasiums() -> None:
    env: Any = gymnasium.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    step = jax.jit(Pendulum().step)
    for _ in range(300):
        env.state = rng.uniform(-1, 1, 2) * np.array([10, 8])
        torque = rng.uniform(-3, 3, 1).astype(np.float32)
        _, obs, reward, terminated = step(jnp.asarray(env.state, jnp.float32), torque, jax.random.key(0))
        theirs, their_reward, _, _, _ = env.step(torque)
        np.testing.assert_allclose(obs, theirs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(reward, their_reward, rtol=1e-4, atol=1e-4)
        assert not bool(terminated)
    env.close()


def test_starts_are_gymnasiums() -> None:
    keys = jax.random.split(jax.random.key(0), 2000)
    cart = np.asarray(jax.jit(jax.vmap(CartPole().reset))(keys)[1])
    assert np.abs(cart).max() <= 0.05 and np.allclose(cart.std(0), 0.1 / np.sqrt(12), rtol=0.1)
    state, obs = jax.jit(jax.vmap(Pendulum().reset))(keys)
    high = np.array([np.pi, 1.0])
    assert (np.abs(state) <= high).all() and np.allclose(np.std(state, 0), 2 * high / np.sqrt(12), rtol=0.1)
    np.testing.assert_allclose(obs[:, 0], np.cos(state[:, 0]), atol=1e-6)


def test_a_scan_and_a_batch_see_the_same() -> None:
    batched, steps = BatchedJax(CartPole(), 4), 60
    actions = np.random.default_rng(0).integers(0, 2, (steps, 4)).astype(np.int32)
    carry = jax.jit(batched.init)(actor_key(3, 1))
    _, scanned = jax.jit(lambda carry, actions: jax.lax.scan(batched.step, carry, actions))(carry, actions)
    batch = JaxBatch(CartPole(), 4, 3, 1)
    assert np.array_equal(batch.reset(), carry.obs)
    for t in range(steps):
        step = batch.step(actions[t])
        for mine, theirs in zip(step[:4], scanned, strict=True):
            np.testing.assert_allclose(np.asarray(mine), theirs[t], atol=1e-5)
    assert np.asarray(scanned[2]).any()


def test_starts_differ_from_episode_to_episode() -> None:
    batch = JaxBatch(CartPole(), 2, 0, 0)
    starts = [np.array(batch.reset())]
    ended = np.zeros(2, bool)
    for _ in range(60):
        step = batch.step(np.ones(2, np.int32))
        starts += [np.asarray(step.obs)[ended]] if ended.any() else []
        assert not np.asarray(step.reward)[ended].any()
        ended = np.asarray(step.terminated) | np.asarray(step.truncated)
    every = np.concatenate(starts)
    assert len(every) >= 8 and len(np.unique(every, axis=0)) == len(every) and np.abs(every).max() <= 0.05


def test_restart_touches_one() -> None:
    batch = JaxBatch(CartPole(), 3, 0, 0)
    batch.reset()
    before = np.array(batch.step(np.ones(3, np.int32)).obs)
    first = batch.restart(1)
    saved = batch.snapshot()
    now = [array for array in saved.values() if array.shape == (3, 4)]  # the state and the observation
    assert len(now) == 2 and np.abs(first).max() <= 0.05
    for array in now:
        assert np.array_equal(array[[0, 2]], before[[0, 2]]) and np.array_equal(array[1], first)


class Noisy(NamedTuple):
    """A user's own: stochastic steps, a dict as state, no time limit, terminates by chance."""

    max_steps: None = None

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("noisy", ObsSpec((2,)), ActionSpec((Categorical((2,)), Continuous((0.0,), (4.0,)))))

    def reset(self, key: Any) -> Any:
        state = {"at": jax.random.normal(key, (2,)), "sum": jnp.zeros(())}
        return state, state["at"]

    def step(self, state: Any, action: Any, key: Any) -> Any:
        at = state["at"] + 0.1 * jax.random.normal(key, (2,))
        after = {"at": at, "sum": state["sum"] + action[1]}
        return after, at, action[1], jax.random.uniform(key) < 0.1


def test_an_own_environment() -> None:
    source = find(Noisy)
    assert source.backend == "jax" and source.native and isinstance(source.jax_env(), JaxEnv)
    batch = source.batch(5, 0, 0)
    batch.reset()
    rewards, ends = [], 0
    for _ in range(50):
        step = batch.step(np.tile(np.array([1.0, 0.0], np.float32), (5, 1)))
        rewards.append(np.asarray(step.reward))
        ends += int(np.asarray(step.terminated).sum())
        assert not np.asarray(step.truncated).any()
    assert set(np.unique(rewards)) == {0.0, 2.0} and ends > 3
    env = source.single()
    assert env.reset(0).shape == (2,) and not env.can_render and env.step(np.array([1.0, 1.0]))[1] == 4.0


def test_actions_are_scaled() -> None:
    spec = ActionSpec((Categorical((3,)), Continuous((0.0, -np.inf), (4.0, np.inf))))
    own = to_own(spec, jnp.array([[2.0, -5.0, -5.0], [1.0, 0.5, 7.0]]))
    assert own.tolist() == [[2.0, 0.0, -5.0], [1.0, 3.0, 7.0]]
    half = ActionSpec((Continuous((0.0, -np.inf), (np.inf, 1.0)),))
    assert to_own(half, jnp.array([[-5.0, 7.0], [5.0, -7.0]])).tolist() == [[0.0, 1.0], [5.0, -7.0]]


@pytest.mark.parametrize("limit", [1, 7])
def test_the_time_limit_counts_steps(limit: int) -> None:
    batch = JaxBatch(Pendulum(max_steps=limit), 1, 0, 0)
    batch.reset()
    ends = [bool(batch.step(np.zeros((1, 1), np.float32)).truncated[0]) for _ in range(3 * (limit + 1))]
    assert [t for t, end in enumerate(ends) if end] == [limit - 1 + i * (limit + 1) for i in range(3)]


def test_named_tuples_of_two_classes_are_two_environments() -> None:
    """A named tuple equals any tuple with the same content; what is compiled for one must not serve the other."""

    class Other(NamedTuple):
        max_steps: int | None = 500

    assert tuple(Other()) == tuple(CartPole())
    assert BatchedJax(Other(), 2) != BatchedJax(CartPole(), 2)  # type: ignore[arg-type]
    assert BatchedJax(CartPole(), 2) == BatchedJax(CartPole(), 2)
    assert hash(BatchedJax(CartPole(), 2)) == hash(BatchedJax(CartPole(), 2))
