"""Minibatches: a prepared batch, cut into parts of one gradient each.

The samples of a batch are its rows, or its whole columns if the net is recurrent (`Minibatches.by_column`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Minibatches
from shoal.core.trajectory import Array


def samples_of(cut: Minibatches, batch: Any) -> tuple[Any, int]:
    """(the batch as samples, their number): rows [N, ...], or columns [T, B, ...] with their recurrent state [B, ...]."""
    t, b = batch.rows.valid.shape
    if cut.by_column:
        return batch, b
    return type(batch)(jax.tree.map(lambda x: x.reshape(t * b, *x.shape[2:]), batch.rows), {}), t * b


def all_parts(cut: Minibatches, samples: Any, order: Array) -> Any:
    """All minibatches of an epoch with the samples in `order` [N]: the first axis of every array is [parts]."""
    size = len(order) // cut.parts

    def split(x: Array) -> Array:
        return x[order].reshape(cut.parts, size, *x.shape[1:])

    def split_columns(x: Array) -> Array:
        return jnp.moveaxis(x[:, order].reshape(len(x), cut.parts, size, *x.shape[2:]), 1, 0)

    rows = jax.tree.map(split_columns if cut.by_column else split, samples.rows)
    return type(samples)(rows, jax.tree.map(split, samples.columns))


def one_part(cut: Minibatches, samples: Any, order: Array, part: Array) -> Any:
    """Minibatch number `part` of an epoch, equal to that of `all_parts`."""
    size = len(order) // cut.parts
    chosen = jax.lax.dynamic_slice_in_dim(order, part * size, size)
    rows = jax.tree.map(lambda x: x[:, chosen] if cut.by_column else x[chosen], samples.rows)
    return type(samples)(rows, jax.tree.map(lambda x: x[chosen], samples.columns))
