"""Adoption of what a driver hands in: weights, statistics of observations and other leaves of the learner's state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState, Moments
from shoal.core.blueprint import named_leaves, restore_leaves
from shoal.core.errors import BadInput
from shoal.core.program import Reply
from shoal.core.weights import layout_of
from shoal.ops import statistics


def adopted(algorithm: Algorithm, state: LearnerState, reply: Reply) -> LearnerState:
    """`state` with the contents of the reply: no gradient is counted, and no target or schedule moves."""
    if reply.weights is not None:
        params = layout_of(state.params).tree(np.array(reply.weights, np.float32))  # a copy, which JAX may keep
        state = algorithm.adopt(state, jax.device_put(params))
    if reply.statistics is not None and state.obs is not None:
        state = state._replace(obs=with_others(state.obs, reply.statistics))
    if reply.leaves:
        state = LearnerState(*restore_leaves(state, {**named_leaves(state), **reply.leaves}))
    return state


def with_others(mine: Moments, others: Moments) -> Moments:
    """Statistics of the run's own observations and of others together."""
    return statistics.faded(statistics.merge(Moments(*map(jnp.asarray, mine)), Moments(*map(jnp.asarray, others))))


def check(state: LearnerState, reply: Reply) -> None:
    """Raise `BadInput` if the contents of the reply do not fit the state or are not finite."""
    if reply.weights is not None:
        size = layout_of(state.params).size
        if reply.weights.shape != (size,):
            raise BadInput(f"weights of shape {reply.weights.shape} were handed in: this run's have shape ({size},)")
        if not np.isfinite(reply.weights).all():
            raise BadInput("the weights that were handed in are not all finite")
    if reply.statistics is not None:
        if state.obs is None:
            raise BadInput("statistics of observations were handed in: this run keeps none")
        if not all(np.isfinite(array).all() for array in reply.statistics):
            raise BadInput("the statistics that were handed in are not all finite")
    known = named_leaves(state) if reply.leaves else {}
    for name, leaf in reply.leaves.items():
        if name not in known or known[name].shape != leaf.shape:
            raise BadInput(f"{name!r} of shape {leaf.shape} was handed in: this run has no such leaf")
        if not np.isfinite(leaf).all():
            raise BadInput(f"{name!r}, which was handed in, is not all finite")
