"""Running statistics against NumPy in float64 over everything that was seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.algorithm import Moments, RewardScale
from shoal.ops import statistics
from shoal.ops.statistics import HORIZON, empty_moments

merge, std, update_moments, update_reward_scale = (
    jax.jit(f) for f in (statistics.merge, statistics.std, statistics.update_moments, statistics.update_reward_scale)
)


def agree(m: Moments, seen: np.ndarray, rtol: float = 1e-4) -> None:
    assert float(m.count) == len(seen)
    np.testing.assert_allclose(m.mean, seen.mean(0), rtol=rtol, atol=1e-5)
    np.testing.assert_allclose(std(m), seen.std(0), rtol=rtol)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_update_is_the_statistics_of_all_valid_elements(offset: float) -> None:
    rng = np.random.default_rng(0)
    m, seen = empty_moments((3,)), []
    for _ in range(20):
        x = (offset + rng.normal(size=(5, 4, 3)) * [0.1, 1, 10]).astype(np.float32)
        valid = rng.random((5, 4)) < 0.7
        m = update_moments(m, np.where(valid[..., None], x, 1e9).astype(np.float32), valid)
        seen.append(x[valid].astype(np.float64))
    agree(m, np.concatenate(seen), 1e-4 if offset == 0 else 1e-2)


def test_merge_is_the_statistics_of_the_union_and_nothing_is_neutral() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(loc, size=(n, 2)).astype(np.float32) for loc, n in ((0, 300), (3, 40)))
    ma, mb = (update_moments(empty_moments((2,)), x, np.ones(len(x), bool)) for x in (a, b))
    agree(merge(ma, mb), np.concatenate([a, b]))
    agree(merge(mb, ma), np.concatenate([a, b]))
    for same in (merge(ma, empty_moments((2,))), merge(empty_moments((2,)), ma)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), same, ma)
    nothing = update_moments(ma, np.full((5, 2), 7, np.float32), np.zeros(5, bool))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), nothing, ma)
    assert np.asarray(std(empty_moments((2,)))).tolist() == [1, 1]


def test_a_batch_of_one_pixel_type_and_of_scalars() -> None:
    image = np.random.default_rng(2).integers(0, 255, (6, 2, 3), np.uint8)
    agree(update_moments(empty_moments((2, 3)), image, np.ones(6, bool)), image.astype(np.float64))
    number = np.arange(12, dtype=np.float32).reshape(3, 4)
    agree(update_moments(empty_moments(()), number, np.ones((3, 4), bool)), number.reshape(-1).astype(np.float64))


@pytest.mark.parametrize("spread", [1.05, 1.35])
@pytest.mark.parametrize("count", [2.0**24, 1e9])
def test_the_spread_does_not_drift(spread: float, count: float) -> None:
    """Plain float32 sums would take in 40 samples as 32 or 64 here, and be up to 2 % off at the end."""
    x = np.float32(0.5 + spread) * np.ones(40, np.float32)
    x[::2] -= np.float32(2 * spread)
    many = Moments(jnp.float32(count), jnp.float32(0.5), jnp.float32(count * spread**2))

    def batch(_: jax.Array, m: Moments) -> Moments:
        return update_moments(m, x, np.ones(40, bool))

    after = jax.jit(lambda m: jax.lax.fori_loop(0, 500_000, batch, m))(many)
    np.testing.assert_allclose(std(after), spread, rtol=1e-3)
    np.testing.assert_allclose(after.mean, 0.5, rtol=1e-5)


def test_beyond_the_horizon_older_samples_fade() -> None:
    full = Moments(jnp.float32(HORIZON), jnp.float32(0), jnp.float32(HORIZON))
    after = update_moments(full, np.full(1024, 3, np.float32), np.ones(1024, bool))
    assert float(after.count) == HORIZON
    share = 1024 / (HORIZON + 1024)
    np.testing.assert_allclose(after.mean, 3 * share, rtol=1e-4)
    np.testing.assert_allclose(std(after) ** 2, 1 - share + share * (1 - share) * 9, rtol=1e-6)


def test_reward_scale_is_the_spread_of_the_running_return() -> None:
    rng, gamma, envs = np.random.default_rng(3), 0.9, 4
    scale = RewardScale(empty_moments(()), jnp.zeros(envs))
    running, seen = np.zeros(envs), []
    for _ in range(3):
        reward = rng.normal(size=(11, envs)).astype(np.float32)
        boundary = rng.random((11, envs)) < 0.2
        valid = rng.random((11, envs)) < 0.9
        for t in range(11):
            for env in range(envs):
                running[env] = gamma * running[env] + reward[t, env]
                if valid[t, env]:
                    seen.append(running[env])
                if boundary[t, env] or not valid[t, env]:
                    running[env] = 0.0
        scale = update_reward_scale(scale, reward, boundary, valid, gamma)
        np.testing.assert_allclose(scale.returns, running, atol=1e-5)
    agree(scale.moments, np.array(seen))


def test_an_invalid_row_has_no_effect_on_the_reward_scale() -> None:
    reward, boundary = np.ones((4, 1), np.float32), np.array([[False], [True], [False], [False]])
    valid = np.array([[True], [True], [False], [True]])
    scale = RewardScale(empty_moments(()), jnp.zeros(1))
    other = np.where(valid, reward, 50).astype(np.float32)
    before, after = (update_reward_scale(scale, r, boundary, valid, 0.9) for r in (reward, other))
    assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
    np.testing.assert_allclose(before.moments.mean, (1 + 1.9 + 1) / 3, rtol=1e-6)
