"""Latin hypercube by SciPy: whole designs of a fixed size, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import ActorState
from shoal.core.trajectory import Array
from shoal.optimize.samplers.cube import Cube

DESIGNS, SIZE = 32, 256  # drawn once; after the last design the first follows again


@cache
def designs(sides: int) -> np.ndarray:
    """[DESIGNS * SIZE, sides] in the unit cube, each block of SIZE a Latin hypercube."""
    from scipy.stats import qmc

    engine = qmc.LatinHypercube(d=sides, rng=np.random.default_rng(0))
    return np.concatenate([engine.random(SIZE) for _ in range(DESIGNS)]).astype(np.float32)


@dataclass(frozen=True)
class LatinScipyStarts:
    """Walks through the designs, moved by a random shift that is drawn once and differs between drivers."""

    cube: Cube

    def init(self, key: Array) -> Any:
        return jnp.zeros((), jnp.int32), jax.random.uniform(key, (self.cube.sides,))

    def sample(self, state: Any, actor: ActorState, key: Array, n: int) -> tuple[Array, Any]:
        at, shift = state
        table = jnp.asarray(designs(self.cube.sides))
        unit = (table[(at + jnp.arange(n)) % len(table)] + shift) % 1.0
        return self.cube.points(unit), ((at + n) % len(table), shift)
