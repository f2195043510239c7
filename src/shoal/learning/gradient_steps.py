"""Gradients one at a time, for remote application: the steps of an update's scan, as steps of a host loop."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState
from shoal.core.blueprint import Blueprint
from shoal.core.keys import LEARNING, key_data
from shoal.core.program import Part, Snapshot
from shoal.core.telemetry import metric_name, over_all
from shoal.core.trajectory import Array, Trajectory
from shoal.core.weights import flat
from shoal.learning.minibatches import one_part, samples_of
from shoal.learning.replay_update import REPLAY, ReplayMemory, compiled_replay, is_saved, replay_of
from shoal.learning.soundness import Watch, seen_in, unspoilt
from shoal.ops.shuffle import shuffled


class Gradient(NamedTuple):
    vector: np.ndarray  # flat, in the order of the params
    metrics: dict[str, float]
    stop: bool  # neither this nor a further gradient of the unroll should be applied
    moved: np.ndarray | None = None  # [groups] bool: parameter groups that it moves; None means all
    errors: np.ndarray | None = None  # [batch] of its rows, if they were drawn from a replay


class CycleMetrics:
    """Metrics of gradients, combined over whole cycles: a cycle ends with a gradient that moves every parameter group.

    The metrics of a group are 0 in gradients that leave it out, so that a single gradient shows either too little or too much.
    """

    def __init__(self) -> None:
        self._open: list[dict[str, float]] = []
        self._ended: list[dict[str, float]] = []
        self._shown: dict[str, float] = {}

    def add(self, gradient: Gradient) -> None:
        self._open.append(gradient.metrics)
        if gradient.moved is None or gradient.moved.all():
            self._ended += self._open
            self._open = []

    def take(self) -> dict[str, float]:
        """Metrics of the cycles that ended since the last call, or those of the last call if none did."""
        if self._ended:
            self._shown = {n: over_all(n, [one[n] for one in self._ended]) for n in self._ended[0]}
            self._ended = []
        return self._shown


class GradientSteps(Protocol):
    """An unroll's gradients, minibatch by minibatch."""

    def take(
        self, state: LearnerState, acted: Any, trajectory: Trajectory, version: int, progress: float
    ) -> tuple[LearnerState, int]:
        """Take an unroll in. Returns (state with new statistics, number of gradients due).

        If its statistics overflow, the unroll is dropped and reported: (the same state, 0).
        """

    def gradient(self, state: LearnerState, index: int) -> Gradient: ...

    def learnt(self, first: int, errors: Any) -> None:
        """Report the errors [count, batch] of sound gradients from `first` on."""

    def snapshots(self) -> Snapshot:
        """The data that a successor needs besides the state, by part."""


class CompiledSteps(NamedTuple):
    prepare: Any  # (state, acted, trajectory, key data, progress) -> (state, batch, verdict on the statistics)
    cut: Any  # (state, batch, key data, epoch, part) -> (flat gradient, metrics, stop)
    drawn: Any  # (state, Drawn, key data) -> (flat gradient, metrics, errors, groups that it moves)
    settle: Any  # (state, params) -> state


@cache
def compiled_steps(algorithm: Algorithm) -> CompiledSteps:
    """The same functions for equal algorithms."""

    def prepare(state: LearnerState, acted: Any, trajectory: Trajectory, key: Array, progress: Array) -> Any:
        state = state._replace(progress=jnp.asarray(progress, jnp.float32))
        found = algorithm.prepare(state, acted, trajectory, jax.random.wrap_key_data(key))
        # Behind a barrier, so that the verdict does not affect how the rest is compiled, and thus changes no bit of it.
        barrier: Any = jax.lax.optimization_barrier
        after, batch = barrier(found)
        return after, batch, unspoilt(state, after)

    def drawn(state: LearnerState, minibatch: Any, key: Array) -> Any:
        grads, feedback = algorithm.gradients(state, minibatch, jax.random.wrap_key_data(key))
        return flat(grads), feedback.metrics, feedback.td, feedback.moved

    cut = partial(_cut, algorithm)
    return CompiledSteps(jax.jit(prepare), jax.jit(cut), jax.jit(drawn), jax.jit(algorithm.settle))


def _cut(algorithm: Algorithm, state: LearnerState, batch: Any, key: Array, epoch: Array, part: Array) -> Any:
    """The gradient on minibatch `part` of epoch `epoch`."""
    cut = algorithm.minibatches
    minibatch, count = samples_of(cut, batch)
    epoch_key = jax.random.fold_in(jax.random.wrap_key_data(key), epoch)
    if cut.parts > 1:
        minibatch = one_part(cut, minibatch, shuffled(epoch_key, count), part)
    grads, feedback = algorithm.gradients(state, minibatch, jax.random.fold_in(epoch_key, part))
    return flat(grads), feedback.metrics, feedback.stop


class UnrollGradients:
    """Gradients that use each unroll once: epochs x minibatches."""

    def __init__(self, blueprint: Blueprint, watch: Watch) -> None:
        self._algorithm, self._watch = blueprint.algorithm, watch
        self._seed, self._cut = blueprint.seed, blueprint.algorithm.minibatches
        self._steps = compiled_steps(blueprint.algorithm)
        self._batch: Any = None
        self._key = key_data(0)

    def take(
        self, state: LearnerState, acted: Any, trajectory: Trajectory, version: int, progress: float
    ) -> tuple[LearnerState, int]:
        self._key = key_data(self._seed, LEARNING, version)
        after, self._batch, fine = self._steps.prepare(state, acted, trajectory, self._key, np.float32(progress))
        if not fine:
            self._watch.bad(seen_in(self._algorithm, state, {}, [trajectory]))
            return state, 0
        return after, self._cut.epochs * self._cut.parts

    def gradient(self, state: LearnerState, index: int) -> Gradient:
        epoch, part = divmod(index, self._cut.parts)
        vector, metrics, stop = self._steps.cut(state, self._batch, self._key, np.int32(epoch), np.int32(part))
        return Gradient(np.asarray(vector), _named(metrics), bool(stop))

    def learnt(self, first: int, errors: Any) -> None:
        return None

    def snapshots(self) -> Snapshot:
        return {}


class ReplayGradients:
    """Stores each unroll in a replay, and computes as many gradients as its steps allow, in multiples of `together`."""

    def __init__(self, blueprint: Blueprint, memory: ReplayMemory, watch: Watch, together: int = 1) -> None:
        self._blueprint, self._seed = blueprint, blueprint.seed
        self._replay, self._memory, self._together = replay_of(blueprint), memory, together
        self._watch = watch
        self._prepare = compiled_replay(blueprint.algorithm).prepare
        self._steps = compiled_steps(blueprint.algorithm)
        self._owed = 0  # environment steps x repeats whose gradients are still due
        self._batch: Any = None
        self._version = 0
        if REPLAY in blueprint.snapshots:
            self._owed = int(blueprint.snapshots[REPLAY]["owed"][0])
            memory.restore(blueprint.snapshots[REPLAY])

    def take(
        self, state: LearnerState, acted: Any, trajectory: Trajectory, version: int, progress: float
    ) -> tuple[LearnerState, int]:
        key = key_data(self._seed, LEARNING, version)
        after, _, kept, fine = self._prepare(state, acted, [trajectory], key, np.float32(progress))
        if not fine:  # statistics overflow: neither they nor the rows are kept
            self._watch.bad(seen_in(self._blueprint.algorithm, state, {}, [trajectory]))
            return state, 0
        state = after
        self._memory.insert(kept.rows, np.asarray(kept.valid))
        if not self._memory.ready():
            return state, 0
        price = self._together * self._replay.every
        calls, self._owed = divmod(self._owed + trajectory.reward.size * self._replay.repeats, price)
        due = calls * self._together
        if due:
            self._batch, self._version = self._memory.sample(due, progress, version, 0), version
        return state, due

    def minibatches(self, first: int) -> tuple[Any, np.ndarray]:
        """(minibatches of gradients `first` to `first + together`, arrays [together, ...]; their key data)."""
        # Sliced with NumPy: JAX would take longer for the slicing than for the learning.
        drawn = jax.tree.map(lambda x: np.asarray(x)[first : first + self._together], self._batch.drawn)
        return drawn, key_data(self._seed, LEARNING, self._version, first)

    def learnt(self, first: int, errors: Any) -> None:
        """Report the errors [count, batch] of the gradients from `first` on to a prioritized replay.

        For sound gradients only: an error that is not finite would give its row a priority that is not finite.
        """
        if self._replay.kind == "prioritized":
            self._memory.feedback(self._batch.indices[first : first + len(errors)], np.asarray(errors))

    def named(self, metrics: Any) -> dict[str, float]:
        return {**_named(metrics), "replay/rows": float(self._memory.size())}

    def gradient(self, state: LearnerState, index: int) -> Gradient:
        drawn = jax.tree.map(lambda x: np.asarray(x)[index], self._batch.drawn)
        key = key_data(self._seed, LEARNING, self._version, index)
        vector, metrics, errors, moved = self._steps.drawn(state, drawn, key)
        mask = None if moved is None else np.asarray(moved)
        return Gradient(np.asarray(vector), self.named(metrics), False, mask, np.asarray(errors))

    def snapshots(self) -> Snapshot:
        if not is_saved(self._blueprint):
            return {}
        return {REPLAY: Part({"owed": np.array([self._owed]), **self._memory.snapshot()})}


def _named(metrics: Any) -> dict[str, float]:
    return {metric_name(name): float(value) for name, value in metrics.items()}


def make_gradient_steps(blueprint: Blueprint, memory: ReplayMemory | None, watch: Watch) -> GradientSteps:
    """The gradient steps for the algorithm's kind of experience."""
    if blueprint.algorithm.replays:
        assert memory is not None
        return ReplayGradients(blueprint, memory, watch)
    return UnrollGradients(blueprint, watch)
