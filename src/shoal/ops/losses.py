"""Element-wise losses, and their reduction over valid rows.

A loss returns one number per element, in the shape of its arguments; `masked_mean` makes the scalar. Gradients through
advantages, targets and old log-probabilities are stopped here, so that no caller can forget it.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from shoal.core.trajectory import Array

Tree = TypeVar("Tree")


def masked_mean(x: Array, valid: Array) -> Array:
    """The mean of `x` where `valid`; zero if no element is.

    Args:
        x: [...]; must be finite even where not valid if a gradient is taken.
        valid: [...].

    Returns:
        [] the mean.
    """
    assert x.shape == valid.shape, (x.shape, valid.shape)
    valid = jnp.asarray(valid, bool)
    return jnp.sum(jnp.where(valid, x, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def standardise(x: Array, valid: Array) -> Array:
    """`x` with mean 0 and standard deviation 1 over the valid elements; zero elsewhere.

    Args:
        x: [...].
        valid: [...].

    Returns:
        [...].
    """
    centred = x - masked_mean(x, valid)
    spread = jnp.sqrt(masked_mean(jnp.square(centred), valid))
    return jnp.where(jnp.asarray(valid, bool), centred / (spread + 1e-8), 0.0)


def policy_gradient(log_pi: Array, advantage: Array) -> Array:
    """`-A_t log pi(a_t | s_t)`.

    Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning".

    Args:
        log_pi: log pi(a_t | s_t) [...].
        advantage: A_t [...].

    Returns:
        [...] the loss.
    """
    assert log_pi.shape == advantage.shape, (log_pi.shape, advantage.shape)
    return -stop_gradient(advantage) * log_pi


def ppo_clip(log_pi: Array, log_mu: Array, advantage: Array, epsilon: float | Array) -> Array:
    """`-min(rho_t A_t, clip(rho_t, 1 - epsilon, 1 + epsilon) A_t)` with `rho_t = pi(a_t | s_t) / mu(a_t | s_t)`.

    Schulman et al. 2017, "Proximal policy optimization algorithms", equation 7.

    Args:
        log_pi: log pi(a_t | s_t) of the policy that learns [...].
        log_mu: log mu(a_t | s_t) of the policy that acted [...].
        advantage: A_t [...].
        epsilon: distance of the ratio from 1 beyond which the gradient is cut.

    Returns:
        [...] the loss.
    """
    assert log_pi.shape == log_mu.shape == advantage.shape, (log_pi.shape, log_mu.shape, advantage.shape)
    rho = jnp.exp(log_pi - stop_gradient(log_mu))
    a = stop_gradient(advantage)
    return -jnp.minimum(rho * a, jnp.clip(rho, 1.0 - epsilon, 1.0 + epsilon) * a)


def value_loss(v: Array, target: Array) -> Array:
    """`(V(s_t) - target_t)^2 / 2`.

    Sutton and Barto 2018, "Reinforcement learning: an introduction", equation 9.1.

    Args:
        v: V(s_t) [...].
        target: [...].

    Returns:
        [...] the loss.
    """
    assert v.shape == target.shape, (v.shape, target.shape)
    return 0.5 * jnp.square(v - stop_gradient(target))


def clipped_value_loss(v: Array, v_old: Array, target: Array, epsilon: float | Array) -> Array:
    """The larger of the plain loss and the loss of the value clipped to within `epsilon` of the old one.

    Engstrom et al. 2020, "Implementation matters in deep policy gradients", section 3.

    Args:
        v: V(s_t) [...].
        v_old: V(s_t) of the weights that acted [...].
        target: [...].
        epsilon: distance of the value from the old one beyond which it is clipped.

    Returns:
        [...] the loss.
    """
    assert v.shape == v_old.shape == target.shape, (v.shape, v_old.shape, target.shape)
    v_old, target = stop_gradient(v_old), stop_gradient(target)
    held = v_old + jnp.clip(v - v_old, -epsilon, epsilon)
    return 0.5 * jnp.maximum(jnp.square(v - target), jnp.square(held - target))


def approx_kl(log_pi: Array, log_mu: Array) -> Array:
    """An estimate of `KL(mu || pi)` from actions of mu: `rho - 1 - log rho`, unbiased and never negative.

    Schulman 2020, "Approximating KL divergence", estimator k3.

    Args:
        log_pi: log pi(a_t | s_t) [...].
        log_mu: log mu(a_t | s_t) of the policy that acted [...].

    Returns:
        [...] one estimate per element; their mean estimates the divergence.
    """
    assert log_pi.shape == log_mu.shape, (log_pi.shape, log_mu.shape)
    log_rho = log_pi - log_mu
    return jnp.expm1(log_rho) - log_rho


def clip_by_global_norm(grads: Tree, max_norm: float | Array) -> tuple[Tree, Array]:
    """The gradients, scaled down to `max_norm` if their norm exceeds it.

    Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", algorithm 1.

    Args:
        grads: a tree of arrays.
        max_norm: above 0; infinity leaves them as they are.

    Returns:
        (the scaled tree, [] the norm before).
    """
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
    scale = jnp.where(norm > max_norm, max_norm / norm, 1.0)
    return jax.tree.map(lambda g: g * scale, grads), norm
