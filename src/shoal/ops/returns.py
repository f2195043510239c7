"""Returns and advantages over unrolls that hold several episodes.

All arrays are time-major. `reward`, `discount`, `boundary` and `valid` are [T, B], `value` is [T+1, B]: the value of
each row's observation. `value[t+1]` is therefore the value of the true next observation of row t, even if the episode was
truncated (the autoreset row holds the last observation). Nothing flows back from the row after a boundary, nor from an
invalid row: before those, and at the end of the unroll, `value[t+1]` stands for the rest of the episode. Invalid rows get
zero.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.core.trajectory import Array


def learnt(reward: Array, clip: str, scale: float) -> Array:
    """Rewards as a loss sees them: only their sign if `clip` is "sign" (Mnih et al. 2015), then times `scale`."""
    return (jnp.sign(reward) if clip == "sign" else reward) * scale


def gae(reward: Array, discount: Array, value: Array, boundary: Array, valid: Array, gamma: float, lam: float) -> Array:
    """Generalised advantage estimates: `A_t = delta_t + gamma lam d_t A_{t+1}` within an episode.

    Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", equation 16.

    Args:
        reward: r_t [T, B].
        discount: d_t [T, B], 0 where the episode terminated, else 1.
        value: V(s_t) [T+1, B].
        boundary: [T, B], the episode ended here, either way.
        valid: [T, B], False where no action was chosen.
        gamma: discount factor.
        lam: the trace's decay; 0 is the one-step error, 1 the Monte-Carlo return minus the value.

    Returns:
        A_t [T, B], zero where not valid.
    """
    goes_on, valid_t = masks(reward, discount, value, boundary, valid)
    gamma_t = gamma * discount  # [T, B]
    delta_t = reward + gamma_t * value[1:] - value[:-1]  # [T, B]
    decay_t = jnp.where(goes_on, lam * gamma_t, 0.0)

    def back(a_tp1: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, decay = row
        a_t = delta + decay * a_tp1
        return a_t, a_t

    delta_t = jnp.where(valid_t, delta_t, 0.0)  # so that no trace starts from an invalid row
    _, advantage = jax.lax.scan(back, jnp.zeros_like(delta_t[0]), (delta_t, decay_t), reverse=True)
    return jnp.where(valid_t, advantage, 0.0)


def n_step(reward: Array, discount: Array, value: Array, boundary: Array, valid: Array, gamma: float, n: int) -> Array:
    """n-step targets: n rewards, then the value; fewer if the episode or the unroll ends first.

    Sutton and Barto 2018, "Reinforcement learning: an introduction", equation 7.1; the cut at the end of the unroll is
    that of Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning".

    Args:
        reward, discount, value, boundary, valid, gamma: as for `gae`.
        n: steps before the bootstrap, at least 1.

    Returns:
        G_t [T, B], zero where not valid.
    """
    assert n >= 1, n
    goes_on, valid_t = masks(reward, discount, value, boundary, valid)
    gamma_t = gamma * discount
    value = jnp.asarray(value)
    v_tp1 = value[1:]

    def one_more(_: Array, g_t: Array) -> Array:  # the k-step targets from the (k-1)-step targets of the next row
        g_tp1 = jnp.concatenate([g_t[1:], v_tp1[-1:]])
        return reward + gamma_t * jnp.where(goes_on, g_tp1, v_tp1)

    target = jax.lax.fori_loop(0, min(n, reward.shape[0]), one_more, value[:-1])
    return jnp.where(valid_t, target, 0.0)


def monte_carlo(reward: Array, discount: Array, value: Array, boundary: Array, valid: Array, gamma: float) -> Array:
    """Returns to the end of the episode; the value is used only where the episode was cut.

    Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", with the
    bootstrap at time limits of Pardo et al. 2018, "Time limits in reinforcement learning".

    Args:
        reward, discount, value, boundary, valid, gamma: as for `gae`. `value` is read at truncations, before dropped
            rows and at the end of the unroll.

    Returns:
        G_t [T, B], zero where not valid.
    """
    goes_on, valid_t = masks(reward, discount, value, boundary, valid)

    def back(g_tp1: Array, row: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        r_t, gamma_t, v_tp1, go = row
        g_t = r_t + gamma_t * jnp.where(go, g_tp1, v_tp1)
        return g_t, g_t

    value = jnp.asarray(value)
    _, ret = jax.lax.scan(back, value[-1], (reward, gamma * discount, value[1:], goes_on), reverse=True)
    return jnp.where(valid_t, ret, 0.0)


def masks(reward: Array, discount: Array, value: Array, boundary: Array, valid: Array) -> tuple[Array, Array]:
    """(row t+1 continues row t, row t is valid), both [T, B] bool. Asserts the shapes."""
    t, shape = reward.shape[0], reward.shape
    assert discount.shape == boundary.shape == valid.shape == shape, (
        shape,
        discount.shape,
        boundary.shape,
        valid.shape,
    )
    assert value.shape == (t + 1, *shape[1:]), (value.shape, shape)
    valid_t = jnp.asarray(valid, bool)
    valid_tp1 = jnp.concatenate([valid_t[1:], jnp.zeros_like(valid_t[:1])])  # beyond the unroll there is only the value
    return valid_tp1 & ~jnp.asarray(boundary, bool), valid_t
