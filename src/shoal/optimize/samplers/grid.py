"""A grid that all drivers walk together without visiting a point twice.

No synchronisation is needed, because each driver knows its place: of D drivers, driver i takes points i, i + D, i + 2D, ... in
an order that all of them compute alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import ActorState
from shoal.core.errors import BadInput
from shoal.core.trajectory import Array
from shoal.optimize.samplers.cube import Cube

MOST = 1 << 16  # points of the whole grid, unless two per side are more
MOST_SIDES = 20  # beyond this, the number of points would not fit into 32 bits


@dataclass(frozen=True)
class GridStarts:
    """Cell centres of a regular grid, in a scattered order, so that any stretch of it covers the whole."""

    cube: Cube
    driver: int = 0
    drivers: int = 1

    def __post_init__(self) -> None:
        if self.cube.sides > MOST_SIDES:
            raise BadInput(
                f"sampler grid: {self.cube.sides} knobs and conditions are more than {MOST_SIDES}; use another"
            )

    @property
    def per_side(self) -> int:
        return max(2, min(21, int(MOST ** (1.0 / self.cube.sides))))

    def init(self, key: Array) -> Any:
        return jnp.zeros((), jnp.int32)

    def sample(self, state: Any, actor: ActorState, key: Array, n: int) -> tuple[Array, Any]:
        total = self.per_side**self.cube.sides
        stride = _coprime(total)
        turn = state + jnp.arange(n)
        cell = ((turn * self.drivers + self.driver) % total) * stride % total
        digits = [(cell // self.per_side**side) % self.per_side for side in range(self.cube.sides)]
        unit = (jnp.stack(digits, axis=1) + 0.5) / self.per_side
        return self.cube.points(unit), (state + n) % total


def _coprime(total: int) -> int:
    """A stride near the golden section that visits every cell of `total`; small enough for 32-bit products."""
    stride = max(1, min(int(total * 0.618), (2**31 - 1) // max(1, total)))
    while np.gcd(stride, total) != 1:
        stride -= 1
    return stride
