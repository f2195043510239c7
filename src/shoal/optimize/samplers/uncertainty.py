"""Starts where the policy is least sure: of many random points the one with the highest entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from shoal.core.algorithm import ActorState
from shoal.core.trajectory import Array
from shoal.optimize.samplers.cube import Cube


class Sure(Protocol):
    """An algorithm that can tell how sure its policy is."""

    def uncertainty(self, actor: ActorState, obs: Array) -> Array: ...


@dataclass(frozen=True)
class UncertaintyStarts:
    """The surest way to a poor law is to look only where one is unsure: with 32 candidates a start, Ackley is not learnt at
    all, because the rest of the space is never seen again. Three keep a preference. It means something only where the
    policy's spread depends on the state.
    """

    cube: Cube
    algorithm: Sure
    candidates: int = 3

    def init(self, key: Array) -> Any:
        return ()

    def sample(self, state: Any, actor: ActorState, key: Array, n: int) -> tuple[Array, Any]:
        points = self.cube.points(jax.random.uniform(key, (n * self.candidates, self.cube.sides)))
        entropy = self.algorithm.uncertainty(actor, points).reshape(n, self.candidates)
        best = jnp.argmax(entropy, axis=1)
        return points.reshape(n, self.candidates, points.shape[1])[jnp.arange(n), best], state
