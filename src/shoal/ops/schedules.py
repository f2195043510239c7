"""Schedules: how a setting changes over a run."""

from __future__ import annotations

import jax.numpy as jnp

from shoal.core.trajectory import Array


def linear(start: float | Array, end: float | Array, progress: float | Array) -> Array:
    """Linear interpolation from `start` to `end`, constant outside.

    Exact at both ends, and everywhere if they are equal: a constant rate is the same number for every budget.

    Args:
        start: value at progress 0.
        end: value at progress 1.
        progress: the share of the budget that is spent.

    Returns:
        [] the current value.
    """
    share = jnp.clip(progress, 0.0, 1.0)
    return jnp.where(share < 1.0, start + (end - start) * share, end)
