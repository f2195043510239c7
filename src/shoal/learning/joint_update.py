"""An update that several learners make together: the same weights everywhere, bit for bit, from different unrolls.

The compiled scan of a single learner is split here where the others contribute: statistics are merged before `prepare` sees
them, and each minibatch's gradients are averaged before they are applied. Decisions that change control flow (the KL stop) are
averaged too, so that all learners make the same ones.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState, Moments
from shoal.core.blueprint import Blueprint
from shoal.core.keys import LEARNING, key_data
from shoal.core.ports import Group, Op
from shoal.core.telemetry import metric_name, over_all
from shoal.core.trajectory import Array, Trajectory, as_trajectory
from shoal.core.weights import flat, layout_of, to_vector
from shoal.learning.compiled_update import apply, side_by_side, sweep
from shoal.learning.minibatches import all_parts, samples_of
from shoal.learning.soundness import SOUND, Watch, seen_in, sound, spoilt_if_unsound, unspoilt
from shoal.ops import statistics
from shoal.ops.shuffle import shuffled

FROZEN = 2.0**60  # a count large enough that one batch cannot move it

Statistics = tuple[Any, ...]  # (observations, discounted returns), each Moments or None


class Together(NamedTuple):
    """How learners combine their work."""

    average_every: int = 0  # updates between two averages of weights; 0 averages each minibatch's gradients
    rate_scale: float = 1.0  # factor of the step, for the larger joint batch


class Compiled(NamedTuple):
    observe: Any  # (state, acted, trajectories, key data) -> this batch's statistics, as a vector
    merge: Any  # (state, [vector of each learner]) -> (state, verdict)
    prepare: Any  # (state, acted, trajectories, key data, progress) -> (state, batch)
    epoch: Any  # (batch, key data) -> (minibatches, keys)
    gradients: Any  # (state, minibatches, keys, which) -> (vector of gradients and the stop, metrics)
    apply: Any  # (state, vector) -> (state, verdict)
    sweep: Any  # (state, batch, key data) -> (state, metrics)


@cache
def compiled_joint(algorithm: Algorithm, rate_scale: float) -> Compiled:
    """The same functions for equal algorithms."""
    functions = (observe, merge, prepare, epoch, gradients, partial(step, rate_scale=rate_scale), local_sweep)
    return Compiled(*(jax.jit(partial(function, algorithm)) for function in functions))


def statistics_of(state: LearnerState) -> Statistics:
    return state.obs, None if state.reward is None else state.reward.moments


def with_statistics(state: LearnerState, found: Statistics) -> LearnerState:
    obs, returns = found
    reward = None if state.reward is None else state.reward._replace(moments=returns)
    return state._replace(obs=obs, reward=reward)


def observe(
    algorithm: Algorithm, state: LearnerState, acted: Any, trajectories: Sequence[Trajectory], key: Array
) -> Array:
    """This batch's own statistics: the result of `prepare` on empty ones. The compiler drops the rest of `prepare`."""
    empty = jax.tree.map(jnp.zeros_like, statistics_of(state))
    blank = with_statistics(state, empty)
    after, _ = algorithm.prepare(blank, acted, side_by_side(trajectories), jax.random.wrap_key_data(key))
    return flat(statistics_of(after))


def merge(algorithm: Algorithm, state: LearnerState, found: Sequence[Array]) -> tuple[LearnerState, Array]:
    """Merge the statistics of all batches into the state's, one after another in the order of the learners."""
    now = statistics_of(state)
    layout = layout_of(now)
    for vector in found:
        batch = layout.tree(vector)
        now = tuple(
            None if m is None else statistics.faded(statistics.merge(m, b)) for m, b in zip(now, batch, strict=True)
        )
    after = with_statistics(state, now)
    return after, unspoilt(state, after)


def prepare(
    algorithm: Algorithm,
    state: LearnerState,
    acted: Any,
    trajectories: Sequence[Trajectory],
    key: Array,
    progress: Array,
) -> tuple[LearnerState, Any]:
    """`prepare` with merged statistics. It must not count its batch again, so they are frozen while it runs."""
    state = state._replace(progress=jnp.asarray(progress, jnp.float32))

    def freeze(m: Moments) -> Moments:
        return Moments(jnp.full_like(m.count, FROZEN), m.mean, m.m2 / jnp.maximum(m.count, 1.0) * FROZEN)

    held = tuple(None if m is None else freeze(m) for m in statistics_of(state))
    frozen = with_statistics(state, held)
    after, batch = algorithm.prepare(frozen, acted, side_by_side(trajectories), jax.random.wrap_key_data(key))
    return with_statistics(after, statistics_of(state)), batch


def epoch(algorithm: Algorithm, batch: Any, key: Array) -> tuple[Any, Array]:
    """The minibatches of one epoch and their keys, as in `compiled_update.sweep`."""
    cut = algorithm.minibatches
    samples, count = samples_of(cut, batch)
    shuffle_key, gradient_key = jax.random.split(jax.random.wrap_key_data(key))
    parts = all_parts(cut, samples, shuffled(shuffle_key, count))
    return parts, jax.random.key_data(jax.random.split(gradient_key, cut.parts))


def gradients(
    algorithm: Algorithm, state: LearnerState, parts: Any, keys: Array, which: Array
) -> tuple[Array, dict[str, Array]]:
    part = jax.tree.map(lambda x: x[which], parts)
    grads, feedback = algorithm.gradients(state, part, jax.random.wrap_key_data(keys[which]))
    stop = jnp.asarray(feedback.stop, jnp.float32).reshape(1)
    # The verdict depends only on the reduced vector, so that it is the same for all: a loss that is not finite must show there.
    vector = spoilt_if_unsound(flat(grads), feedback.metrics)
    return jnp.concatenate([vector, stop]), feedback.metrics


def step(algorithm: Algorithm, state: LearnerState, vector: Array, rate_scale: float) -> tuple[LearnerState, Array]:
    """Apply averaged gradients; `rate_scale` scales the optimiser's step."""
    grads = layout_of(state.params).tree(vector)
    after = apply(algorithm, state, grads)
    if rate_scale != 1.0:
        moved = jax.tree.map(lambda old, new: old + rate_scale * (new - old), state.params, after.params)
        after = after._replace(params=moved)
    return after, sound(after.params, {})


def local_sweep(
    algorithm: Algorithm, state: LearnerState, batch: Any, key: Array
) -> tuple[LearnerState, dict[str, Array]]:
    after, metrics = sweep(algorithm, state, batch, jax.random.wrap_key_data(key))
    return after, {**metrics, SOUND: sound(after.params, metrics)}


class JointUpdate:
    """One learner's part of the common update."""

    def __init__(self, blueprint: Blueprint, learner: int, together: Together, group: Group, watch: Watch) -> None:
        self._blueprint, self._learner, self._together, self._group = blueprint, learner, together, group
        self._watch = watch
        self._compiled = compiled_joint(blueprint.algorithm, together.rate_scale)
        self._words = layout_of(statistics_of(blueprint.initial_state())).size

    @staticmethod
    def group_size(blueprint: Blueprint, together: Together) -> int:
        """The longest vector that learners exchange."""
        state = blueprint.initial_state()
        params = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state.params))
        moving = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(averaged(state)))
        words = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(statistics_of(state)))
        return max(params + 1, moving if together.average_every else 0, words * blueprint.learners)

    def compile(self, state: LearnerState, acted: Any) -> None:
        """Compile all functions ahead of the data, by calling them on an empty batch."""
        c, key, lanes = (
            self._compiled,
            key_data(0),
            [as_trajectory(self._blueprint.record.empty())] * self._blueprint.batch,
        )
        if self._words:
            c.merge(state, [c.observe(state, acted, lanes, key)] * self._blueprint.learners)
        state, batch = c.prepare(state, acted, lanes, key, np.float32(0))
        if self._together.average_every:
            c.sweep(state, batch, key)
        else:
            minibatches, keys = c.epoch(batch, key)
            c.apply(state, c.gradients(state, minibatches, keys, np.int32(0))[0][:-1])

    def __call__(
        self, state: LearnerState, acted: Any, trajectories: Sequence[Trajectory], version: int, progress: float
    ) -> Generator[Op[Any], Any, tuple[LearnerState, dict[str, float]]]:
        """The state after the common update, and this learner's metrics. Every learner makes the same calls in the same order."""
        c, blueprint, me = self._compiled, self._blueprint, self._learner

        def key(*path: int) -> np.ndarray:
            return key_data(blueprint.seed, LEARNING, version, me, *path)

        before, whole, fine = state, np.bool_(True), np.bool_(True)

        def judged(state: LearnerState, metrics: dict[str, float]) -> tuple[LearnerState, dict[str, float]]:
            """The result or the state before. Depends only on values common to all learners, so all decide the same."""
            if whole and fine:
                self._watch.good()
                return state, metrics
            if me == 0:  # one report for all
                self._watch.bad(seen_in(blueprint.algorithm, before, metrics, trajectories))
            return before, metrics

        if self._words:
            found = np.asarray(c.observe(state, acted, trajectories, key(0)))
            state, whole = c.merge(state, (yield from self._gather(found)))
        state, batch = c.prepare(state, acted, trajectories, key(0), np.float32(progress))
        if self._together.average_every:
            held = state if whole else before
            return (yield from self._alone(held, state, batch, trajectories, version))
        seen: list[dict[str, Array]] = []
        cut = blueprint.algorithm.minibatches
        for number in range(cut.epochs):
            minibatches, keys = c.epoch(batch, key(1, number))
            for which in range(cut.parts):
                vector, metrics = c.gradients(state, minibatches, keys, np.int32(which))
                mean = yield from self._group.mean(me, np.asarray(vector))
                if mean[-1] > 0:  # some learner's policy has moved too far
                    return judged(state, _means(seen or [metrics]))
                seen.append(metrics)
                # Weights that are not finite stay so: the last verdict covers all.
                state, fine = c.apply(state, mean[:-1])
        return judged(state, _means(seen))

    def _alone(
        self, held: LearnerState, state: LearnerState, batch: Any, trajectories: Sequence[Trajectory], version: int
    ) -> Generator[Op[Any], Any, tuple[LearnerState, dict[str, float]]]:
        """Minibatches with this learner's own gradients, and periodically the mean of all weights.

        The merged statistics are common to all: a learner that drops its gradients returns `held`, which has them, or it
        would differ from the others. If they have overflowed, `held` is the state without them, and nothing is learnt.
        """
        key = key_data(self._blueprint.seed, LEARNING, version, self._learner, 1)
        after, found = self._compiled.sweep(state, batch, key)
        fine = found.pop(SOUND) and held is state
        metrics = {metric_name(name): float(value) for name, value in found.items()}
        if fine:
            self._watch.good()
        else:
            self._watch.bad(seen_in(self._blueprint.algorithm, held, metrics, trajectories))
        mine = after if fine else held
        if (version + 1) % self._together.average_every == 0:
            mine = yield from self._average(mine)
        return mine, metrics

    def _gather(self, vector: np.ndarray) -> Generator[Op[Any], Any, list[np.ndarray]]:
        """The vectors of all learners, in their order, with the same bits for each."""
        whole = np.zeros((self._blueprint.learners, vector.size), np.float32)
        whole[self._learner] = vector
        mean = yield from self._group.mean(self._learner, whole.ravel())
        return list((mean * np.float32(self._blueprint.learners)).reshape(whole.shape))

    def _average(self, state: LearnerState) -> Generator[Op[Any], Any, LearnerState]:
        """Replace weights and optimiser moments by their means over all learners."""
        mine = averaged(state)
        leaves, treedef = jax.tree.flatten(mine)
        mean = yield from self._group.mean(self._learner, to_vector(mine))
        parts = np.split(mean, np.cumsum([leaf.size for leaf in leaves])[:-1])
        found = [
            jnp.asarray(
                part.reshape(leaf.shape).round() if leaf.dtype.kind == "i" else part.reshape(leaf.shape), leaf.dtype
            )
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        params, moments, steps = jax.tree.unflatten(treedef, found)
        return state._replace(params=params, moments=moments, step=steps)


def averaged(state: LearnerState) -> tuple[Any, Any, Any]:
    """The parts of a state that periodic averaging exchanges."""
    return state.params, state.moments, state.step


def _means(seen: Sequence[dict[str, Array]]) -> dict[str, float]:
    return {metric_name(name): over_all(name, [float(one[name]) for one in seen]) for name in seen[0]}
