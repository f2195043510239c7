"""Updates that must not count: whatever is not finite leaves the state as it was, and is told with its likely cause."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.acting.compiled_act import compiled_act
from shoal.core.keys import key_data
from shoal.core.program import Context, Fault
from shoal.core.trajectory import as_trajectory
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.soundness import BAD_UPDATE, LIMIT, Watch, is_sound, sound, why
from shoal.learning.update import make_update

T, B = 4, 4


@cache
def blueprint_of(algo: str, env: str = "CartPole-v1", **settings: Any) -> Any:
    more = {
        "ppo": {"batch_size": 8, "epochs": 2},
        "dqn": {"warmup": 8, "batch_size": 4, "replay": "prioritized", "n_step": 1},
    }
    own = {"name": algo, "unroll": T, **more.get(algo, {}), **settings}
    plain = {"net": {"hidden": (8,)}, "backend": "jax", "runtime": "inline", "topology": "sequential", "actors": 1}
    return make_blueprint(resolve(env, {"algo": own, "envs": B, "steps": 4000, **plain}), None, None)


def unroll(blueprint: Any, seed: int = 0, obs: float = 1.0, reward: float = 1.0) -> Any:
    rng, slot = np.random.default_rng(seed), blueprint.record.empty()
    slot["obs"][...] = obs * rng.normal(size=slot["obs"].shape)
    slot["reward"][...] = reward * rng.normal(size=slot["reward"].shape)
    slot["valid"][...], slot["discount"][...] = True, 1.0
    return as_trajectory(slot)


def made(blueprint: Any, *unrolls: Any) -> tuple[list[Any], list[Fault], Any]:
    """(the state before and after each update, what was told, the update)."""
    faults: list[Fault] = []
    update = make_update(blueprint, Watch(Context(name="learner", fault=faults.append)))
    states = [blueprint.initial_state()]
    actor = blueprint.algorithm.actor_state(states[0])
    for version, trajectory in enumerate(unrolls):
        state, actor, _ = update(states[-1], actor, [trajectory], version, 0.0)
        states.append(state)
    return states, faults, update


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "algo", ["ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("a2c", "reinforce"))]
)
def test_a_step_too_far_is_not_made(algo: str) -> None:
    blueprint = blueprint_of(algo, learning_rate=1e30, normalise_obs=True, normalise_reward=True)
    states, faults, _ = made(blueprint, *(unroll(blueprint, seed) for seed in range(3)))
    assert all(same(state, states[0]) for state in states), "weights, moments, statistics and step as before"
    assert [(f.role, f.kind, f.in_a_row) for f in faults] == [("learner", BAD_UPDATE, n) for n in (1, 2, 3)]
    assert "the learning rate 1e+30 is too large" in faults[-1].detail


def test_a_replay_goes_on_as_if_the_gradients_had_not_been() -> None:
    blueprint = blueprint_of("dqn", learning_rate=1e30, normalise_obs=True)
    states, faults, update = made(blueprint, *(unroll(blueprint, seed) for seed in range(4)))
    assert faults and states[-1].step == 0
    assert same(states[-1].params, states[0].params) and same(states[-1].extra, states[0].extra)
    kept = update.snapshots()["replay"].arrays
    assert all(np.isfinite(array).all() for array in kept.values()), "no error that is no number became a priority"


@pytest.mark.parametrize("algo", ["a2c", "ppo", "dqn"])
@pytest.mark.parametrize("what", ["obs", "reward"])
def test_huge_values_are_the_environments_and_one_good_update_ends_the_row(algo: str, what: str) -> None:
    blueprint = blueprint_of(algo, normalise_obs=True, normalise_reward=True)
    huge = unroll(blueprint, 9, **{what: 1e25})
    states, faults, _ = made(blueprint, unroll(blueprint), unroll(blueprint, 1), huge, huge, unroll(blueprint, 2), huge)
    assert same(states[4], states[2]) and not same(states[5], states[4]) and same(states[6], states[5])
    assert [fault.in_a_row for fault in faults] == [1, 2, 1]
    named = {"obs": "the environment returns observations", "reward": "the environment returns rewards"}[what]
    assert named in faults[0].detail and "e+25" in faults[0].detail


def test_overflow_without_a_gradient_that_shows_it() -> None:
    finite = {"value": jnp.float32(1.0), "ratio/max": jnp.float32(jnp.inf)}
    assert sound({"w": jnp.ones(3)}, finite) and is_sound(
        np.ones(3, np.float32), {"loss/value": 1.0, "ratio/max": np.inf}
    )
    for weight in (np.inf, -np.inf, np.nan, 2 * LIMIT):
        assert not sound({"w": jnp.array([0.0, weight])}, finite)
        assert not is_sound(np.array([0.0, weight], np.float32), {})
    assert not sound({"w": jnp.ones(3)}, {"grad_norm": jnp.float32(jnp.nan)})
    assert not is_sound(np.ones(3, np.float32), {"loss/value": np.inf})


def test_the_cause_is_named_by_what_was_seen() -> None:
    usual = {"seen/rate": 1e-3, "seen/weights": 10.0, "seen/obs": 3.0, "seen/reward": 1.0, "grad_norm": 2.0}
    assert why(usual).startswith("the loss overflows (gradient norm 2, weights of norm 10")
    assert why({**usual, "seen/reward": 1e12}).startswith("the environment returns rewards up to 1e+12")
    assert why({**usual, "seen/obs": np.nan}).startswith("the environment returns observations up to nan")
    assert "the weights have grown to a norm of 1e+09: the learning rate 0.001" in why({**usual, "seen/weights": 1e9})
    assert "value nan" in why({**usual, "value": np.nan})


def test_an_action_that_is_no_number_never_reaches_the_environment() -> None:
    blueprint = blueprint_of("a2c", env="Pendulum-v1")
    act, actor = compiled_act(blueprint.algorithm), blueprint.algorithm.actor_state(blueprint.initial_state())
    spoilt = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), actor)
    rest = (np.ones((B, 3), np.float32), {}, np.zeros(B, bool), key_data(0), np.int32(0), np.ones(B, np.float32))
    assert (np.asarray(act(spoilt, *rest)[0]) == 0).all() and np.asarray(act(actor, *rest)[0]).any()
