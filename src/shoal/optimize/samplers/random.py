"""Uniform starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from shoal.core.algorithm import ActorState
from shoal.core.trajectory import Array
from shoal.optimize.samplers.cube import Cube


@dataclass(frozen=True)
class RandomStarts:
    """Every start is independent of all others."""

    cube: Cube

    def init(self, key: Array) -> Any:
        return ()

    def sample(self, state: Any, actor: ActorState, key: Array, n: int) -> tuple[Array, Any]:
        return self.cube.points(jax.random.uniform(key, (n, self.cube.sides))), state
