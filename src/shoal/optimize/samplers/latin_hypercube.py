"""Latin hypercube as the thesis defines it: M bins per coordinate; the next value comes from the least filled bin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.algorithm import ActorState
from shoal.core.trajectory import Array
from shoal.optimize.samplers.cube import Cube


@dataclass(frozen=True)
class LatinHypercubeStarts:
    """Remembers how often each bin of each coordinate was drawn; ties are broken at random."""

    cube: Cube
    bins: int = 10

    def init(self, key: Array) -> Any:
        return jnp.zeros((self.cube.sides, self.bins), jnp.int32)

    def sample(self, state: Any, actor: ActorState, key: Array, n: int) -> tuple[Array, Any]:
        sides = jnp.arange(self.cube.sides)
        tie_key, place_key = jax.random.split(key)
        # Draw all random numbers at once: only the counting must go one start after another.
        ties = jax.random.uniform(tie_key, (n, *state.shape))

        def draw(filled: Array, tie: Array) -> tuple[Array, Array]:
            chosen = jnp.argmin(filled + tie, axis=1)  # a tie adds less than one
            return filled.at[sides, chosen].add(1), chosen

        filled, chosen = jax.lax.scan(draw, state, ties)
        filled = filled - filled.min(axis=1, keepdims=True)  # only differences matter, and counts stay small
        place = jax.random.uniform(place_key, (n, self.cube.sides))
        return self.cube.points((chosen + place) / self.bins), filled
