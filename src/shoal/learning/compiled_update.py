"""The update of an algorithm as one compiled function: `prepare`, then epochs x minibatches of gradients, applied."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.algorithm import ActorState, Algorithm, LearnerState
from shoal.core.telemetry import is_maximum
from shoal.core.trajectory import Array, Trajectory
from shoal.learning.groups import held, stepped
from shoal.learning.minibatches import all_parts, samples_of
from shoal.learning.soundness import SOUND, sound, unspoilt
from shoal.ops.shuffle import shuffled


@cache
def compiled_update(algorithm: Algorithm) -> Any:
    """(state, acted, [trajectory of each lane], key data, progress) -> (state, actor, metrics); shared by equal algorithms."""
    return jax.jit(partial(update, algorithm))


def update(
    algorithm: Algorithm,
    state: LearnerState,
    acted: ActorState | None,
    trajectories: Sequence[Trajectory],
    key: Array,
    progress: Array,
) -> tuple[LearnerState, ActorState, dict[str, Array]]:
    """`prepare`, then epochs x minibatches of `apply(gradients)`, as one scan. The metrics include the verdict, `SOUND`."""
    state = state._replace(progress=jnp.asarray(progress, jnp.float32))
    prepare_key, sweep_key = jax.random.split(jax.random.wrap_key_data(key))
    prepared, batch = algorithm.prepare(state, acted, side_by_side(trajectories), prepare_key)
    after, metrics = sweep(algorithm, prepared, batch, sweep_key)
    # Behind a barrier, so that the verdict does not affect how the rest is compiled, and thus changes no bit of it.
    barrier: Any = jax.lax.optimization_barrier
    after, metrics, prepared = barrier((after, metrics, prepared))
    verdict = sound(after.params, metrics) & unspoilt(state, prepared)
    return after, algorithm.actor_state(after), {**metrics, SOUND: verdict}


def side_by_side(trajectories: Sequence[Trajectory]) -> Trajectory:
    """One trajectory with the columns of all lanes, in order."""
    if len(trajectories) == 1:
        return trajectories[0]
    rows = [t._replace(carry={}) for t in trajectories]
    whole: Trajectory = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *rows)
    carries = [t.carry for t in trajectories]
    return whole._replace(carry=jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=0), *carries))


def sweep(algorithm: Algorithm, state: LearnerState, batch: Any, key: Array) -> tuple[LearnerState, dict[str, Array]]:
    """Epochs x minibatches. Metrics are means over the applied minibatches and the one that stopped, if any."""
    cut = algorithm.minibatches
    samples, count = samples_of(cut, batch)

    def epoch(carry: tuple[LearnerState, Array], key: Array) -> tuple[tuple[LearnerState, Array], Any]:
        shuffle_key, gradient_key = jax.random.split(key)
        parts = all_parts(cut, samples, shuffled(shuffle_key, count))
        return jax.lax.scan(minibatch, carry, (parts, jax.random.split(gradient_key, cut.parts)))

    def minibatch(carry: tuple[LearnerState, Array], part: Any) -> tuple[tuple[LearnerState, Array], Any]:
        state, before = carry
        grads, feedback = algorithm.gradients(state, *part)
        following = apply(algorithm, state, grads, feedback.moved)
        stopped = before | feedback.stop
        following = jax.tree.map(lambda new, old: jnp.where(stopped, old, new), following, state)
        return (following, stopped), (feedback.metrics, ~before)

    whole = cut.epochs == 1 and cut.parts == 1
    if whole:  # the order of samples does not matter
        (state, _), (metrics, _) = minibatch((state, jnp.asarray(False)), (samples, key))
        return state, metrics
    keys = jax.random.split(key, cut.epochs)
    (state, _), (metrics, counted) = jax.lax.scan(epoch, (state, jnp.asarray(False)), keys)
    share = counted / counted.sum()

    def of_counted(name: str, found: Array) -> Array:
        """Combine a metric over the counted minibatches. After a stop it may be NaN, so it is left out, not weighted with 0."""
        if is_maximum(name):
            return jnp.where(counted, found, -jnp.inf).max()
        return jnp.where(counted, found, 0.0).ravel() @ share.ravel()

    return state, {name: of_counted(name, found) for name, found in metrics.items()}


def apply(algorithm: Algorithm, state: LearnerState, grads: Any, moved: Array | None = None) -> LearnerState:
    """Apply gradients by the optimiser, then `settle`. `moved` is the mask in the `Feedback` of `gradients`."""
    updates, moments = algorithm.optimiser.update(grads, state.moments, state.params)
    params = stepped(algorithm.groups, state.params, updates, algorithm.rate(state))
    if moved is not None:
        params, moments = held(algorithm.groups, moved, (params, moments), (state.params, state.moments))
    return algorithm.settle(state._replace(moments=moments), params)
