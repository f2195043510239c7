"""What the on-policy algorithms share, and what only PPO has."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos import ALGOS
from shoal.algos.a2c import A2C, A2CConfig
from shoal.algos.on_policy import even_split
from shoal.algos.ppo import PPO, PPOConfig
from shoal.core.algorithm import Task
from shoal.core.config import build
from shoal.core.errors import BadInput
from shoal.core.keys import key_data
from shoal.core.spec import ActionSpec, Categorical, EnvSpec, ObsSpec
from shoal.core.trajectory import EARNED, Trajectory
from shoal.learning.compiled_update import compiled_update
from shoal.nets.actor_critic import ActorCritic, NetConfig
from shoal.nets.q_network import QNetConfig, QNetwork

T, B = 8, 4
SPEC = EnvSpec("test", ObsSpec((3,)), ActionSpec((Categorical((2,)),), scalar=True))


def ppo(cell: str = "none", **settings: Any) -> PPO:
    net = ActorCritic(NetConfig(hidden=(8,), cell=cell, cell_size=4), SPEC)  # type: ignore[arg-type]
    return PPO(PPOConfig(**{"unroll": T, "learning_rate": 0.05, **settings}), Task(spec=SPEC, envs=B), net)


@cache
def trajectory() -> Trajectory:
    """Action 1 pays, action 0 does not; episodes of one step."""
    rng = np.random.default_rng(0)
    action = rng.integers(2, size=(T, B)).astype(np.int32)
    none = np.zeros((T, B), bool)
    obs = rng.normal(size=(T + 1, B, 3)).astype(np.float32)
    reward, ones = action.astype(np.float32), np.ones((T, B), np.float32)
    first = np.ones((T + 1, B), bool)
    return Trajectory(obs, action, reward, 0 * ones, ~none, ~none, first, {}, {}, np.zeros((T, B), np.int32))


def learn(algorithm: PPO, updates: int = 1, progress: float = 0.0) -> tuple[Any, dict[str, float]]:
    state = jax.jit(algorithm.init)(jax.random.key(0))
    metrics: dict[str, Any] = {}
    for i in range(updates):
        acted = algorithm.actor_state(state)
        args = (state, acted, [trajectory()], key_data(i), np.float32(progress))
        state, _, metrics = compiled_update(algorithm)(*args)
    return state, {name: float(value) for name, value in metrics.items()}


@pytest.mark.parametrize(
    ("samples", "size", "parts"),
    [(64, 0, 1), (64, 64, 1), (64, 100, 1), (64, 32, 2), (64, 31, 4), (60, 16, 4), (60, 7, 10), (64, 1, 64), (7, 1, 7)],
)
def test_a_batch_is_cut_evenly(samples: int, size: int, parts: int) -> None:
    assert even_split(samples, size) == parts
    assert samples % parts == 0 and (size == 0 or samples // parts <= size)


@pytest.mark.parametrize(("samples", "size", "parts"), [(127, 64, 1), (254, 64, 2), (7 * 128 + 1, 256, 3), (13, 4, 1)])
def test_a_batch_that_hardly_divides_has_no_minibatches_of_one(samples: int, size: int, parts: int) -> None:
    assert even_split(samples, size) == parts
    assert samples % parts == 0 and samples // parts >= size / 2


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_where_columns_mix_returns_stay_with_their_environments(name: str) -> None:
    """Two environments, one unroll a batch, in the order a, a, b, a, b: as if each had a column of its own."""
    gamma, scale, length = 0.9, 2.0, 3
    rng = np.random.default_rng(0)
    settings = {"gamma": gamma, "reward_scale": scale, "normalise_reward": True, "unroll": length}
    cls = ALGOS[name]
    net = {"ppo": ActorCritic(NetConfig(hidden=(4,)), SPEC), "dqn": QNetwork(QNetConfig(hidden=(4,)), SPEC)}[name]
    algorithm = cls(build(cls.Config, settings), Task(spec=SPEC, envs=1, mixed=True), net)
    state, prepare = jax.jit(algorithm.init)(jax.random.key(0)), jax.jit(algorithm.prepare)
    assert state.reward is not None
    running, earned, every = {"a": 0.0, "b": 0.0}, {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}, []
    for env in "aabab":
        reward = rng.normal(size=(length, 1)).astype(np.float32) * (100 if env == "b" else 1)
        boundary = rng.random((length, 1)) < 0.3
        valid = np.ones((length, 1), bool)
        for r, ended in zip(reward[:, 0], boundary[:, 0], strict=True):
            running[env] = gamma * running[env] + scale * r
            every.append(running[env])
            running[env] = 0.0 if ended else running[env]
        tr = Trajectory(
            obs=np.zeros((length + 1, 1, 3), np.float32),
            action=np.zeros((length, 1), np.int32),
            reward=reward,
            discount=np.ones((length, 1), np.float32),
            boundary=boundary,
            valid=valid,
            first=np.zeros((length + 1, 1), bool),
            extras={},
            carry={EARNED: earned[env]},
            version=np.zeros((length, 1), np.int32),
        )
        state, _ = prepare(state, algorithm.actor_state(state), tr, jax.random.key(0))
        earned[env] = np.asarray(algorithm.earned(earned[env], reward, boundary, valid))
        np.testing.assert_allclose(earned[env], running[env], rtol=1e-5)
    np.testing.assert_allclose(state.reward.moments.mean, np.mean(every), rtol=1e-4)
    np.testing.assert_allclose(state.reward.moments.m2, np.var(every) * len(every), rtol=1e-4)


def test_normalised_rewards_are_cut_at_ten() -> None:
    """One reward of a million among small ones: its advantage is that of 10, not of its own size."""
    algorithm = ppo(normalise_reward=True, normalise_advantage=False, lam=0.0)
    state, prepare = jax.jit(algorithm.init)(jax.random.key(0)), jax.jit(algorithm.prepare)
    small = trajectory()
    for _ in range(300):
        state, _ = prepare(state, algorithm.actor_state(state), small, jax.random.key(0))
    huge = small._replace(reward=np.where(np.arange(T * B).reshape(T, B) == 5, np.float32(1e6), small.reward))
    _, batch = prepare(state, algorithm.actor_state(state), huge, jax.random.key(0))
    target = np.asarray(batch.rows.target)  # episodes of one step: the target is the reward
    assert target.max() == pytest.approx(10.0) and np.median(target) < 5


def test_recurrent_minibatches_are_whole_columns() -> None:
    assert ppo("gru", batch_size=16).minibatches == (4, 2, True)
    assert ppo("gru", batch_size=1).minibatches == (4, B, True)
    assert ppo("gru", batch_size=0).minibatches == (4, 1, True)
    assert ppo(batch_size=16).minibatches == (4, 2, False)


def test_learning_prefers_what_pays() -> None:
    """The direction of the gradient: the paying action becomes likelier nearly everywhere."""
    algorithm = ppo(batch_size=0, epochs=1)
    state, _ = learn(algorithm, updates=10)
    obs, first = jnp.asarray(trajectory().obs[:-1]), jnp.asarray(trajectory().first[:-1])
    logits = algorithm.net.forward(state.params, obs, {}, first)[0]
    assert float((logits[..., 1] > logits[..., 0]).mean()) > 0.85


@pytest.mark.parametrize("normalise", [False, True])
def test_the_sign_alone_is_learnt_from(normalise: bool) -> None:
    """Before the scale and the running deviation see it."""
    clipped = ppo(reward_clip="sign", reward_scale=0.5, normalise_reward=normalise)
    plain = ppo(reward_scale=0.5, normalise_reward=normalise)
    large = trajectory()._replace(reward=400.0 * (2 * trajectory().reward - 1))
    signs = large._replace(reward=np.sign(large.reward))
    state = jax.jit(plain.init)(jax.random.key(0))

    def target(algorithm: PPO, tr: Trajectory) -> np.ndarray:
        acted = algorithm.actor_state(state)
        return np.asarray(jax.jit(algorithm.prepare)(state, acted, tr, jax.random.key(0))[1].rows.target)

    np.testing.assert_array_equal(target(clipped, large), target(plain, signs))
    assert not np.array_equal(target(plain, large), target(plain, signs)) or normalise


@pytest.mark.parametrize(("floor", "moves"), [(0.0, True), (1e-9, True), (0.999, False)])
def test_probabilities_below_the_floor_have_no_gradient(floor: float, moves: bool) -> None:
    """GA3C's log max(pi, epsilon): with a floor above every probability, the policy's own loss teaches nothing."""
    net = ActorCritic(NetConfig(hidden=(8,)), SPEC)
    config = A2CConfig(unroll=T, log_epsilon=floor, entropy=0.0, value_weight=0.0)
    algorithm = A2C(config, Task(spec=SPEC, envs=B), net)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    args = (state, algorithm.actor_state(state), [trajectory()], key_data(0), np.float32(0))
    metrics = compiled_update(algorithm)(*args)[2]
    assert (float(metrics["grad_norm"]) > 0) == moves


def test_the_kl_stop_stops() -> None:
    free, held = learn(ppo(batch_size=8)), learn(ppo(batch_size=8, target_kl=1e-4))
    assert int(free[0].step) == 16
    assert 1 <= int(held[0].step) < 6, "the first minibatches are applied, those after the limit are not"
    assert held[1]["kl"] < free[1]["kl"]
    assert int(learn(ppo(batch_size=8, target_kl=1e9))[0].step) == 16


def test_an_update_that_stops_at_once_still_tells_its_losses() -> None:
    """Other weights acted, so that the first minibatch is too far away already."""
    algorithm = ppo(batch_size=8, target_kl=1e-9)
    state, other = (jax.jit(algorithm.init)(jax.random.key(seed)) for seed in (0, 1))
    args = (state, algorithm.actor_state(other), [trajectory()], key_data(0), np.float32(0))
    after, _, metrics = compiled_update(algorithm)(*args)
    assert int(after.step) == 0 and float(metrics["value"]) > 0 and float(metrics["kl"]) > 1e-9


def test_the_clip_holds_the_policy_near_the_one_that_acted() -> None:
    wide, narrow = learn(ppo(batch_size=0, epochs=10, clip=10.0)), learn(ppo(batch_size=0, epochs=10, clip=0.02))
    assert narrow[1]["kl"] < 0.2 * wide[1]["kl"] and narrow[1]["clipped"] > 0 == wide[1]["clipped"]


def test_the_clip_falls_with_the_budget() -> None:
    algorithm = ppo(batch_size=0, clip=0.5, anneal_clip=True, final_rate=0.0)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    _, batch = jax.jit(algorithm.prepare)(state, algorithm.actor_state(state), trajectory(), jax.random.key(0))
    # As if every action had become 1.2 times as likely since.
    moved = batch._replace(rows=batch.rows._replace(log_mu=batch.rows.log_mu - jnp.log(1.2)))

    gradients = jax.jit(algorithm.gradients)

    def clipped(progress: float) -> float:
        now = state._replace(progress=jnp.float32(progress))
        return float(gradients(now, moved, jax.random.key(0))[1].metrics["clipped"])

    assert clipped(0.0) == 0 and clipped(0.9) == 1


def test_a_clipped_value_moves_less() -> None:
    def value_moved(**settings: Any) -> float:
        algorithm = ppo(batch_size=0, epochs=10, **settings)
        before, after = jax.jit(algorithm.init)(jax.random.key(0)), learn(algorithm)[0]
        obs, first = jnp.asarray(trajectory().obs), jnp.asarray(trajectory().first)
        values = [algorithm.net.value(state.params, obs, {}, first) for state in (before, after)]
        return float(jnp.abs(values[1] - values[0]).mean())

    assert value_moved(value_clip=0.01) < 0.5 * value_moved()


@pytest.mark.parametrize("name", ALGOS)
@pytest.mark.parametrize(
    ("field", "value"),
    [("unroll", 0), ("batch_size", -1), ("gamma", 1.5), ("learning_rate", 0), ("max_grad_norm", 0)],
)
def test_no_algorithm_takes_settings_without_sense(name: str, field: str, value: float) -> None:
    flag = f"--algo.{field.replace('_', '-')} is {value}"
    with pytest.raises(BadInput, match=flag):
        build(ALGOS[name].Config, {field: value}, "algo.")


@pytest.mark.parametrize("name", [name for name, algorithm in ALGOS.items() if not algorithm.replays])
def test_an_entropy_bonus_is_no_penalty(name: str) -> None:
    with pytest.raises(BadInput, match=r"--algo\.entropy is -1"):
        build(ALGOS[name].Config, {"entropy": -1}, "algo.")


@pytest.mark.parametrize("name", ALGOS)
def test_every_algorithm_has_the_shared_fields(name: str) -> None:
    for field in ("learning_rate", "gamma", "unroll", "batch_size"):
        assert hasattr(ALGOS[name].Config(), field)
    assert hasattr(ALGOS[name].Config(), "entropy") != ALGOS[name].replays, "action values have no entropy bonus"
