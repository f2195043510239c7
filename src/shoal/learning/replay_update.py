"""Learning from a replay: storing unrolls, drawing minibatches, and making the gradients that are due.

`ReplayMemory` is the memory of one learner or worker: its own, or its part of a `Pool` that all read. `ReplayUpdate` stores
unrolls in it, then makes as many gradients as the environment steps allow, in scans of one size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import ActorState, Algorithm, Drawn, LearnerState, Replay
from shoal.core.blueprint import Blueprint
from shoal.core.errors import BadInput
from shoal.core.keys import LEARNING, REPLAYING, key_data
from shoal.core.ports import Pool, Slot
from shoal.core.program import Part, Snapshot
from shoal.core.record import Field, Record
from shoal.core.telemetry import metric_name
from shoal.core.trajectory import Array, Trajectory, as_trajectory
from shoal.learning.compiled_update import apply, side_by_side
from shoal.learning.soundness import SOUND, Watch, seen_in, sound, unspoilt
from shoal.process.compile_ahead import compile_ahead
from shoal.replay import Picked, Rings, make_sampler

REPLAY = "replay"  # the part of a snapshot that holds the rows
CALL_BYTES = 1 << 26  # size of the rows of one call of several gradients, at most


class Batch(NamedTuple):
    """Several minibatches, and the indices of their rows."""

    drawn: Drawn  # arrays [count, batch, ...]
    indices: np.ndarray  # [count, batch]


class OneRing:
    """One ring of a pool as a pool of its own, so that the main role can save a worker's private replay."""

    rings = 1

    def __init__(self, pool: Pool, ring: int) -> None:
        self._pool, self._ring, self.slots = pool, ring, pool.slots

    def write(self, ring: int, rows: Mapping[str, np.ndarray]) -> None:
        self._pool.write(self._ring, rows)

    def counts(self) -> np.ndarray:
        return self._pool.counts()[self._ring : self._ring + 1]

    def sizes(self) -> np.ndarray:
        return self._pool.sizes()[self._ring : self._ring + 1]

    def read(self, indices: np.ndarray, counts: np.ndarray) -> tuple[Slot, np.ndarray]:
        every = self._pool.counts()
        every[self._ring] = counts[0]
        return self._pool.read(indices + self._ring * self.slots, every)

    def snapshot(self) -> dict[str, np.ndarray]:
        raise NotImplementedError("the rings of a pool are saved together")

    def fits(self, arrays: Mapping[str, np.ndarray]) -> bool:
        return self._pool.fits(arrays)

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        raise NotImplementedError("the rings of a pool are restored together")


class ReplayMemory:
    """Rows and the sampler over them. With a `pool`, rows go into this worker's ring and are drawn from all rings.

    `workers` with a memory each divide capacity and warm-up among them. `keeps`: the rows are part of this memory's snapshot;
    the rows of a pool with several writers are saved by the main role.
    """

    def __init__(
        self, blueprint: Blueprint, *, pool: Pool | None = None, worker: int = 0, workers: int = 1, keeps: bool = False
    ) -> None:
        self._replay = shared_out(replay_of(blueprint), workers)
        self._seed, self._worker = blueprint.seed, worker
        self._rows = type(rows_of(blueprint))
        self._keeps = keeps or pool is None
        if pool is None:
            pool = Rings.over(Rings.record(row_record(blueprint), 1, self._replay.capacity).empty())
        self._pool = pool
        self._ring = worker if pool.rings > 1 else 0
        self._sampler = make_sampler(self._replay, pool.rings, pool.slots)
        self._seen = np.zeros(pool.rings, np.int64)  # rows of each ring that the sampler has been told of

    def insert(self, rows: Any, valid: np.ndarray) -> int:
        """Keep the valid ones of `rows`, whose arrays begin with [N]. Returns their number."""
        kept = {name: np.asarray(array)[valid] for name, array in zip(self._rows._fields, rows, strict=True)}
        self._pool.write(self._ring, kept)
        return int(valid.sum())

    def size(self) -> int:
        """The number of rows to draw from, over all writers."""
        return int(self._pool.sizes().sum())

    def ready(self) -> bool:
        """Whether there are enough rows to begin."""
        return self.size() >= max(self._replay.warmup, self._replay.batch)

    def sample(self, count: int, progress: float, *path: int, batch: int | None = None) -> Batch:
        """Draw `count` minibatches, of `batch` rows each if given. `path` numbers the draw: the same number draws the same rows."""
        replay, pool = self._replay, self._pool
        batch = replay.batch if batch is None else batch
        # A minibatch can be cut only if its rows are independent: prioritized ones have one from each share of the replay. Where
        # it can, it is drawn whole and cut, so that the same number draws the same rows for every `batch`.
        independent = replay.kind == "uniform" and replay.replacement
        drawn = replay.batch if independent else batch
        rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(REPLAYING, self._worker, *path)))
        beta = replay.beta + (1.0 - replay.beta) * min(1.0, progress)
        whole = np.zeros((count, batch), bool)
        while not whole.any():
            counts = pool.counts()
            self._notice(counts)
            picked = self._sampler.draw(rng, np.minimum(counts, pool.slots), count, drawn, beta)
            picked = Picked(*(array[:, :batch] for array in picked))
            rows, whole = pool.read(picked.indices, counts)
        if not whole.all():  # other workers overwrote some meanwhile: replace them by rows of the same draw
            for array in (*rows.values(), *picked):
                array[~whole] = np.resize(array[whole], array[~whole].shape)
        return Batch(Drawn(self._rows(**rows), picked.weights), picked.indices)

    def _notice(self, counts: np.ndarray) -> None:
        """Tell the sampler of rows that were written since it last looked."""
        slots = self._pool.slots
        for ring in np.flatnonzero(counts > self._seen):
            first = max(int(self._seen[ring]), int(counts[ring]) - slots)
            self._sampler.note(ring * slots + np.arange(first, counts[ring]) % slots)
        self._seen[...] = counts

    def feedback(self, indices: np.ndarray, td: np.ndarray) -> None:
        """Report the errors of drawn rows to the sampler."""
        self._sampler.feedback(indices, td)

    def snapshot(self) -> dict[str, np.ndarray]:
        """The state that a successor needs, including the rows if this memory keeps them."""
        rows = self._pool.snapshot() if self._keeps else {}
        return {**rows, "seen": self._seen.copy(), **{f"sampler/{n}": a for n, a in self._sampler.snapshot().items()}}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load a snapshot. If the rows move to other slots, priorities are dropped and all rows are new to the sampler."""
        if self._keeps:
            self._pool.restore(arrays)
            if not self._pool.fits(arrays):
                return
        prefix = "sampler/"
        saved = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        alike = saved.keys() == self._sampler.snapshot().keys()  # else it is another kind of sampler
        if alike and "seen" in arrays and arrays["seen"].shape == self._seen.shape:  # else the rings are others
            self._seen[...] = arrays["seen"]
            self._sampler.restore(saved)


class CompiledReplay(NamedTuple):
    # (state, acted, [trajectory of each lane], key data, progress) -> (state, actor, Kept with arrays [N, ...], verdict)
    prepare: Any
    learn: Any  # (state, Drawn with arrays [count, batch, ...], key data) -> (state, actor, metrics, errors [count, batch])


@cache
def compiled_replay(algorithm: Algorithm) -> CompiledReplay:
    """The same functions for equal algorithms."""
    return CompiledReplay(jax.jit(partial(prepare, algorithm)), jax.jit(partial(learn, algorithm)))


def prepare(
    algorithm: Algorithm,
    state: LearnerState,
    acted: Any,
    trajectories: Sequence[Trajectory],
    key: Array,
    progress: Array,
) -> tuple[LearnerState, ActorState, Any, Array]:
    """Turn one unroll from every lane into rows."""
    state = state._replace(progress=jnp.asarray(progress, jnp.float32))
    after, kept = algorithm.prepare(state, acted, side_by_side(trajectories), jax.random.wrap_key_data(key))
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), kept)
    return after, algorithm.actor_state(after), flat, unspoilt(state, after)


def learn(
    algorithm: Algorithm, state: LearnerState, drawn: Drawn, key: Array
) -> tuple[LearnerState, ActorState, dict[str, Array], Array]:
    """One gradient after another, in one scan. Metrics are means over them and include the verdict, `SOUND`."""
    keys = jax.random.split(jax.random.wrap_key_data(key), drawn.weight.shape[0])

    def one(state: LearnerState, part: tuple[Drawn, Array]) -> tuple[LearnerState, Any]:
        grads, feedback = algorithm.gradients(state, *part)
        return apply(algorithm, state, grads, feedback.moved), (feedback.metrics, feedback.td)

    if len(keys) == 1:
        state, only = one(state, jax.tree.map(lambda x: x[0], (drawn, keys)))
        metrics, errors = jax.tree.map(lambda x: x[None], only)
    else:
        state, (metrics, errors) = jax.lax.scan(one, state, (drawn, keys))
    means = {name: m.mean() for name, m in metrics.items()}
    return state, algorithm.actor_state(state), {**means, SOUND: sound(state.params, means)}, errors


class ReplayUpdate:
    """Stores the unrolls of a round, then makes the gradients that are due.

    Gradients are made in calls of one size, so that one function is compiled; environment steps short of a whole call are
    carried over to the next round. If a round is dropped, neither its gradients nor its statistics are kept.
    """

    def __init__(self, blueprint: Blueprint, watch: Watch, memory: ReplayMemory | None = None) -> None:
        self._blueprint, self._watch, self._replay = blueprint, watch, replay_of(blueprint)
        self._compiled = compiled_replay(blueprint.algorithm)
        self._count = gradients_a_call(blueprint)
        self._owed = 0  # environment steps x repeats whose gradients are still due
        self.memory = memory or ReplayMemory(blueprint)
        if REPLAY in blueprint.snapshots:
            arrays = blueprint.snapshots[REPLAY]
            if "owed" in arrays:  # missing in parts of workers: each keeps its own count
                self._owed = int(arrays["owed"][0])
            self.memory.restore(arrays)

    def compile(self, state: LearnerState, acted: Any, lanes: int) -> None:
        """Compile both functions ahead of the data."""
        slot = as_trajectory(self._blueprint.record.empty())
        algorithm = self._blueprint.algorithm
        prepared = compile_ahead(prepare, algorithm, state, acted, [slot] * lanes, key_data(0), np.float32(0))
        drawn = blank_minibatches(self._blueprint, self._count)
        self._compiled = CompiledReplay(prepared, compile_ahead(learn, algorithm, state, drawn, key_data(0)))

    def __call__(
        self, state: LearnerState, acted: Any, trajectories: Sequence[Trajectory], version: int, progress: float
    ) -> tuple[LearnerState, ActorState, dict[str, float]]:
        blueprint, replay, memory = self._blueprint, self._replay, self.memory
        key = key_data(blueprint.seed, LEARNING, version)
        before, metrics = state, dict[str, float]()
        state, actor, kept, fine = self._compiled.prepare(state, acted, trajectories, key, np.float32(progress))
        if fine:  # rows that make the statistics overflow are not kept either
            memory.insert(kept.rows, np.asarray(kept.valid))
        if memory.ready():
            self._owed += trajectories[0].reward.size * len(trajectories) * replay.repeats
        price = self._count * replay.every
        due, self._owed = divmod(self._owed, price)
        for call in range(due if fine else 0):
            batch = memory.sample(self._count, progress, version, call)
            key = key_data(blueprint.seed, LEARNING, version, call)
            state, actor, losses, errors = self._compiled.learn(state, batch.drawn, key)
            fine = losses.pop(SOUND)
            metrics = {metric_name(name): float(value) for name, value in losses.items()}
            if not fine:
                break
            if replay.kind == "prioritized":
                memory.feedback(batch.indices, np.asarray(errors))
        if fine:
            self._watch.good()
        else:
            self._watch.bad(seen_in(blueprint.algorithm, before, metrics, trajectories))
            state, actor = before, blueprint.algorithm.actor_state(before)
        metrics |= explore_metrics(actor)
        return state, actor, {**metrics, "replay/rows": float(memory.size()), "replay/gradients": float(state.step)}

    def snapshots(self) -> Snapshot:
        if not is_saved(self._blueprint):
            return {}
        return {REPLAY: Part({"owed": np.array([self._owed]), **self.memory.snapshot()}, lasts=True)}


def explore_metrics(actor: ActorState) -> dict[str, float]:
    """The current exploration, as it is logged."""
    return {f"explore/{name}": float(value) for name, value in actor.explore.items()}


def replay_of(blueprint: Blueprint) -> Replay:
    """The experience of an algorithm that `replays`."""
    replay = blueprint.algorithm.experience
    assert isinstance(replay, Replay), replay
    return replay


def shared_out(replay: Replay, workers: int) -> Replay:
    """One worker's share of capacity and warm-up, if each worker has a memory of its own."""
    if workers == 1:
        return replay
    share = max(replay.batch, replay.capacity // workers)
    return replay._replace(capacity=share, warmup=min(share, replay.warmup // workers))


def gradients_a_call(blueprint: Blueprint) -> int:
    """Gradients per call: those of one round, as far as their rows fit into one call. One for images: inside a loop, XLA's
    convolutions on CPU take several times as long."""
    replay = replay_of(blueprint)
    if blueprint.algorithm.task.spec.obs.is_image:
        return 1
    fitting = CALL_BYTES // (replay.batch * sum(field.nbytes for field in row_record(blueprint).fields))
    return max(1, min(blueprint.unroll * blueprint.envs * blueprint.batch * replay.repeats // replay.every, fitting))


@cache
def _rows(algorithm: Algorithm, record: Record, lanes: int) -> Any:
    """The shapes of the rows that `prepare` makes of one unroll from every lane."""

    def kept(trajectories: Sequence[Trajectory]) -> Any:
        key = jax.random.key(0)
        return algorithm.prepare(algorithm.init(key), None, side_by_side(trajectories), key)[1].rows

    return jax.eval_shape(kept, [as_trajectory(record.empty())] * lanes)


def rows_of(blueprint: Blueprint) -> Any:
    """The rows of one unroll from every lane: a named tuple of the shapes of its arrays."""
    return _rows(blueprint.algorithm, blueprint.record, blueprint.batch)


def row_record(blueprint: Blueprint) -> Record:
    """Record of one row of the replay."""
    rows = rows_of(blueprint)
    return Record(tuple(Field(name, a.shape[2:], a.dtype.name) for name, a in zip(rows._fields, rows, strict=True)))


def blank_minibatches(blueprint: Blueprint, count: int) -> Drawn:
    """Blank minibatches with arrays [count, batch, ...], to compile with."""
    shape = (count, replay_of(blueprint).batch)
    rows = {field.name: np.zeros((*shape, *field.shape), field.dtype) for field in row_record(blueprint).fields}
    return Drawn(type(rows_of(blueprint))(**rows), np.ones(shape, np.float32))


def replay_bytes(blueprint: Blueprint) -> int:
    """The size of the full replay in bytes."""
    return replay_of(blueprint).capacity * sum(field.nbytes for field in row_record(blueprint).fields)


def is_saved(blueprint: Blueprint) -> bool:
    """Whether the replay is part of checkpoints."""
    return replay_bytes(blueprint) <= replay_of(blueprint).save_limit * 2**30


def check_memory(blueprint: Blueprint, available: int) -> None:
    """Refuse a replay that does not fit into `available` bytes."""
    replay, needed = replay_of(blueprint), replay_bytes(blueprint)
    if needed > available:
        raise BadInput(
            f"--algo.capacity is {replay.capacity}: rows of this environment would take {needed / 2**30:.1f} GiB,"
            f" and {available / 2**30:.1f} GiB are free"
        )
