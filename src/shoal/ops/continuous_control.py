"""Losses, targets and noise of actor-critic algorithms with a replay and continuous actions.

C is the number of critics, N of rows, A of entries of an action. Actions lie in [-1, 1].
"""

from __future__ import annotations

from math import log, pi

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from shoal.core.trajectory import Array


def q_target(r_t: Array, discount_t: Array, q_t: Array, bonus_t: Array | float = 0.0) -> Array:
    """`r_t + discount_t (min_i q_i(s_t, a_t) + bonus_t)`, without a gradient.

    Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477, equation 10; with one critic Lillicrap et al. 2016; with the bonus
    `-alpha log pi(a_t | s_t)` Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equations 2 and 3.

    Args:
        r_t: [N].
        discount_t: discount of the next value [N], 0 after the end of an episode.
        q_t: values of the target critics at (s_t, a_t) [C, N].
        bonus_t: entropy bonus [N].

    Returns:
        [N].
    """
    assert r_t.shape == discount_t.shape == q_t.shape[1:], (r_t.shape, discount_t.shape, q_t.shape)
    return stop_gradient(r_t + discount_t * (jnp.min(q_t, axis=0) + bonus_t))


def critic_loss(q_tm1: Array, target: Array, weight: Array) -> tuple[Array, Array]:
    """`sum_i mean_n w_n (y_n - q_i,n)^2 / 2`, and the mean size of the critics' errors on each row.

    Args:
        q_tm1: [C, N], or with further axes.
        target: y [N].
        weight: importance weights of a prioritized replay [N].

    Returns:
        (loss [], errors [N]).
    """
    assert q_tm1.shape[1:] == target.shape == weight.shape, (q_tm1.shape, target.shape, weight.shape)
    error = target - q_tm1
    each = (weight * 0.5 * jnp.square(error)).reshape(len(error), -1)
    return jnp.sum(jnp.mean(each, axis=1)), jnp.mean(jnp.abs(error), axis=0)


def smoothed_action(action: Array, noise: Array, scale: float, limit: float) -> Array:
    """`clip(a + clip(scale * noise, -limit, limit), -1, 1)`: target policy smoothing.

    Fujimoto et al. 2018, equation 14.

    Args:
        action: of the target policy [N, A].
        noise: standard normal, drawn for each row [N, A].
        scale: standard deviation of the noise.
        limit: clip range of the noise.

    Returns:
        [N, A].
    """
    assert action.shape == noise.shape, (action.shape, noise.shape)
    return jnp.clip(action + jnp.clip(scale * noise, -limit, limit), -1.0, 1.0)


def squashed_sample(mean: Array, log_std: Array, noise: Array) -> tuple[Array, Array]:
    """`a = tanh(u), u = mean + std * noise`, and `log pi(a) = log N(u) - sum_i log(1 - tanh(u_i)^2)`.

    Haarnoja et al. 2018, appendix C, with `log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))`, which stays exact where tanh
    rounds to 1.

    Args:
        mean: [..., A].
        log_std: [..., A].
        noise: standard normal [..., A].

    Returns:
        (action [..., A], log-probability [...]).
    """
    assert mean.shape == log_std.shape == noise.shape, (mean.shape, log_std.shape, noise.shape)
    u = mean + jnp.exp(log_std) * noise
    normal = -0.5 * jnp.square(noise) - log_std - 0.5 * log(2.0 * pi)
    squash = 2.0 * (log(2.0) - u - jax.nn.softplus(-2.0 * u))
    return jnp.tanh(u), jnp.sum(normal - squash, axis=-1)


def temperature_loss(log_alpha: Array, log_pi: Array, target_entropy: float, weight: Array | float = 1.0) -> Array:
    """`-log alpha * mean(w (log pi + target entropy))`: alpha grows while the entropy is below its target.

    Haarnoja et al. 2018, equation 18, with log alpha for alpha as a factor: the sign of the gradient is the same.

    Args:
        log_alpha: [].
        log_pi: of sampled actions [N].
        target_entropy: a number.
        weight: [N], with a mean of 1.

    Returns:
        [].
    """
    assert log_alpha.shape == (), log_alpha.shape
    return -log_alpha * jnp.mean(weight * (stop_gradient(log_pi) + target_entropy))


def ornstein_uhlenbeck(x: Array, noise: Array, theta: float, sigma: float) -> Array:
    """`x' = x - theta x + sigma n`: noise that drifts back to 0.

    Uhlenbeck and Ornstein 1930; in Lillicrap et al. 2016 with theta 0.15 and sigma 0.2.

    Args:
        x: [..., A].
        noise: standard normal [..., A].
        theta: share that decays at each step.
        sigma: standard deviation of the increment.

    Returns:
        [..., A].
    """
    assert x.shape == noise.shape, (x.shape, noise.shape)
    return (1.0 - theta) * x + sigma * noise


def autoregressive(x: Array, noise: Array, phi: float) -> Array:
    """`x' = phi x + sqrt(1 - phi^2) n`: AR(1) noise whose deviation stays 1.

    Args:
        x: [..., A].
        noise: standard normal [..., A].
        phi: share that is kept at each step.

    Returns:
        [..., A].
    """
    assert x.shape == noise.shape, (x.shape, noise.shape)
    return phi * x + (1.0 - phi * phi) ** 0.5 * noise
