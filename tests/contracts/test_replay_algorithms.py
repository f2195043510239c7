"""The contract of every algorithm with a replay: what topologies may rely on."""

from __future__ import annotations

from functools import cache
from typing import Any

import continuous_algos
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_policy_algos import ACTIONS, ON_POLICY, TERMINATED, TRUNCATED, WIDTH, B, T, bits, changed, farthest
from slices import assert_valid_on_any_slice

from shoal.acting.compiled_act import compiled_act
from shoal.algos import ALGOS
from shoal.core.algorithm import Drawn, Replay, Task
from shoal.core.keys import key_data
from shoal.core.spec import EnvSpec, ObsSpec
from shoal.core.trajectory import Trajectory
from shoal.core.weights import layout_of, params_hash, to_vector
from shoal.learning.compiled_update import apply, compiled_update
from shoal.nets.q_network import QNetConfig, QNetwork

OFF_POLICY = [name for name in ALGOS if name not in ON_POLICY]
N = continuous_algos.N


@cache
def with_replay(name: str, **settings: Any) -> Any:
    """Equal arguments give the same object, so that it is compiled once per session."""
    return build(name, **settings)


def build(name: str, **settings: Any) -> Any:
    if name in continuous_algos.NAMES:
        return continuous_algos.build(name, **settings)
    spec = EnvSpec("test", ObsSpec((WIDTH,)), ACTIONS["discrete"])
    config = ALGOS[name].Config(**{"unroll": T, "batch_size": N, "warmup": 0, **settings})
    return ALGOS[name](config, Task(spec=spec, envs=B), QNetwork(QNetConfig(hidden=(8,)), spec))


def in_spec(algorithm: Any, action: np.ndarray) -> np.ndarray:
    """Continuous actions, or numbers of discrete ones in their place."""
    return action if algorithm.task.spec.action.dtype == np.float32 else (action[..., 0] > 0).astype(np.int32)


def minibatch(algorithm: Any, seed: int = 0) -> Any:
    rows = continuous_algos.drawn(seed).rows
    return continuous_algos.drawn(seed)._replace(rows=rows._replace(action=in_spec(algorithm, rows.action)))


def trajectory(algorithm: Any) -> Trajectory:
    """Column 0 terminates at row 2, column 1 is truncated at row 4."""
    tr = continuous_algos.trajectory()
    return tr._replace(action=in_spec(algorithm, tr.action))


@cache
def begin(algorithm: Any) -> Any:
    """A state with params that are not symmetric, after a first gradient: the second one moves a delayed policy too."""
    state, rng = jax.jit(algorithm.init)(jax.random.key(1)), np.random.default_rng(2)
    params = jax.tree.map(lambda p: p + np.float32(rng.normal(size=p.shape)) * 0.3, state.params)
    return state._replace(params=params, step=jnp.int32(1))


@cache
def _gradients(algorithm: Any) -> Any:
    return jax.jit(algorithm.gradients)


def gradients(algorithm: Any, batch: Any = None, state: Any = None) -> Any:
    """(gradients, feedback) on one minibatch."""
    state, batch = begin(algorithm) if state is None else state, minibatch(algorithm) if batch is None else batch
    return _gradients(algorithm)(state, batch, jax.random.key(0))


@cache
def _prepare(algorithm: Any) -> Any:
    return jax.jit(algorithm.prepare)


def prepared(algorithm: Any, tr: Trajectory) -> Any:
    """(state, rows to keep) of an unroll."""
    return _prepare(algorithm)(begin(algorithm), None, tr, jax.random.key(0))


def acted(algorithm: Any, state: Any, explore: float, keys: int = 12) -> np.ndarray:
    """[keys, B, ...] the actions at the same observations, with as many keys."""
    obs = np.random.default_rng(0).normal(size=(B, WIDTH)).astype(np.float32)
    actor, carry = algorithm.actor_state(state), algorithm.initial_carry(B)
    act, noise, first = compiled_act(algorithm), np.full(B, explore, np.float32), np.zeros(B, bool)
    found = [act(actor, obs, carry, first, key_data(k), np.int32(0), noise) for k in range(keys)]
    assert all(jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, carry) for _, _, after in found)
    assert not any(extras for _, extras, _ in found)
    return np.stack([np.asarray(action) for action, _, _ in found])


def windows(name: str) -> dict[str, Any]:
    """Settings of windows of three steps, for those that take them."""
    return {"n_step": 1 if name == "dyna_q" else 3, "gamma": 0.9}


@pytest.mark.parametrize("name", OFF_POLICY)
class TestReplayAlgorithm:
    """`core.algorithm.Algorithm`, of those that learn from a replay."""

    def test_equal_ones_compile_once(self, name: str) -> None:
        one, other = build(name), build(name)
        assert one is not other and one == other and hash(one) == hash(other)
        assert compiled_update(one) is compiled_update(other)
        assert compiled_update(one) is not compiled_update(build(name, gamma=0.5))
        assert one.replays and isinstance(one.experience, Replay)

    def test_state_is_arrays_and_what_travels_is_float32(self, name: str) -> None:
        algorithm = with_replay(name, normalise_obs=True, normalise_reward=True)
        state = algorithm.init(jax.random.key(0))
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
        actor = algorithm.actor_state(state)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(actor)) and actor.explore
        assert not {"target", "critic"} & set(actor.params), "only what acts"
        assert layout_of(actor).size <= layout_of(state.params).size + 2 * WIDTH + 2
        assert state.step == 0 and state.progress == 0
        for part, weights in state.extra["target"].items():
            assert params_hash(weights) == params_hash(state.params[part])

    def test_act_gives_actions_of_the_spec(self, name: str) -> None:
        algorithm = with_replay(name)
        spec = algorithm.task.spec.action
        for step in (0, 1):  # before the first gradient some act at random
            actions = acted(algorithm, begin(algorithm)._replace(step=jnp.int32(step)), 1.0)
            assert actions.shape[1:] == (B, *spec.shape) and actions.dtype == spec.dtype
            low, high = (-1, 1) if spec.dtype == np.float32 else (0, spec.parts[0].sizes[0] - 1)
            assert actions.min() >= low and actions.max() <= high

    def test_greedy_does_not_depend_on_the_key(self, name: str) -> None:
        algorithm = with_replay(name)
        state = begin(algorithm)
        greedy, noisy = acted(algorithm, state, 0.0), acted(algorithm, state, 1.0)
        assert (greedy == greedy[0]).all() and not (noisy == noisy[0]).all()
        fresh = acted(algorithm, state._replace(step=jnp.int32(0)), 0.0, keys=2)
        assert (fresh == greedy[0]).all(), "what is judged is never at random"

    def test_groups_name_all_params_in_order(self, name: str) -> None:
        algorithm = with_replay(name)
        params = algorithm.init(jax.random.key(0)).params
        assert not algorithm.groups or [group.name for group in algorithm.groups] == sorted(params)

    def test_a_gradient_is_of_every_param_and_tells_errors(self, name: str) -> None:
        algorithm, batch = with_replay(name), minibatch(with_replay(name))
        state = begin(algorithm)
        before = bits(state)
        grads, feedback = gradients(algorithm, batch)
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
        half = batch._replace(weight=batch.weight * np.float32(0.5))
        losses = [gradients(algorithm, one)[1].metrics["value"] for one in (batch, half)]
        assert float(losses[1]) == pytest.approx(0.5 * float(losses[0]), rel=1e-5)

    def test_settle_counts_and_adopt_does_not(self, name: str) -> None:
        often: dict[str, Any] = {"td3": {"policy_delay": 1}, "dqn": {"target_every": 1}, "dyna_q": {"target_every": 1}}
        algorithm = with_replay(name, **often.get(name, {}))
        state = begin(algorithm)
        given = jax.tree.map(lambda p: p + 1, state.params)
        settled, adopted = algorithm.settle(state, given), algorithm.adopt(state, given)
        assert params_hash(settled.params) == params_hash(adopted.params) == params_hash(given)
        assert int(settled.step) == 2 and bits(settled.moments) == bits(state.moments)
        assert bits(settled.extra["target"]) != bits(state.extra["target"]), "which follows gradients alone"
        assert bits(adopted._replace(params=state.params)) == bits(state)

    def test_gradients_are_clipped(self, name: str) -> None:
        """Those of each group by themselves."""
        clipped, feedback = gradients(with_replay(name, max_grad_norm=1e-3))
        whole, free = gradients(with_replay(name, max_grad_norm=1e9))
        assert feedback.metrics["grad_norm"] == pytest.approx(float(np.linalg.norm(to_vector(whole))), rel=1e-4)
        assert feedback.metrics["grad_norm"] == pytest.approx(float(free.metrics["grad_norm"]), rel=1e-4)
        groups = [group.name for group in with_replay(name).groups]
        parts = [(clipped[group], whole[group]) for group in groups] if groups else [(clipped, whole)]
        for one, other in parts:
            norm = float(np.linalg.norm(to_vector(other)))
            assert norm > 1e-3 and float(np.linalg.norm(to_vector(one))) == pytest.approx(1e-3, rel=1e-4)
            np.testing.assert_allclose(to_vector(one) * norm / 1e-3, to_vector(other), rtol=1e-3, atol=1e-6)

    def test_the_optimiser_is_valid_on_any_slice(self, name: str) -> None:
        assert_valid_on_any_slice(with_replay(name).optimiser)

    def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not(self, name: str) -> None:
        algorithm = with_replay(name, **windows(name))
        n, tr = algorithm.config.n_step, trajectory(algorithm)
        rows = prepared(algorithm, tr)[1].rows
        (ended, column), (cut, other) = TERMINATED, TRUNCATED
        before = range(cut - n + 1, cut + 1)  # whose windows end with the truncation
        for row in before:
            left = cut - row + 1
            total = sum(0.9**i * tr.reward[row + i, other] for i in range(left))
            np.testing.assert_allclose(rows.reward[row, other], total, rtol=1e-5)
            np.testing.assert_allclose(rows.discount[row, other], 0.9**left, rtol=1e-5)
            np.testing.assert_array_equal(rows.next_obs[row, other], tr.obs[cut + 1, other])
        assert not np.any(rows.discount[ended - n + 1 : ended + 1, column])

    def test_the_autoreset_row_has_no_effect(self, name: str) -> None:
        algorithm = with_replay(name, normalise_obs=True, normalise_reward=True, **windows(name))
        tr = trajectory(algorithm)
        resets = [(row + 1, column) for row, column in (TERMINATED, TRUNCATED)]
        assert not any(tr.valid[at] for at in resets)
        learnt = [(t, b) for b in (0, 1, 2) for t in range(T) if tr.valid[t, b]][:N]  # with both ends

        def outcome(tr: Trajectory) -> list[bytes]:
            """Statistics, and the gradient of rows on either side of the ends."""
            state, kept = prepared(algorithm, tr)
            rows = jax.tree.map(lambda x: np.stack([x[at] for at in learnt]), jax.device_get(kept.rows))
            batch = Drawn(rows, np.ones(len(learnt), np.float32))
            given = begin(algorithm)._replace(obs=state.obs, reward=state.reward)
            return bits((kept.valid, state.obs, state.reward, gradients(algorithm, batch, given)[0]))

        def other_rewards(reward: np.ndarray) -> None:
            for at in resets:
                reward[at] = 1000.0

        def other_actions(action: np.ndarray) -> None:
            for at in resets:
                action[at] = 1 - action[at]

        def other_obs(obs: np.ndarray) -> None:  # after a truncation it is the bootstrap, where it matters
            obs[TERMINATED[0] + 1, TERMINATED[1]] = 50.0

        expected = outcome(tr)
        for what, edit in {"action": other_actions, "reward": other_rewards, "obs": other_obs}.items():
            other = changed(tr, **{what: edit})
            assert not np.array_equal(getattr(other, what), getattr(tr, what))
            assert outcome(other) == expected, what
        valid = changed(tr, reward=lambda r: r.__setitem__((0, 0), 2.0))
        assert outcome(valid) != expected, "a row that counts does have an effect"

    def test_the_learning_rate_falls_with_the_budget(self, name: str) -> None:
        algorithm = with_replay(name, learning_rate=1e-2, final_rate=0.1)
        state = begin(algorithm)
        at = [state._replace(progress=jnp.float32(p)) for p in (0.0, 0.5, 1.0)]
        np.testing.assert_allclose([algorithm.rate(s) for s in at], [1e-2, 5.5e-3, 1e-3], rtol=1e-5)
        grads, feedback = gradients(algorithm)
        steps = [farthest(apply(algorithm, s, grads, feedback.moved).params, state.params) for s in at]
        np.testing.assert_allclose(steps, [steps[0], 0.55 * steps[0], 0.1 * steps[0]], rtol=1e-2)
