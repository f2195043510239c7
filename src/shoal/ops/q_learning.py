"""Q-learning from single transitions: n-step rows, targets, errors.

Arrays of a minibatch are [N, ...]; those of an unroll are time-major, as in `returns`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.lax import stop_gradient

from shoal.core.trajectory import Array


def n_step_rows(
    reward: Array, discount: Array, boundary: Array, valid: Array, gamma: float, n: int
) -> tuple[Array, Array, Array]:
    """The n steps from each row: the discounted sum of rewards, the discount after them, and their number.

    Sutton and Barto 2018, "Reinforcement learning: an introduction", equation 7.1. There are fewer steps if the episode or the
    unroll ends first: a window never reaches across a boundary or into a row that is not valid.

    Args:
        reward: r_t [T, B].
        discount: d_t [T, B], 0 where the episode terminated, else 1.
        boundary: [T, B], the episode ended here, either way.
        valid: [T, B], False where no action was chosen.
        gamma: discount factor.
        n: steps, at least 1.

    Returns:
        R_t [T, B]; the product of gamma d over the window [T, B]; its length m [T, B] int32, so that s_{t+m} follows it.
    """
    assert n >= 1 and reward.shape == discount.shape == boundary.shape == valid.shape, (n, reward.shape)
    valid_t = jnp.asarray(valid, bool)
    valid_tp1 = jnp.concatenate([valid_t[1:], jnp.zeros_like(valid_t[:1])])
    goes_on = valid_tp1 & ~jnp.asarray(boundary, bool)

    def ahead(x: Array, k: int) -> Array:  # row t of the result is row t + k of x; zero beyond the unroll
        return jnp.concatenate([x[k:], jnp.zeros_like(x[:k])]) if k else x

    total, product = jnp.zeros_like(reward), jnp.ones_like(reward)
    length, open_ = jnp.zeros(reward.shape, jnp.int32), valid_t
    for k in range(min(n, reward.shape[0])):
        total = total + jnp.where(open_, product * ahead(reward, k), 0.0)
        product = jnp.where(open_, product * gamma * ahead(discount, k), product)
        length = length + open_
        open_ = open_ & ahead(goes_on, k)
    return total, product, length


def value_of(q: Array, action: Array) -> Array:
    """`q(s, a)` [N] for actions [N], from the values [N, A] of all actions."""
    assert q.shape[:-1] == action.shape, (q.shape, action.shape)
    return jnp.take_along_axis(q, action[..., None].astype(jnp.int32), axis=-1)[..., 0]


def td_error(q_tm1: Array, a_tm1: Array, r_t: Array, discount_t: Array, q_t: Array, selector_t: Array) -> Array:
    """`r_t + discount_t q_t(argmax_a selector_t(a)) - q_tm1(a_tm1)`; the target has no gradient.

    Watkins and Dayan 1992 with `selector_t = q_t`; van Hasselt et al. 2016, "Deep reinforcement learning with double
    Q-learning", with the online values as `selector_t` and those of the target network as `q_t`.

    Args:
        q_tm1: values of the state in which the action was chosen [N, A].
        a_tm1: the chosen action [N].
        r_t: its reward [N].
        discount_t: discount of the next state's value [N], 0 after termination.
        q_t: values of the next state [N, A].
        selector_t: values that select the next action [N, A].

    Returns:
        [N].
    """
    assert q_tm1.shape == q_t.shape == selector_t.shape, (q_tm1.shape, q_t.shape, selector_t.shape)
    assert a_tm1.shape == r_t.shape == discount_t.shape == q_tm1.shape[:-1], (a_tm1.shape, r_t.shape, discount_t.shape)
    target = r_t + discount_t * value_of(q_t, jnp.argmax(selector_t, axis=-1))
    return stop_gradient(target) - value_of(q_tm1, a_tm1)


def huber(error: Array, delta: float = 1.0) -> Array:
    """Huber loss: half the square up to `delta`, linear with slope `delta` beyond.

    Huber 1964, "Robust estimation of a location parameter".
    """
    size = jnp.abs(error)
    near = jnp.minimum(size, delta)
    return 0.5 * jnp.square(near) + delta * (size - near)
