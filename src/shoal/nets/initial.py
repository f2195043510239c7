"""Initialisation of weights: layers plan their arrays, and `realise` draws all of them at once.

There is one draw for the whole net, because one draw per layer would be compiled separately and delay the first step by
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Params
from shoal.core.trajectory import Array

Plan = dict[str, Any]  # as params, with an Orthogonal or a Fill where the array will be


@dataclass(frozen=True)
class Orthogonal:
    """Orthogonal rows or columns (whichever are fewer) of length `gain`; the last axis is the outputs.

    Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks".
    With several `blocks`, the outputs are divided among them, and each is orthogonal by itself.
    """

    shape: tuple[int, ...]
    gain: float
    blocks: int = 1


@dataclass(frozen=True)
class Fill:
    """One value everywhere, or one for each entry of the last axis."""

    shape: tuple[int, ...]
    value: float | tuple[float, ...] = 0.0


def realise(plan: Plan, key: Array) -> Params:
    """The float32 params of a plan; equal keys give equal bits."""
    leaves, treedef = jax.tree.flatten(plan)
    sizes = [prod(leaf.shape) if isinstance(leaf, Orthogonal) else 0 for leaf in leaves]
    normal = jax.random.normal(key, (sum(sizes),), jnp.float32)
    arrays, at = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        if isinstance(leaf, Orthogonal):
            arrays.append(_orthogonal(normal[at : at + size], leaf))
        else:
            arrays.append(jnp.broadcast_to(jnp.asarray(leaf.value, jnp.float32), leaf.shape))
        at += size
    params: Params = jax.tree.unflatten(treedef, arrays)
    return params


def _orthogonal(normal: Array, leaf: Orthogonal) -> Array:
    outputs = leaf.shape[-1] // leaf.blocks
    inputs = prod(leaf.shape[:-1])
    wide = inputs < outputs
    q, r = jnp.linalg.qr(normal.reshape(leaf.blocks, max(inputs, outputs), min(inputs, outputs)))
    q = (
        q * jnp.where(jnp.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)[:, None, :]
    )  # all orthogonal matrices equally likely
    blocks = q if wide else jnp.swapaxes(q, -1, -2)  # [blocks, outputs, inputs]
    return leaf.gain * blocks.reshape(leaf.shape[-1], inputs).T.reshape(leaf.shape)
