"""Environments that hide velocities: Gymnasium's own, with fewer entries in their observations."""

from __future__ import annotations

import gymnasium
import jax
import numpy as np
import pytest

from shoal.envs import masked
from shoal.envs.cartpole import CartPole
from shoal.envs.source import JAX_NATIVE, find


@pytest.mark.parametrize("name", masked.IDS)
def test_gymnasiums_form_hides_entries_and_nothing_else(name: str) -> None:
    whole, shown = masked.IDS[name]
    masked.register()
    ours, theirs = gymnasium.make(name), gymnasium.make(whole)
    ours.action_space.seed(0)
    (obs, _), (full, _) = ours.reset(seed=1), theirs.reset(seed=1)
    steps, ended = 0, False
    while not ended:
        np.testing.assert_array_equal(obs, full[list(shown)])
        assert ours.observation_space.contains(obs)
        action = ours.action_space.sample()
        (obs, *mine), (full, *other) = ours.step(action), theirs.step(action)
        assert mine == other
        steps, ended = steps + 1, mine[1] or mine[2]
    assert steps > 5
    ours.close()
    theirs.close()


@pytest.mark.parametrize("name", masked.IDS)
def test_a_run_steps_it_in_jax_and_judges_it_in_gymnasium(name: str) -> None:
    source, shown = find(name), masked.IDS[name][1]
    assert source.backend == "jax" and source.spec().obs.shape == (len(shown),)
    assert find(name, "gymnasium").spec() == source.spec()
    single = source.single()
    assert single.reset(0).shape == (len(shown),)
    single.close()


def test_the_state_is_whole() -> None:
    env, key = JAX_NATIVE["shoal/MaskedCartPole-v0"](), jax.random.key(0)
    (state, obs), (full, _) = env.reset(key), CartPole().reset(key)
    np.testing.assert_array_equal(state, full)
    np.testing.assert_array_equal(obs, np.asarray(full)[[0, 2]])
    state, obs, reward, terminated = env.step(state, np.int32(1), key)
    np.testing.assert_array_equal(obs, np.asarray(CartPole().step(full, np.int32(1), key)[1])[[0, 2]])
    assert state.shape == (4,) and reward == 1 and not terminated and env.max_steps == 500
