"""How a setting moves over a run."""

from __future__ import annotations

import jax.numpy as jnp

from shoal.core.trajectory import Array


def linear(start: float | Array, end: float | Array, progress: float | Array) -> Array:
    """From `start` to `end` on a straight line; it stays at the ends outside of them.

    Args:
        start: value at progress 0.
        end: value at progress 1.
        progress: the share of the budget that is spent.

    Returns:
        [] the value now.
    """
    share = jnp.clip(progress, 0.0, 1.0)
    return start * (1.0 - share) + end * share
