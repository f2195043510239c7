"""Sequences of steps as rows of a replay, for recurrent nets: cut from unrolls, stored with the memory that acted, warmed up.

Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning" (R2D2). Deviations: a sequence
lies within one unroll; steps of the burn-in that follow the start of an episode are learnt from, since the memory is exact
there; values are not rescaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Kept
from shoal.core.trajectory import Array, Sequences, Trajectory
from shoal.ops import q_learning

MEMORY = "memory"  # in a trajectory's extras: the recurrent state before each step


def starts(unroll: int, length: int, burn_in: int) -> tuple[int, ...]:
    """The first rows of an unroll's sequences. They overlap by the burn-in; the last one ends with the unroll."""
    assert 0 <= burn_in < length <= unroll, (burn_in, length, unroll)
    return (*range(0, unroll - length, length - burn_in), unroll - length)


def packed(carry: Mapping[str, Array]) -> Array:
    """The recurrent state {[B, ...]} as one array [B, M]."""
    return jnp.concatenate([carry[name].reshape(len(carry[name]), -1) for name in sorted(carry)], axis=-1)


def unpacked(memory: Array, like: Mapping[str, Any]) -> dict[str, Array]:
    """The inverse of `packed`, with the names and shapes of `like`."""
    carry, at = {}, 0
    for name in sorted(like):
        shape = like[name].shape[1:]
        carry[name] = memory[:, at : at + prod(shape)].reshape(-1, *shape)
        at += prod(shape)
    return carry


def cut(
    tr: Trajectory, reward: Array, memory: Array, at: tuple[int, ...], length: int, burn_in: int, gamma: float, n: int
) -> Kept:
    """Sequences of `length` steps that begin at the rows `at`, as rows [len(at), B]. `memory` is the state there [len(at), B, M].

    Windows of n steps end with the sequence. A sequence without a step to learn from is not kept.
    """
    found = []
    for start in at:
        now, seen = slice(start, start + length), slice(start, start + length + 1)
        total, discount, steps = q_learning.n_step_rows(
            reward[now], tr.discount[now], tr.boundary[now], tr.valid[now], gamma, n
        )
        learnt = jnp.asarray(tr.valid[now], bool) & warm(tr.first[now], burn_in)
        one = (tr.obs[seen], tr.action[now], total, discount, steps, learnt, tr.first[seen])
        found.append([jnp.swapaxes(jnp.asarray(x), 0, 1) for x in one])  # [B, L, ...]
    rows = Sequences._make([*(jnp.stack(parts) for parts in zip(*found, strict=True)), memory])
    return Kept(rows, rows.learnt.any(axis=-1))


def warm(first: Array, burn_in: int) -> Array:
    """[L, B] whether the memory is to be trusted: after the burn-in, or once an episode has started in the sequence."""
    begun = jnp.cumsum(first, axis=0) > 0
    return begun | (jnp.arange(first.shape[0]) >= burn_in)[:, None]


def time_major(rows: Sequences) -> Sequences:
    """Arrays [N, L, ...] as [L, N, ...]; the memory stays [N, M]."""
    return Sequences._make([*(jnp.swapaxes(x, 0, 1) for x in rows[:-1]), rows.memory])


def at_bootstrap(x: Array, length: Array) -> Array:
    """The values after the window of each step: [L+1, N, ...], lengths [L, N] -> [L, N, ...]."""
    steps, rows = length.shape
    return x[jnp.arange(steps)[:, None] + length, jnp.arange(rows)]


def share(learnt: Array) -> Array:
    """[L, N] weights with which a mean over all steps is the mean over those that are learnt from."""
    return learnt / jnp.maximum(jnp.mean(learnt.astype(jnp.float32)), 1.0 / learnt.size)


def priority(td: Array, learnt: Array, eta: float) -> Array:
    """`eta max_t |td_t| + (1 - eta) mean_t |td_t|` over the learnt steps of each sequence: [L, N] -> [N]."""
    size = jnp.where(learnt, jnp.abs(jax.lax.stop_gradient(td)), 0.0)
    return eta * size.max(axis=0) + (1.0 - eta) * size.sum(axis=0) / jnp.maximum(learnt.sum(axis=0), 1)
