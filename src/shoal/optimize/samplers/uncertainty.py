"""Starts at which the policy is least sure of its answer to a condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from shoal.core.algorithm import ActorState
from shoal.core.trajectory import Array
from shoal.optimize.samplers.cube import Cube


class Sure(Protocol):
    """An algorithm that can measure its policy's uncertainty."""

    def uncertainty(self, actor: ActorState, obs: Array) -> Array: ...


@dataclass(frozen=True)
class UncertaintyStarts:
    """Draws conditions uniformly and, for each, takes the one of several random knobs with the highest policy entropy.

    If the conditions were chosen by entropy too, the sampler would look for what cannot be learnt: where f is flat or rugged
    in its knobs the policy stays wide, so most starts would come from there, and the law would forget the rest.

    Useful only if the policy's spread depends on the state.
    """

    cube: Cube
    algorithm: Sure
    candidates: int = 16

    def init(self, key: Array) -> Any:
        return ()

    def sample(self, state: Any, actor: ActorState, key: Array, n: int) -> tuple[Array, Any]:
        sides, knobs = self.cube.sides, self.cube.sides - self.cube.conditions
        unit = jax.random.uniform(key, (n, self.candidates, sides))
        unit = unit.at[:, :, knobs:].set(unit[:, :1, knobs:])
        points = self.cube.points(unit.reshape(n * self.candidates, sides))
        entropy = self.algorithm.uncertainty(actor, points).reshape(n, self.candidates)
        best = jnp.argmax(entropy, axis=1)
        return points.reshape(n, self.candidates, points.shape[1])[jnp.arange(n), best], state
