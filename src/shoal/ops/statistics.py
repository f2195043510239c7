"""Running mean and spread of observations and returns, in float32 without drift.

At a billion samples a float32 sum cannot add a batch of 64 correctly: the count would round one way and the sum of squares
another, and their quotient would drift. The variance itself is therefore moved, by the batch's share, and `m2` is that
variance times the count. The remaining rounding error stays small because a batch always has some weight: beyond `HORIZON`
samples, older ones fade.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Moments, RewardScale
from shoal.core.trajectory import Array

HORIZON = 2.0**24  # samples; float32 counts exactly up to here
REWARD_LIMIT = 10.0  # normalised rewards are clipped to plus or minus this, so that one outlier cannot move every value


def empty_moments(shape: tuple[int, ...]) -> Moments:
    """Statistics without samples, for elements of this shape."""
    return Moments(jnp.zeros((), jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))


def merge(a: Moments, b: Moments) -> Moments:
    """The statistics of both samples together.

    Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance".

    Args:
        a: statistics of one sample.
        b: statistics of another, disjoint one.

    Returns:
        The statistics of their union.
    """
    assert a.mean.shape == b.mean.shape, (a.mean.shape, b.mean.shape)
    count = a.count + b.count
    share_a, share_b = a.count / jnp.maximum(count, 1.0), b.count / jnp.maximum(count, 1.0)
    delta = b.mean - a.mean
    # Start from the larger sample, so that a vanishing share leaves it unchanged.
    a_leads = a.count >= b.count
    mean = jnp.where(a_leads, a.mean + share_b * delta, b.mean - share_a * delta)
    var_a, var_b = _variance(a), _variance(b)
    within = jnp.where(a_leads, var_a + share_b * (var_b - var_a), var_b + share_a * (var_a - var_b))
    variance = within + share_a * share_b * jnp.square(delta)
    return Moments(count, mean, jnp.maximum(variance, 0.0) * count)


def update_moments(m: Moments, x: Array, valid: Array) -> Moments:
    """The statistics after a batch; beyond `HORIZON` samples, older ones fade.

    Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance".

    Args:
        m: the statistics before.
        x: the batch [..., *shape]; all leading axes are samples.
        valid: [...], which samples count.

    Returns:
        The statistics after; unchanged if no sample is valid.
    """
    assert x.shape == (*valid.shape, *m.mean.shape), (x.shape, valid.shape, m.mean.shape)
    axes = tuple(range(valid.ndim))
    x = jnp.asarray(x, jnp.float32)
    chosen = jnp.asarray(valid, bool).reshape(valid.shape + (1,) * m.mean.ndim)
    count = jnp.sum(jnp.asarray(valid, bool), dtype=jnp.float32)

    def average(y: Array) -> Array:
        return jnp.sum(jnp.where(chosen, y, 0.0), axes) / jnp.maximum(count, 1.0)

    rough = average(x)
    mean = rough + average(x - rough)  # the second pass corrects rounding if the mean dwarfs the spread
    return faded(merge(m, Moments(count, mean, average(jnp.square(x - mean)) * count)))


def faded(m: Moments) -> Moments:
    """The same statistics with a count of at most `HORIZON`, so that the next batch has some weight."""
    held = jnp.minimum(m.count, HORIZON)
    return Moments(held, m.mean, m.m2 * (held / jnp.maximum(m.count, 1.0)))


def std(m: Moments) -> Array:
    """The standard deviation, in the shape of the elements; 1 before the first sample."""
    return jnp.where(m.count > 0, jnp.sqrt(_variance(m)), 1.0)


def update_reward_scale(scale: RewardScale, reward: Array, boundary: Array, valid: Array, gamma: float) -> RewardScale:
    """The spread of the discounted sum of past rewards, `R_t = gamma R_{t-1} + r_t`, after an unroll.

    Engstrom et al. 2020, "Implementation matters in deep policy gradients", algorithm 1.

    Args:
        scale: the scale before; `scale.returns` is R [B] at the end of the previous unroll.
        reward: r_t [T, B].
        boundary: [T, B], the episode ended here: R starts again from 0.
        valid: [T, B]; invalid rows do not count, and R starts again after them.
        gamma: discount factor.

    Returns:
        The scale after the unroll.
    """
    carried, returns = discounted_returns(scale.returns, reward, boundary, valid, gamma)
    return RewardScale(update_moments(scale.moments, returns, valid), carried)


def normalised_rewards(reward: Array, unit: Array, summed: int = 1) -> Array:
    """Rewards in multiples of `unit`, clipped to `REWARD_LIMIT`; sums of `summed` rewards are clipped to that many times it."""
    limit = REWARD_LIMIT * summed
    return jnp.clip(reward / unit, -limit, limit)


def discounted_returns(
    before: Array, reward: Array, boundary: Array, valid: Array, gamma: float
) -> tuple[Array, Array]:
    """(R [B] after the unroll, R_t [T, B]), from R [B] before it; the arguments of `update_reward_scale`."""
    assert reward.shape == boundary.shape == valid.shape, (reward.shape, boundary.shape, valid.shape)
    assert before.shape == reward.shape[1:], (before.shape, reward.shape)
    keeps = jnp.asarray(valid, bool) & ~jnp.asarray(boundary, bool)

    def forward(r_tm1: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        reward_t, keep = row
        r_t = gamma * r_tm1 + reward_t
        return jnp.where(keep, r_t, 0.0), r_t

    carried, returns = jax.lax.scan(forward, before, (reward, keeps))
    return carried, returns


def _variance(m: Moments) -> Array:
    return m.m2 / jnp.maximum(m.count, 1.0)
