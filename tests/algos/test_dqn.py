"""DQN: what it keeps, what it learns from it, how it acts, and what it refuses."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.acting.compiled_act import compiled_act
from shoal.algos.dqn import DQN, DQNConfig
from shoal.algos.ppo import PPO, PPOConfig
from shoal.core.algorithm import Drawn, Task
from shoal.core.errors import BadInput
from shoal.core.keys import key_data
from shoal.core.spec import ActionSpec, Binary, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Trajectory, Transitions
from shoal.core.weights import params_hash, to_vector
from shoal.learning.compiled_update import apply
from shoal.nets.actor_critic import ActorCritic, NetConfig
from shoal.nets.q_network import QNetConfig, QNetwork

T, B, WIDTH, ACTIONS, N = 8, 4, 3, 3, 10
SPEC = EnvSpec("test", ObsSpec((WIDTH,)), ActionSpec((Categorical((ACTIONS,)),), scalar=True))


@cache
def make(**settings: Any) -> DQN:
    """A small one. The same arguments make the same object, so that it compiles once a session."""
    config = DQNConfig(**{"unroll": T, "batch_size": N, "warmup": 0, **settings})
    return DQN(config, Task(spec=SPEC, envs=B), QNetwork(QNetConfig(hidden=(8,)), SPEC))


@cache
def begin(algorithm: DQN) -> Any:
    """Weights that are not symmetric, a target that differs from them, statistics of something."""
    state, rng = jax.jit(algorithm.init)(jax.random.key(1)), np.random.default_rng(2)

    def loud(tree: Any) -> Any:
        return jax.device_put(jax.tree.map(lambda p: np.asarray(p + 0.5 * rng.normal(size=p.shape), np.float32), tree))

    state = state._replace(params=loud(state.params), extra={n: loud(tree) for n, tree in state.extra.items()})
    return state if state.obs is None and state.reward is None else prepared(algorithm, trajectory(), state)[0]


def trajectory(seed: int = 0) -> Trajectory:
    """Column 0 terminates at row 2, column 1 is truncated at row 4."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(T + 1, B, WIDTH)).astype(np.float32)
    action = rng.integers(0, ACTIONS, (T, B)).astype(np.int32)
    boundary, discount = np.zeros((T, B), bool), np.ones((T, B), np.float32)
    valid, first = np.ones((T, B), bool), np.zeros((T + 1, B), bool)
    for row, column in ((2, 0), (4, 1)):
        boundary[row, column] = True
        valid[row + 1, column], discount[row + 1, column] = False, 0.0
        first[row + 2, column] = True
    discount[2, 0] = 0.0
    reward = rng.normal(size=(T, B)).astype(np.float32) * valid
    return Trajectory(obs, action, reward, discount, boundary, valid, first, {}, {}, np.zeros((T, B), np.int32))


@cache
def _prepare(algorithm: DQN) -> Any:
    return jax.jit(algorithm.prepare)


def prepared(algorithm: DQN, tr: Trajectory, state: Any = None) -> Any:
    return _prepare(algorithm)(begin(algorithm) if state is None else state, None, tr, jax.random.key(0))


def drawn(seed: int = 0, weight: np.ndarray | None = None) -> Drawn:
    rng = np.random.default_rng(seed)
    obs, following = rng.normal(size=(2, N, WIDTH)).astype(np.float32)
    action, reward = rng.integers(0, ACTIONS, N).astype(np.int32), 3 * rng.normal(size=N).astype(np.float32)
    discount = np.where(rng.random(N) < 0.3, 0, 0.9).astype(np.float32)
    return Drawn(
        Transitions(obs, action, reward, discount, following), np.ones(N, np.float32) if weight is None else weight
    )


@cache
def _gradient(algorithm: DQN) -> Any:
    def one(state: Any, batch: Drawn) -> Any:
        grads, feedback = algorithm.gradients(state, batch, jax.random.key(0))
        return grads, feedback, apply(algorithm, state, grads)

    return jax.jit(one)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("n", [1, 3])
def test_normalised_rewards_are_cut_at_ten_a_step(n: int) -> None:
    """One reward of a million among small ones counts as 10, and a window of three steps as at most 30."""
    algorithm, batch = make(n_step=n, normalise_reward=True), drawn()
    state, reward = begin(algorithm), np.array(batch.rows.reward)
    reward[4], reward[5] = 1e6, -1e6
    learnt = algorithm.learnt_rows(state, batch._replace(rows=batch.rows._replace(reward=reward)))
    found = np.asarray(learnt.reward)
    assert (found[4], found[5]) == (10.0 * n, -10.0 * n)
    small = np.delete(np.arange(N), (4, 5))
    np.testing.assert_allclose(found[small], reward[small] / float(algorithm.reward_unit(state)), rtol=1e-5)


def test_rewards_without_normalisation_are_learnt_from_as_they_are() -> None:
    algorithm, batch = make(), drawn()
    huge = batch.rows._replace(reward=np.full(N, 1e6, np.float32))
    learnt = algorithm.learnt_rows(begin(algorithm), batch._replace(rows=huge))
    np.testing.assert_array_equal(learnt.reward, huge.reward)


class TestRows:
    @pytest.mark.parametrize("n", [1, 3])
    def test_what_follows_is_where_the_window_ends(self, n: int) -> None:
        algorithm, tr = make(n_step=n, gamma=0.9, reward_scale=2.0), trajectory()
        _, kept = prepared(algorithm, tr)
        np.testing.assert_array_equal(kept.valid, tr.valid)
        rows = kept.rows
        for t, b in zip(*np.nonzero(tr.valid), strict=True):
            total, product, steps = 0.0, 1.0, 0
            while steps < n and t + steps < T and tr.valid[t + steps, b]:
                total += product * 2.0 * tr.reward[t + steps, b]
                product *= 0.9 * tr.discount[t + steps, b]
                steps += 1
                if tr.boundary[t + steps - 1, b]:
                    break
            np.testing.assert_array_equal(rows.obs[t, b], tr.obs[t, b])
            np.testing.assert_array_equal(rows.next_obs[t, b], tr.obs[t + steps, b])
            assert int(rows.action[t, b]) == tr.action[t, b]
            np.testing.assert_allclose((rows.reward[t, b], rows.discount[t, b]), (total, product), rtol=1e-5, atol=1e-6)

    def test_the_sign_alone_is_learnt_from(self) -> None:
        clipped, plain = make(reward_clip="sign", reward_scale=0.5), make(reward_scale=0.5)
        tr = trajectory()
        signs = tr._replace(reward=np.sign(tr.reward))
        assert bits(prepared(clipped, tr)[1]) == bits(prepared(plain, signs)[1])
        assert bits(prepared(clipped, tr)[1]) != bits(prepared(plain, tr)[1])

    def test_statistics_see_valid_rows_alone_and_rows_stay_raw(self) -> None:
        algorithm, tr = make(normalise_obs=True, normalise_reward=True), trajectory()
        state, kept = prepared(algorithm, tr, jax.jit(algorithm.init)(jax.random.key(0)))
        np.testing.assert_allclose(state.obs.mean, tr.obs[:-1][tr.valid].mean(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(kept.rows.obs, tr.obs[:-1])
        assert state.reward.moments.count == tr.valid.sum()


class TestLearning:
    @pytest.mark.parametrize("double", [True, False])
    @pytest.mark.parametrize("loss", ["huber", "mse"])
    def test_the_gradient_against_finite_differences_of_the_formula(self, double: bool, loss: str) -> None:
        algorithm = make(double=double, loss=loss, max_grad_norm=1e9)
        state, weight = begin(algorithm), np.linspace(0.1, 1, N).astype(np.float32)
        batch = drawn(weight=weight)
        grads, feedback, _ = _gradient(algorithm)(state, batch)
        rows, q = batch.rows, algorithm.net.q
        q_t = np.asarray(q(state.extra["target"], rows.next_obs))
        choice = np.asarray(q(state.params, rows.next_obs)) if double else q_t
        target = rows.reward + rows.discount * q_t[np.arange(N), choice.argmax(1)]

        def by_hand(params: Any) -> Any:
            td = target - q(params, rows.obs)[np.arange(N), rows.action]
            size = jnp.abs(td)
            each = jnp.where(size <= 1, 0.5 * td**2, size - 0.5) if loss == "huber" else 0.5 * td**2
            return (weight * each).mean()

        np.testing.assert_allclose(to_vector(grads), to_vector(jax.grad(by_hand)(state.params)), rtol=1e-4, atol=1e-6)
        td = target - np.asarray(q(state.params, rows.obs))[np.arange(N), rows.action]
        np.testing.assert_allclose(feedback.td, td, rtol=1e-4, atol=1e-5)
        assert (np.abs(td) > 1).any() and (np.abs(td) < 1).any(), "both sides of Huber's bend"

    def test_repeated_gradients_bring_the_error_down(self) -> None:
        algorithm = make(learning_rate=3e-2, target_every=1000)
        state, batch, found = begin(algorithm), drawn(), []
        for _ in range(300):
            _, feedback, state = _gradient(algorithm)(state, batch)
            found.append(float(np.abs(feedback.td).mean()))
        assert found[-1] < 0.25 * found[0]

    def test_the_target_is_taken_over_after_so_many_gradients(self) -> None:
        algorithm = make(target_every=3, learning_rate=1e-2)
        state = begin(algorithm)
        old = params_hash(state.extra["target"])
        for step in range(1, 7):
            _, _, state = _gradient(algorithm)(state, drawn(step))
            same = params_hash(state.extra["target"]) == params_hash(state.params)
            assert same == (step % 3 == 0)
            assert (params_hash(state.extra["target"]) == old) == (step < 3)
        assert int(state.step) == 6

    def test_the_target_follows_softly(self) -> None:
        algorithm = make(target_every=1, tau=0.25)
        state = begin(algorithm)
        _, _, after = _gradient(algorithm)(state, drawn())
        expected = 0.75 * to_vector(state.extra["target"]) + 0.25 * to_vector(after.params)
        np.testing.assert_allclose(to_vector(after.extra["target"]), expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("workers", "target_every", "moves"),
        [(1, 6, (6,)), (3, 6, (2, 4, 6)), (4, 6, range(1, 7)), (9, 6, range(1, 7))],
    )
    def test_the_gradients_of_all_workers_count(self, workers: int, target_every: int, moves: Any) -> None:
        """Each worker sees its own alone."""
        algorithm = make(target_every=target_every)
        algorithm = replace(algorithm, task=algorithm.task._replace(workers=workers))
        state = begin(make(target_every=target_every))
        for step in range(1, 7):
            given = jax.tree.map(lambda p: p + 1, state.params)
            state = algorithm.settle(state, given)
            assert (params_hash(state.extra["target"]) == params_hash(given)) == (step in moves)

    @pytest.mark.parametrize(("workers", "target_every", "power"), [(2, 1, 2.0), (3, 2, 1.5), (3, 5, 0.6)])
    def test_a_soft_target_follows_the_gradients_of_all_workers(
        self, workers: int, target_every: int, power: float
    ) -> None:
        algorithm = make(target_every=target_every, tau=0.25)
        algorithm = replace(algorithm, task=algorithm.task._replace(workers=workers))
        state = begin(make(target_every=target_every, tau=0.25))
        given = jax.tree.map(lambda p: p + 1, state.params)
        after = algorithm.settle(state, given)
        left = 0.75**power  # of the distance, after one gradient of each worker
        expected = left * to_vector(state.extra["target"]) + (1 - left) * to_vector(given)
        np.testing.assert_allclose(to_vector(after.extra["target"]), expected, rtol=1e-5, atol=1e-6)


class TestActing:
    def actions(self, algorithm: DQN, state: Any, explore: float, keys: int = 200) -> np.ndarray:
        obs = np.random.default_rng(0).normal(size=(B, WIDTH)).astype(np.float32)
        act, actor = compiled_act(algorithm), algorithm.actor_state(state)
        args = ({}, np.zeros(B, bool)), np.full(B, explore, np.float32)
        acted = [act(actor, obs, *args[0], key_data(k), np.int32(0), args[1]) for k in range(keys)]
        assert all(extras == {} and carry == {} for _, extras, carry in acted)
        return np.stack([np.asarray(action) for action, _, _ in acted])

    def test_greedy_is_the_best_value(self) -> None:
        algorithm = make()
        state = begin(algorithm)
        obs = np.random.default_rng(0).normal(size=(B, WIDTH)).astype(np.float32)
        best = np.asarray(algorithm.net.q(state.params, obs)).argmax(1)
        actions = self.actions(algorithm, state, 0.0, 1)
        assert actions.dtype == SPEC.action.dtype and (actions == best).all()

    @pytest.mark.parametrize(("progress", "epsilon"), [(0.0, 0.8), (0.125, 0.5), (0.25, 0.2), (1.0, 0.2)])
    def test_epsilon_falls_over_its_share_of_the_budget(self, progress: float, epsilon: float) -> None:
        algorithm = make(epsilon_start=0.8, epsilon_end=0.2, explore=0.25)
        state = begin(algorithm)._replace(progress=jnp.float32(progress))
        assert float(algorithm.actor_state(state).explore["epsilon"]) == pytest.approx(epsilon)
        best = self.actions(algorithm, state, 0.0, 1)
        others = (self.actions(algorithm, state, 1.0, 600) != best).mean()
        assert others == pytest.approx(epsilon * (ACTIONS - 1) / ACTIONS, abs=0.06)

    def test_each_environment_explores_by_its_own_share(self) -> None:
        algorithm = make(epsilon_start=1.0)
        obs, act = np.zeros((B, WIDTH), np.float32), compiled_act(algorithm)
        actor, explore = algorithm.actor_state(begin(algorithm)), np.array([0, 1, 0, 1], np.float32)
        actions = np.stack(
            [
                np.asarray(act(actor, obs, {}, np.zeros(B, bool), key_data(k), np.int32(0), explore)[0])
                for k in range(50)
            ]
        )
        assert [len(set(column)) for column in actions.T.tolist()] == [1, ACTIONS, 1, ACTIONS]

    def test_every_action_is_as_likely_at_random(self) -> None:
        algorithm = make(epsilon_start=1.0)
        shares = np.bincount(self.actions(algorithm, begin(algorithm), 1.0, 600).ravel(), minlength=ACTIONS) / (600 * B)
        np.testing.assert_allclose(shares, 1 / ACTIONS, atol=0.04)


FLIPS: dict[str, Any] = {
    "learning_rate": 0.05,
    "final_rate": 0.5,
    "gamma": 0.5,
    "unroll": 4,
    "batch_size": 5,
    "every": 2,
    "repeats": 3,
    "capacity": 77,
    "warmup": 3,
    "n_step": 2,
    "replay": "prioritized",
    "alpha": 0.1,
    "beta": 0.9,
    "replacement": False,
    "sampler": "cpprb",
    "save_limit": 0.0,
    "double": False,
    "loss": "mse",
    "target_every": 1,
    "tau": 0.5,
    "epsilon_start": 0.5,
    "epsilon_end": 0.5,
    "explore": 1.0,
    "max_grad_norm": 1e-3,
    "normalise_obs": True,
    "normalise_reward": True,
    "reward_clip": "sign",
    "reward_scale": 10.0,
}


OF_SEQUENCES = ("sequence", "burn_in", "priority_max")  # refused or unread without a memory: test_sequences.py


@pytest.mark.parametrize("knob", [f.name for f in dataclasses.fields(DQNConfig) if f.name not in OF_SEQUENCES])
def test_every_knob_is_read(knob: str) -> None:
    """Another value keeps, draws, learns or acts in another way. `FLIPS` must know every field but the one that must be 0."""
    base = {"target_every": 2, "tau": 0.9} if knob == "tau" else {}
    plain, other = make(**base), make(**{**base, knob: FLIPS[knob]})
    assert getattr(plain.config, knob) != FLIPS[knob]

    def outcome(algorithm: DQN) -> list[Any]:
        state = begin(algorithm)._replace(progress=jnp.float32(0.15))
        found = [algorithm.experience, float(algorithm.rate(state)), float(algorithm.epsilon(state))]
        found += [bits(prepared(algorithm, trajectory(), state)[1])]
        for seed in range(2):
            _, _, state = _gradient(algorithm)(state, drawn(seed))
        return [*found, bits((state.params, state.extra))]

    assert outcome(plain) != outcome(other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_step": 9}, r"--algo.n-step is 9: .*at most --algo.unroll 8"),
        ({"batch_size": 300, "capacity": 200}, r"--algo.batch-size is 300: .*--algo.capacity 200"),
        ({"warmup": 300, "capacity": 200}, r"--algo.warmup is 300: .*--algo.capacity 200"),
        ({"gamma": 1.5}, r"--algo.gamma is 1.5"),
        ({"replay": "prioritized", "sampler": "cpprb", "replacement": False}, r"cpprb only draws with replacement"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        make(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("action", "spaces"),
    [
        (ActionSpec((Continuous((-1.0,), (1.0,)),)), "Box"),
        (ActionSpec((Categorical((3, 2)),)), "MultiDiscrete"),
        (ActionSpec((Binary(3),)), "MultiBinary"),
        (ActionSpec((Categorical((2,)), Continuous((-1.0,), (1.0,)))), "Discrete, Box"),
    ],
)
def test_other_actions_than_one_discrete_are_refused(action: ActionSpec, spaces: str) -> None:
    """By Gymnasium's names, which the user knows."""
    spec = EnvSpec("Swing", ObsSpec((WIDTH,)), action)
    with pytest.raises(BadInput, match=f"Swing: its actions are {spaces}; .*one Discrete space: use ppo"):
        QNetwork(QNetConfig(), spec)


def test_a_net_without_action_values_is_refused() -> None:
    with pytest.raises(BadInput, match="ActorCritic has no action values"):
        DQN(DQNConfig(), Task(spec=SPEC, envs=B), ActorCritic(NetConfig(), SPEC))  # type: ignore[arg-type]


def test_a_net_without_a_policy_is_refused_by_the_others() -> None:
    with pytest.raises(BadInput, match="QNetwork has no policy"):
        PPO(PPOConfig(), Task(spec=SPEC, envs=B), QNetwork(QNetConfig(), SPEC))  # type: ignore[arg-type]
