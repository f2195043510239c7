"""The space in which starts are drawn: a unit cube with one side per knob or condition."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.trajectory import Array


class Cube(NamedTuple):
    """`widths[i]` columns belong to side i: one for a number, several for the one-hot of a categorical knob."""

    widths: tuple[int, ...]
    conditions: int = 0  # the number of last sides that are conditions; the others are knobs

    @property
    def sides(self) -> int:
        return len(self.widths)

    def points(self, unit: Array) -> Array:
        """Normalised points [n, columns] of unit coordinates [n, sides]: numbers in [-1, 1], one-hots of 0 and 1."""
        columns = []
        for side, width in enumerate(self.widths):
            u = unit[:, side]
            if width == 1:
                columns.append((2.0 * u - 1.0)[:, None])
            else:
                choice = jnp.clip((u * width).astype(jnp.int32), 0, width - 1)
                columns.append(jax.nn.one_hot(choice, width))
        return jnp.concatenate(columns, axis=1).astype(jnp.float32)
