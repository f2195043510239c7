"""V-trace: values and advantages of the policy that learns, from steps of an older policy that acted.

Rows, masks and the meaning of `value` are those of `ops.returns`: nothing flows back from the row after a boundary nor from an
invalid one, and `value[t+1]` stands for the rest of the episode there.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.trajectory import Array
from shoal.ops.returns import masks


class VTrace(NamedTuple):
    """The result of `vtrace`. The gradient of the policy is `min(rho_clip, rho_t) * advantage_t * grad log pi`."""

    target: Array  # [T, B] vs: the value function's targets
    advantage: Array  # [T, B] not yet weighted by rho: a loss with a ratio of its own must not be weighted twice
    rho: Array  # [T, B] pi / mu, not clipped; 1 where not valid


def vtrace(
    log_pi: Array,
    log_mu: Array,
    reward: Array,
    discount: Array,
    value: Array,
    boundary: Array,
    valid: Array,
    gamma: float,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> VTrace:
    """`vs_t - V_t = delta_t + gamma c_t (vs_{t+1} - V_{t+1})`, with `rho_t = pi(a_t | s_t) / mu(a_t | s_t)`,
    `delta_t = min(rho_clip, rho_t) (r_t + gamma V_{t+1} - V_t)` and `c_t = lam min(c_clip, rho_t)`.

    Espeholt et al. 2018, "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures",
    equation 1 and remark 2. Deviation: the advantage bootstraps from `lam vs_{t+1} + (1 - lam) V_{t+1}`, the paper's for
    lam = 1, so that for rho = 1 it is GAE's for every lam.

    Args:
        log_pi: log pi(a_t | s_t) of the policy that learns [T, B].
        log_mu: log mu(a_t | s_t) of the policy that acted [T, B].
        reward, discount, value, boundary, valid, gamma: as for `returns.gae`.
        lam: the trace's decay.
        rho_clip: the largest weight of a temporal difference; it decides which policy's value is learnt: pi's if infinite.
        c_clip: the largest factor of a trace: a smaller one reduces variance and keeps the fixed point.

    Returns:
        Targets and advantages, zero where not valid, and the ratios; all without gradient.
    """
    assert log_pi.shape == log_mu.shape == reward.shape, (log_pi.shape, log_mu.shape, reward.shape)
    goes_on, valid_t = masks(reward, discount, value, boundary, valid)
    value = jnp.asarray(value)
    rho_t = jnp.exp(jnp.where(valid_t, log_pi - log_mu, 0.0))
    gamma_t = gamma * discount  # [T, B]
    delta_t = reward + gamma_t * value[1:] - value[:-1]
    delta_t = jnp.where(valid_t, delta_t, 0.0)  # so that no trace starts from an invalid row
    trace_t = jnp.where(goes_on, gamma_t, 0.0)

    def back(excess_tp1: Array, row: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        delta, trace, rho = row
        excess = jnp.minimum(rho_clip, rho) * delta + trace * lam * jnp.minimum(c_clip, rho) * excess_tp1
        return excess, (excess, delta + trace * lam * excess_tp1)

    _, (excess, advantage) = jax.lax.scan(back, jnp.zeros_like(delta_t[0]), (delta_t, trace_t, rho_t), reverse=True)
    target = jnp.where(valid_t, value[:-1] + excess, 0.0)
    found = VTrace(target, jnp.where(valid_t, advantage, 0.0), rho_t)
    return jax.lax.stop_gradient(found)
