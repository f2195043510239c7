"""A JAX environment that sometimes shows NaN, by its import path."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.trajectory import Array
from shoal.envs.cartpole import CartPole


class SometimesNan:
    """CartPole, where one step in ten shows NaN."""

    _whole = CartPole()
    spec, max_steps, reset = _whole.spec, _whole.max_steps, _whole.reset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SometimesNan)

    def __hash__(self) -> int:
        return 0

    def step(self, state: Any, action: Array, key: Array) -> tuple[Any, Array, Array, Array]:
        state, obs, reward, terminated = self._whole.step(state, action, key)
        return state, jnp.where(jax.random.uniform(key) < 0.1, jnp.nan, obs), reward, terminated
