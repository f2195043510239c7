"""How a setting moves over a run."""

from __future__ import annotations

import jax.numpy as jnp

from shoal.core.trajectory import Array


def linear(start: float | Array, end: float | Array, progress: float | Array) -> Array:
    """From `start` to `end` on a straight line; it stays at the ends outside of them.

    Exact at both ends, and everywhere if they are equal: a constant rate is the same number whatever the budget.

    Args:
        start: value at progress 0.
        end: value at progress 1.
        progress: the share of the budget that is spent.

    Returns:
        [] the value now.
    """
    share = jnp.clip(progress, 0.0, 1.0)
    return jnp.where(share < 1.0, start + (end - start) * share, end)
