"""Compiled functions for acting, one compilation per (algorithm, shapes): policy step, starts of episodes, earned rewards."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.algorithm import ActorState, Algorithm
from shoal.core.starts import Starts
from shoal.core.trajectory import Array


@cache
def compiled_act(algorithm: Algorithm) -> Any:
    """(actor, obs, carry, first, key data, t, explore) -> (action, extras, carry).

    Equal algorithms get the same function, so that all actors of a process share one compilation.
    """
    return jax.jit(partial(act, algorithm))


@cache
def compiled_starts(starts: Starts, envs: int) -> Any:
    """(state, actor, key data) -> (starts, state)."""

    def sample(state: Any, actor: ActorState, key: Array) -> tuple[Array, Any]:
        return starts.sample(state, actor, jax.random.wrap_key_data(key), envs)

    return jax.jit(sample)


@cache
def compiled_earned(algorithm: Algorithm) -> Any:
    """(earned so far, reward, boundary, valid) -> earned after the unroll."""
    return jax.jit(algorithm.earned)


def act(
    algorithm: Algorithm, actor: ActorState, obs: Array, carry: Any, first: Array, key: Array, t: Array, explore: Array
) -> tuple[Array, dict[str, Array], Any]:
    """Step t of an unroll whose key is `key`.

    An action that is not finite comes from the policy. It becomes 0, so that a failure is not attributed to the environment.
    The loss of its row is not finite either, so the update fails.
    """
    step_key = jax.random.fold_in(jax.random.wrap_key_data(key), t)
    action, extras, carry = algorithm.act(actor, obs, carry, first, step_key, explore)
    if jnp.issubdtype(action.dtype, jnp.floating):
        action = jnp.where(jnp.isfinite(action), action, 0)
    return action, extras, carry
