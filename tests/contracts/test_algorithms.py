"""The contract of every on-policy algorithm: what topologies may rely on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_policy_algos import (
    ON_POLICY,
    TERMINATED,
    TRUNCATED,
    WIDTH,
    B,
    begin,
    bits,
    build,
    changed,
    farthest,
    learn,
    make,
    trajectory,
)
from slices import assert_valid_on_any_slice

from shoal.acting.compiled_act import compiled_act
from shoal.core.keys import key_data
from shoal.core.weights import layout_of, params_hash, to_vector
from shoal.learning.compiled_update import compiled_update

KINDS = ("discrete", "mixed", "recurrent")


@pytest.mark.parametrize("name", ON_POLICY)
class TestAlgorithm:
    """`core.algorithm.Algorithm`."""

    def test_equal_ones_compile_once(self, name: str) -> None:
        one, other = build(name), build(name)
        assert one is not other and one == other and hash(one) == hash(other)
        assert compiled_update(one) is compiled_update(other)
        assert compiled_update(one) is not compiled_update(build(name, gamma=0.5))

    def test_state_is_arrays_and_what_travels_is_float32(self, name: str) -> None:
        algorithm = make(name, normalise_obs=True, normalise_reward=True)
        state = jax.jit(algorithm.init)(jax.random.key(0))
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
        actor = algorithm.actor_state(state)
        assert "value" not in actor.params and "value" in state.params
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(actor))
        assert layout_of(actor).size < layout_of(state.params).size + 2 * WIDTH
        assert state.step == 0 and state.progress == 0

    @pytest.mark.parametrize("kind", KINDS)
    def test_act_gives_actions_of_the_spec(self, name: str, kind: str) -> None:
        algorithm = make(name, kind)
        actor, carry = algorithm.actor_state(begin(algorithm)), algorithm.initial_carry(B)
        obs = np.random.default_rng(0).normal(size=(B, WIDTH)).astype(np.float32)
        action, extras, after = compiled_act(algorithm)(
            actor, obs, carry, np.ones(B, bool), key_data(0), np.int32(0), np.ones(B, np.float32)
        )
        spec = algorithm.task.spec.action
        assert action.shape == (B, *spec.shape) and action.dtype == spec.dtype
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, carry)
        assert bool(carry) == (kind == "recurrent") and not extras

    @pytest.mark.parametrize("kind", KINDS)
    def test_greedy_does_not_depend_on_the_key(self, name: str, kind: str) -> None:
        algorithm = make(name, kind)
        actor, carry = algorithm.actor_state(begin(algorithm)), algorithm.initial_carry(B)
        obs = np.random.default_rng(0).normal(size=(B, WIDTH)).astype(np.float32)

        def actions(explore: float) -> set[bytes]:
            noise, first = np.full(B, explore, np.float32), np.zeros(B, bool)
            return {
                np.asarray(
                    compiled_act(algorithm)(actor, obs, carry, first, key_data(k), np.int32(0), noise)[0]
                ).tobytes()
                for k in range(12)
            }

        assert len(actions(0.0)) == 1 and len(actions(1.0)) > 1

    def test_settle_takes_params_from_anywhere(self, name: str) -> None:
        algorithm = make(name)
        state = begin(algorithm)
        given = jax.tree.map(lambda p: p + 1, state.params)
        after = algorithm.settle(state, given)
        assert params_hash(after.params) == params_hash(given) and int(after.step) == int(state.step) + 1
        assert bits(after.moments) == bits(state.moments)

    def test_adopt_takes_params_and_leaves_all_else(self, name: str) -> None:
        algorithm = make(name, normalise_obs=True, normalise_reward=True)
        state = begin(algorithm)
        given = jax.tree.map(lambda p: p + 1, state.params)
        after = algorithm.adopt(state, given)
        assert params_hash(after.params) == params_hash(given)
        assert bits(after._replace(params=state.params)) == bits(state)

    @pytest.mark.parametrize("kind", ["recurrent"])
    def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not(self, name: str, kind: str) -> None:
        algorithm = make(name, kind, normalise_advantage=False)
        tr = trajectory(algorithm)

        def after(end: tuple[int, int]) -> Callable[[np.ndarray], None]:
            def edit(obs: np.ndarray) -> None:
                obs[end[0] + 1, end[1]] += 1.0

            return edit

        plain = np.asarray(learn(algorithm, tr).advantage)
        np.testing.assert_array_equal(learn(algorithm, changed(tr, obs=after(TERMINATED))).advantage, plain)
        moved = np.asarray(learn(algorithm, changed(tr, obs=after(TRUNCATED))).advantage) != plain
        row, column = TRUNCATED
        assert moved[: row + 1, column].all() and moved.sum() == row + 1, "only its own episode, all of it"

    def test_gradients_are_clipped(self, name: str) -> None:
        quiet, free = make(name, max_grad_norm=1e-3), make(name, max_grad_norm=1e9)
        clipped, whole = learn(quiet, trajectory(quiet)), learn(free, trajectory(quiet))
        norm = float(whole.feedback.metrics["grad_norm"])
        assert norm > 1e-2 and float(np.linalg.norm(to_vector(clipped.grads))) == pytest.approx(1e-3, rel=1e-4)
        np.testing.assert_allclose(to_vector(clipped.grads) * norm / 1e-3, to_vector(whole.grads), rtol=1e-3, atol=1e-6)

    def test_the_optimiser_is_valid_on_any_slice(self, name: str) -> None:
        assert_valid_on_any_slice(make(name).optimiser)

    def test_update_is_prepare_and_apply_over_minibatches(self, name: str) -> None:
        algorithm = make(name, batch_size=0, **({"epochs": 1} if name == "ppo" else {}))
        tr, state = trajectory(algorithm), begin(algorithm)
        acted = algorithm.actor_state(state)
        whole = compiled_update(algorithm)(state, acted, [tr], key_data(0), np.float32(0))[0]
        by_hand = learn(algorithm, tr).state
        assert farthest(by_hand.params, whole.params) < 1e-6 < farthest(whole.params, state.params)

    def test_statistics_travel_with_the_weights(self, name: str) -> None:
        algorithm = make(name, "box", normalise_obs=True)
        tr = trajectory(algorithm)
        tr = tr._replace(obs=tr.obs * 20 + 100)
        actor = algorithm.actor_state(learn(algorithm, tr).state)
        seen = tr.obs[:-1][tr.valid]
        np.testing.assert_allclose(actor.obs_mean, seen.mean(0), rtol=1e-4)
        np.testing.assert_allclose(1 / actor.obs_scale, seen.std(0), rtol=1e-3)
        # A remote actor has only the vector, and acts like one that holds the learner's state.
        there = layout_of(actor).tree(to_vector(actor))
        args = (tr.obs[0], {}, np.zeros(B, bool), key_data(3), np.int32(0), np.ones(B, np.float32))
        act = compiled_act(algorithm)
        assert bits(act(jax.device_put(there), *args)[0]) == bits(act(actor, *args)[0])
        plain = actor._replace(obs_mean=jnp.zeros(WIDTH), obs_scale=jnp.ones(WIDTH))
        assert bits(act(plain, *args)[0]) != bits(act(actor, *args)[0])

    def test_the_learning_rate_falls_with_the_budget(self, name: str) -> None:
        algorithm = make(name, learning_rate=1e-2, final_rate=0.1)
        state = begin(algorithm)
        at = [state._replace(progress=jnp.float32(p)) for p in (0.0, 0.5, 1.0)]
        np.testing.assert_allclose([algorithm.rate(s) for s in at], [1e-2, 5.5e-3, 1e-3], rtol=1e-5)
        steps = [farthest(learn(algorithm, trajectory(algorithm), s).state.params, state.params) for s in at]
        np.testing.assert_allclose(steps, [steps[0], 0.55 * steps[0], 0.1 * steps[0]], rtol=1e-2)


def one_each(kinds: tuple[str, ...]) -> list[Any]:
    """(algorithm, kind) pairs: `make test` covers every kind and every algorithm; the full product is slow."""
    quick = {(name, kinds[i % len(kinds)]) for i, name in enumerate(ON_POLICY)}
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow) for pair in product(ON_POLICY, kinds)]


@pytest.mark.parametrize(("name", "kind"), one_each(("mixed", "recurrent")))
def test_update_changes_params_and_leaves_its_inputs_alone(name: str, kind: str) -> None:
    algorithm = make(name, kind, batch_size=16)
    state, tr = begin(algorithm), trajectory(algorithm)
    before = bits((state, tr))
    acted = algorithm.actor_state(state)
    after, actor, metrics = compiled_update(algorithm)(state, acted, [tr], key_data(7), np.float32(0))
    assert bits((state, tr)) == before
    assert jax.tree.structure((after, actor)) == jax.tree.structure((state, acted))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    pairs = zip(*map(jax.tree.leaves, (after.params, state.params)), strict=True)
    assert not any(np.array_equal(a, b) for a, b in pairs), "every weight has a gradient"
    cut = algorithm.minibatches
    assert cut.parts == 2 and int(after.step) == cut.epochs * cut.parts
    assert all(np.isfinite(float(value)) for value in metrics.values())
    assert {"policy", "value", "entropy", "grad_norm"} <= set(metrics)
    assert bits(actor) == bits(algorithm.actor_state(after))


@pytest.mark.parametrize(("name", "kind"), one_each(("discrete", "mixed", "recurrent")))
def test_the_autoreset_row_has_no_effect(name: str, kind: str) -> None:
    normalised = kind != "mixed"
    algorithm = make(name, kind, normalise_obs=normalised, normalise_reward=normalised, batch_size=16)
    tr = trajectory(algorithm)
    rows = [(row + 1, column) for row, column in (TERMINATED, TRUNCATED)]
    assert all(not tr.valid[at] for at in rows)

    def other_actions(action: np.ndarray) -> None:
        for at in rows:
            action[at] = 1 - np.minimum(action[at], 1)

    def other_rewards(reward: np.ndarray) -> None:
        for at in rows:
            reward[at] = 1000.0

    def other_obs(obs: np.ndarray) -> None:  # after a truncation it is the bootstrap, where it matters
        obs[TERMINATED[0] + 1, TERMINATED[1]] = 50.0

    expected = bits(learn(algorithm, tr))
    for what, edit in {"action": other_actions, "reward": other_rewards, "obs": other_obs}.items():
        other = changed(tr, **{what: edit})
        assert not np.array_equal(getattr(other, what), getattr(tr, what))
        assert bits(learn(algorithm, other)) == expected, what
    valid = changed(tr, action=lambda a: a.__setitem__((0, 0), 1 - np.minimum(a[0, 0], 1)))
    assert bits(learn(algorithm, valid)) != expected, "a row that counts does have an effect"
