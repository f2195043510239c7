"""SAC: the entropy in its target, and a temperature that learns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from continuous_algos import ENTRIES, begin, bits, drawn, make, stepping


def test_the_target_has_the_entropy_of_what_the_policy_does_next() -> None:
    algorithm, batch = make("sac"), drawn(1)
    state, rows = begin(algorithm), drawn(1).rows
    target_key, _ = jax.random.split(jax.random.key(5))
    mean, log_std = algorithm.net.normal(state.params["policy"], rows.next_obs)
    u = np.asarray(mean + jnp.exp(log_std) * jax.random.normal(target_key, mean.shape))
    std = np.exp(np.asarray(log_std, np.float64))
    normal = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    log_pi = np.sum(normal - np.log(1 - np.tanh(u.astype(np.float64)) ** 2), axis=1)
    alpha = np.exp(float(state.params["temperature"]["log"]))
    q_next = np.asarray(algorithm.net.q(state.extra["target"]["critic"], rows.next_obs, np.tanh(u)))
    y = rows.reward + rows.discount * (q_next.min(0) - alpha * log_pi)
    q = np.asarray(algorithm.net.q(state.params["critic"], rows.obs, rows.action))
    sizes = np.abs(y - q).mean(0)  # of both critics' errors
    np.testing.assert_allclose(stepping(algorithm)(state, batch, 5)[1].td, sizes, rtol=1e-3, atol=1e-3)


def test_the_temperature_learns_at_its_own_rate_and_may_be_kept() -> None:
    for factor in (0.0, 1.0, 3.0):
        algorithm = make("sac", temperature_rate=factor, learning_rate=1e-3)
        state = begin(algorithm)
        after = stepping(algorithm)(state, drawn(), 0)[2]
        moved = float(after.params["temperature"]["log"] - state.params["temperature"]["log"])
        np.testing.assert_allclose(abs(moved), factor * 1e-3, rtol=1e-2, atol=1e-9)  # Adam's first step is its rate
        assert bits(after.params["policy"]) != bits(state.params["policy"])


def test_the_entropy_target_follows_the_actions_unless_it_is_given() -> None:
    assert make("sac").target_entropy == -ENTRIES and make("sac", target_entropy=0.5).target_entropy == 0.5
    slopes = [
        stepping(make("sac", target_entropy=t))(begin(make("sac", target_entropy=t)), drawn(), 0)[0] for t in (-9, 9)
    ]
    low, high = (float(slope["temperature"]["log"]) for slope in slopes)
    assert low > 0 > high, "more entropy is wanted where the target is high"


def test_only_critics_have_targets() -> None:
    assert set(begin(make("sac")).extra["target"]) == {"critic"}
