"""Gradients computed by many trainers and applied by one learner, which owns the weights.

A single role applies them in order of arrival, so no lock is needed: no gradient is lost or half applied, and a trainer that
dies loses only its batch.
"""

from __future__ import annotations

from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState, Moments
from shoal.core.blueprint import Blueprint
from shoal.core.record import Field, Record
from shoal.core.telemetry import NewsFormat
from shoal.core.trajectory import Array, Trajectory, as_trajectory
from shoal.core.weights import Layout, flat, layout_of
from shoal.learning.compiled_update import apply, side_by_side
from shoal.learning.minibatches import samples_of
from shoal.learning.soundness import sound, spoilt_if_unsound, unspoilt
from shoal.ops import statistics

SEEN = ("seen/obs", "seen/reward")  # the largest of a batch, sent with a gradient that is not finite


class Known(NamedTuple):
    """The inputs of a gradient besides the batch."""

    params: Any
    obs: Moments | None


class RemoteGradients:
    """The formats of weights sent to trainers and of gradients sent back, and the two compiled functions."""

    def __init__(self, blueprint: Blueprint, reward_clip: float) -> None:
        self.blueprint, self._clip = blueprint, reward_clip

    @cached_property
    def layout(self) -> Layout:
        """Layout of the data sent to trainers."""
        state = self.blueprint.state_shapes
        return layout_of(Known(state.params, state.obs))

    @cached_property
    def _found(self) -> Any:
        """Shapes of (gradients, statistics, metrics)."""
        trajectories = [as_trajectory(self.blueprint.record.empty())] * self.blueprint.batch
        known = self.layout.tree(np.zeros(self.layout.size, np.float32))
        function = partial(gradient, self.blueprint.algorithm, self._clip)
        return jax.eval_shape(function, known, trajectories, jax.random.key_data(jax.random.key(0)), jnp.float32(0))

    @property
    def news(self) -> NewsFormat:
        return NewsFormat((*self._found[2], *SEEN), 0)

    @property
    def record(self) -> Record:
        """Record of one gradient: its metrics, the versions that acted on its rows, and the vector itself."""
        acted = Field("acted", (self.blueprint.batch, self.blueprint.unroll, self.blueprint.envs), "int32")
        return Record((*self.news.record.fields, acted, Field("gradient", (self.size,), "float32")))

    @property
    def size(self) -> int:
        return layout_of(self._found[:2]).size

    def compute(self) -> Any:
        """(known, trajectories, key data, progress) -> (gradient and statistics as one vector, metrics).

        The whole vector is NaN if the loss is not finite.
        """
        return _compiled_gradient(self.blueprint.algorithm, self._clip)

    def applied(self) -> Any:
        """(state, vector, progress) -> (state, the trainers' vector, the actors' vector, verdict)."""
        return _compiled_apply(self.blueprint.algorithm, layout_of(self._found[:2]))


@cache
def _compiled_gradient(algorithm: Algorithm, clip: float) -> Any:
    def run(*args: Any) -> Any:
        grads, moments, metrics = gradient(algorithm, clip, *args)
        return spoilt_if_unsound(flat((grads, moments)), metrics), metrics

    return jax.jit(run)


@cache
def _compiled_apply(algorithm: Algorithm, layout: Layout) -> Any:
    def run(state: LearnerState, vector: Array, progress: Array) -> Any:
        grads, moments = layout.tree(vector)
        obs = None if state.obs is None else statistics.faded(statistics.merge(state.obs, moments))
        merged = state._replace(progress=jnp.asarray(progress, jnp.float32), obs=obs)
        after = apply(algorithm, merged, grads)
        verdict = sound(after.params, {}) & unspoilt(state, merged)
        return after, flat(Known(after.params, after.obs)), flat(algorithm.actor_state(after)), verdict

    return jax.jit(run)


def gradient(
    algorithm: Algorithm, clip: float, known: Known, trajectories: list[Trajectory], key: Array, progress: Array
) -> tuple[Any, Moments | None, dict[str, Array]]:
    """One gradient of the whole batch: (gradients, statistics of its observations, metrics).

    `clip` bounds the rewards that are learnt from, 0 leaves them; reported returns of episodes are not clipped.
    """
    whole = side_by_side(trajectories)
    if clip:
        whole = whole._replace(reward=jnp.clip(whole.reward, -clip, clip))
    state = LearnerState(
        known.params, (), known.obs, None, jnp.zeros((), jnp.int32), jnp.asarray(progress, jnp.float32), {}
    )
    prepare_key, gradient_key = jax.random.split(jax.random.wrap_key_data(key))
    state, batch = algorithm.prepare(state, None, whole, prepare_key)
    samples, _ = samples_of(algorithm.minibatches, batch)
    grads, feedback = algorithm.gradients(state, samples, gradient_key)
    moments = None
    if known.obs is not None:
        empty = statistics.empty_moments(known.obs.mean.shape)
        moments = statistics.update_moments(empty, whole.obs[:-1], whole.valid)
    return grads, moments, feedback.metrics
