"""A replay inside a compiled loop: one ring of rows on the device, drawn from uniformly, and the update that learns from it.

Snapshots have the format of one ring of `replay.Rings`, so that a run can resume under another runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import ActorState, Algorithm, Drawn, LearnerState
from shoal.core.blueprint import Blueprint
from shoal.core.errors import BadInput
from shoal.core.trajectory import Array, Trajectory
from shoal.learning.replay_update import gradients_a_call, learn, prepare, replay_of, row_record, rows_of
from shoal.learning.soundness import SOUND
from shoal.replay import Rings


class DeviceReplay(NamedTuple):
    """Row number i lies in slot `i % capacity`."""

    rows: Any  # a named tuple of arrays [capacity, ...]
    written: Array  # [] int32 rows so far; once the ring is full, as `_wrapped` counts them
    owed: Array  # [] int32 environment steps x repeats whose gradients are still to come


def check(blueprint: Blueprint) -> None:
    """Raise `BadInput` for settings that the ring on the device does not support."""
    replay, (rows, columns) = replay_of(blueprint), rows_of(blueprint)[0].shape[:2]
    if replay.kind != "uniform":
        raise BadInput(
            f"--algo.replay is {replay.kind!r}: --runtime fused draws uniformly; prioritized runs on inline, threads or processes"
        )
    if not replay.replacement:
        raise BadInput("--algo.replacement is false: --runtime fused draws with replacement")
    if rows * columns > replay.capacity:
        steps = replay.sequence
        raise BadInput(
            f"--algo.capacity is {replay.capacity * steps}: an update of --runtime fused brings {rows * columns * steps} rows"
        )


def empty(blueprint: Blueprint) -> DeviceReplay:
    """A ring without rows."""
    slots = replay_of(blueprint).capacity
    fields = row_record(blueprint).fields
    rows = type(rows_of(blueprint))(*(jnp.zeros((slots, *f.shape), f.dtype) for f in fields))
    return DeviceReplay(rows, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def restored(blueprint: Blueprint, arrays: Mapping[str, np.ndarray]) -> DeviceReplay:
    """The ring of a snapshot, which may also come from rings on the host; those need not have saved `owed`."""
    views = Rings.record(row_record(blueprint), 1, replay_of(blueprint).capacity).empty()
    rings = Rings.over(views)
    rings.restore(arrays)
    rows = type(rows_of(blueprint))(**{name: jnp.asarray(a[0]) for name, a in Rings.rows_of(views).items()})
    written = _wrapped(int(rings.counts()[0]), rings.slots)
    return DeviceReplay(rows, jnp.int32(written), jnp.int32(arrays["owed"][0] if "owed" in arrays else 0))


def _wrapped(written: Any, slots: int) -> Any:
    """A count below `2 * slots` that stands for the same place in the ring: the number of all rows would overflow within days."""
    return written - slots * (written // slots - 1) * (written >= 2 * slots)


def snapshot(replay: DeviceReplay) -> dict[str, np.ndarray]:
    """The rows and counts in the format of the replay on the host."""
    slots, written = len(jax.tree.leaves(replay.rows)[0]), int(replay.written)
    rows = {f"rows/{n}": np.asarray(a)[None, :written] for n, a in replay.rows._asdict().items()}
    counts = {"counters": np.array([[written, written]]), "slots": np.array([slots]), "seen": np.array([written])}
    return {"owed": np.array([int(replay.owed)]), **counts, **rows}


def replay_update(
    blueprint: Blueprint,
    replay: DeviceReplay,
    state: LearnerState,
    acted: ActorState,
    trajectory: Trajectory,
    key: Array,
    progress: Array,
) -> tuple[LearnerState, DeviceReplay, dict[str, Array]]:
    """Store the unroll's rows, then compute the gradients that are due. Without one, the metrics are NaN."""
    algorithm: Algorithm = blueprint.algorithm
    wanted, count = replay_of(blueprint), gradients_a_call(blueprint)
    state, _, kept, fine = prepare(algorithm, state, acted, [trajectory], key, progress)
    slots = wanted.capacity
    valid = kept.valid & fine  # rows by which statistics overflow are not kept either
    at = jnp.where(valid, (replay.written + jnp.cumsum(valid) - 1) % slots, slots)
    rows = jax.tree.map(lambda ring, new: ring.at[at].set(new, mode="drop"), replay.rows, kept.rows)
    written = _wrapped(replay.written + valid.sum(dtype=jnp.int32), slots)
    size = jnp.minimum(written, slots)
    ready = size >= max(wanted.warmup, wanted.batch)
    owed = replay.owed + jnp.where(ready, trajectory.reward.size * wanted.repeats, 0)
    price = count * wanted.every
    due = jnp.where(fine, owed // price, 0)
    root = jax.random.wrap_key_data(key)

    def call(number: Array, carried: tuple[LearnerState, dict[str, Array]]) -> tuple[LearnerState, dict[str, Array]]:
        state, before = carried
        draw_key, learn_key = jax.random.split(jax.random.fold_in(root, number))
        indices = jax.random.randint(draw_key, (count, wanted.batch), 0, size)
        drawn = Drawn(jax.tree.map(lambda ring: ring[indices], rows), jnp.ones(indices.shape, jnp.float32))
        state, _, metrics, _ = learn(algorithm, state, drawn, jax.random.key_data(learn_key))
        return state, {**metrics, SOUND: metrics[SOUND] & before[SOUND]}

    blank = Drawn(
        jax.tree.map(lambda ring: jnp.zeros((count, wanted.batch, *ring.shape[1:]), ring.dtype), rows),
        jnp.ones((count, wanted.batch), jnp.float32),
    )
    shapes = jax.eval_shape(lambda: learn(algorithm, state, blank, key))[2]
    none = {name: jnp.full(shape.shape, jnp.nan, jnp.float32) for name, shape in shapes.items()}
    state, metrics = jax.lax.fori_loop(0, due, call, (state, {**none, SOUND: fine}))
    sizes = {"replay/rows": size.astype(jnp.float32), "replay/gradients": state.step.astype(jnp.float32)}
    explore = {f"explore/{name}": value for name, value in algorithm.actor_state(state).explore.items()}
    return state, DeviceReplay(rows, written, owed - due * price), {**metrics, **explore, **sizes}
