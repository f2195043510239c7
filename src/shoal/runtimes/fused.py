"""`fused`: environments, acting and learning in one compiled loop. For JAX-native environments; runs `sequential` only.

A call makes as many updates as fit into a quarter of a second, so that progress is shown and a stop is noticed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.acting.compiled_act import act
from shoal.acting.episodes import EpisodeTracker
from shoal.core.algorithm import Algorithm
from shoal.core.blueprint import Blueprint, fitting, named_leaves, restore_leaves
from shoal.core.errors import BadInput
from shoal.core.keys import ACTING, LEARNING, STARTS, key_data, keys_in_a_row
from shoal.core.program import Context, Fault, Part, Program, Reply, Report, Snapshot
from shoal.core.telemetry import metric_name, over_all
from shoal.core.trajectory import Array, Trajectory
from shoal.learning import fused_replay
from shoal.learning.compiled_update import update
from shoal.learning.handed_in import adopted
from shoal.learning.replay_update import REPLAY, is_saved
from shoal.learning.soundness import SOUND, Watch, kept, largest, seen_in
from shoal.runtimes.session import Event, Events

CALL_SECONDS = 0.25
MOST_STEPS = 1 << 19  # per call: bounds the memory for its rewards
MOST_UPDATES = 1024
LOOK_BYTES = 1 << 28  # per call: bounds the memory for learners that are kept for reports
SEEN = "seen/largest"  # metric: the largest observation and reward of a dropped update


def side_by_side(calls: Sequence[Callable[[], None]]) -> None:
    """Make these calls at the same time, a thread each, and return once all have ended. Raises what the first failing one raised.

    Compiled functions release the interpreter's lock, so each call may fill a core.
    """
    if len(calls) == 1:
        calls[0]()
        return
    with ThreadPoolExecutor(len(calls), thread_name_prefix="shoal-fused") as pool:
        for pending in [pool.submit(call) for call in calls]:
            pending.result()


@dataclass(frozen=True, kw_only=True)
class FusedConfig:
    """Nothing to set."""


class Fused:
    Config = FusedConfig
    provides: frozenset[str] = frozenset()
    overlaps = False
    needs_pure_env = True
    spawns = True
    about = "the whole loop compiled into one function: for JAX-native environments, with topology sequential"

    def __init__(self, config: FusedConfig) -> None:
        self.config = config

    @staticmethod
    def join() -> None:
        return None

    @staticmethod
    def step_timeout(config: FusedConfig) -> float | None:
        return None

    @staticmethod
    def places(config: FusedConfig, learners: int) -> int | None:
        return 1

    def start(self, program: Program, stopping: Callable[[], bool]) -> FusedSession:
        blueprint = program.whole
        if blueprint is None:
            raise BadInput("--runtime fused runs --topology sequential only")
        if blueprint.pure_env is None:
            raise BadInput("--runtime fused needs a JAX-native environment; `shoal envs` lists them")
        if blueprint.actors != 1:
            raise BadInput(
                f"--actors is {blueprint.actors}: --runtime fused has one actor; use --envs for more environments"
            )
        if blueprint.algorithm.replays:
            fused_replay.check(blueprint)
        return FusedSession(blueprint, stopping)


class Loop(NamedTuple):
    """The state that the compiled loop carries."""

    learner: Any
    actor: Any
    envs: Any
    carry: Any
    first: Array  # [B]
    starts: Any  # state of the sampler of starts
    replay: Any = ()  # a `DeviceReplay`, for algorithms that learn from one

    @property
    def acting(self) -> dict[str, Any]:
        """The part that steps environments: what a snapshot holds besides the learner's state and the replay."""
        return {"envs": self.envs, "carry": self.carry, "first": self.first, "starts": self.starts}


class Seen(NamedTuple):
    """The rows of each update that the host needs: [updates, T, B]."""

    reward: Array
    boundary: Array
    valid: Array
    first: Array
    lost: Array  # [updates] episodes dropped because of NaN or infinity


class Found(NamedTuple):
    """The results that a call returns to the host."""

    seen: Seen
    metrics: Any  # [updates] each
    learners: Any  # [looks, ...]; () without looks


class FusedSession:
    def __init__(self, blueprint: Blueprint, stopping: Callable[[], bool]) -> None:
        self._blueprint, self._stopping = blueprint, stopping
        batched, key = blueprint.pure_env
        self._starts: Any = blueprint.starts[0] if blueprint.starts else None
        starts_key = jax.random.wrap_key_data(jnp.asarray(key_data(blueprint.seed, STARTS, 0)))
        learner = blueprint.initial_state()
        self.loop = Loop(
            learner=learner,
            actor=blueprint.algorithm.actor_state(learner),
            envs=jax.jit(batched.init)(key),
            carry=blueprint.algorithm.initial_carry(blueprint.envs),
            first=jnp.ones(blueprint.envs, bool),
            starts=() if self._starts is None else self._starts.init(starts_key),
        )
        self._replays = blueprint.algorithm.replays
        if self._replays:
            saved = blueprint.snapshots.get(REPLAY)
            ring = fused_replay.empty(blueprint) if saved is None else fused_replay.restored(blueprint, saved)
            self.loop = self.loop._replace(replay=ring)
        self.tracker = EpisodeTracker(blueprint.envs)
        if "loop" in blueprint.snapshots:
            saved, carry = blueprint.snapshots["loop"], named_leaves({"carry": self.loop.carry})
            # The carry depends on settings that may change in a resumed run, such as the kind of noise.
            moving = restore_leaves(self.loop.acting, {**saved, **fitting(saved, carry)})
            self.loop = self.loop._replace(**moving)
            self.tracker.restore(blueprint.snapshots["episodes-0"])
        self._faults: deque[Fault] = deque()
        self._watch = Watch(Context(name="loop", fault=self._faults.append))
        self._capacity = self._most_updates()

    def _most_updates(self) -> int:
        """Updates per call, at most: as the steps allow, and as many learners as there is room for if some are to be kept."""
        blueprint = self._blueprint
        most, every = int(np.clip(MOST_STEPS // blueprint.steps_per_update, 1, MOST_UPDATES)), blueprint.report_every
        if not every:
            return most
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(self.loop.learner))
        kept = 1 if blueprint.driven else max(1, LOOK_BYTES // size)  # a driven run ends its call at each report
        return min(most, every * kept)

    def __iter__(self) -> Events:
        """Run each call in a thread of its own while the caller handles the results of the previous one.

        A driven run waits for the caller's reply before the next call, and ends a call when a report is due.
        """
        blueprint, size = self._blueprint, self._capacity
        keys, progress = np.zeros((size, 3, 2), np.uint32), np.zeros(size, np.float32)
        call = jax.jit(self._call).lower(self.loop, keys, progress, np.int32(0), np.int32(0)).compile()
        began = time.monotonic()

        def run(loop: Loop, version: int, updates: int) -> tuple[Loop, Found, float]:
            keys, progress = self._inputs(version, updates)
            before = time.monotonic()
            loop, found = call(loop, keys, progress, np.int32(version), np.int32(updates))
            return loop, jax.tree.map(np.asarray, found), time.monotonic() - before

        version, updates = blueprint.start, self._fitting(blueprint.start, 1)
        with ThreadPoolExecutor(1, thread_name_prefix="shoal-fused") as pool:
            pending = pool.submit(run, self.loop, version, updates)
            while updates:
                loop, found, took = pending.result()
                ended, done, version = time.monotonic(), updates, version + updates
                updates = 0 if self._stopping() else self._fitting(version, int(done * min(4.0, CALL_SECONDS / took)))
                if updates and not blueprint.driven:
                    pending = pool.submit(run, loop, version, updates)
                self.loop = loop
                reply = yield from self._events(found, version, done, began, ended)
                if reply.brings:
                    learner = adopted(blueprint.algorithm, loop.learner, reply)
                    self.loop = loop._replace(learner=learner, actor=blueprint.algorithm.actor_state(learner))
                if updates and blueprint.driven:
                    pending = pool.submit(run, self.loop, version, updates)

    def _fitting(self, version: int, wanted: int) -> int:
        """The number of updates in the next call; 0 when the budget is spent."""
        every = self._blueprint.report_every if self._blueprint.driven else 0
        most = every - version % every if every else self._capacity
        return min(max(1, wanted), most, self._capacity, self._blueprint.updates - version)

    def _inputs(self, version: int, updates: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and progress of each update of a call."""
        blueprint, seed, size = self._blueprint, self._blueprint.seed, self._capacity
        keys = np.zeros((size, 3, 2), np.uint32)
        for i, path in enumerate(((ACTING, 0), (LEARNING,), (STARTS, 0))):
            keys[:updates, i] = keys_in_a_row(seed, *path, first=version, count=updates)
        made = blueprint.spent + (version - blueprint.start + np.arange(size)) * blueprint.steps_per_update
        return keys, blueprint.progress_at(made).astype(np.float32)

    def _events(
        self, found: Found, version: int, updates: int, began: float, ended: float
    ) -> Generator[Event, Reply | None, Reply]:
        """Yield the faults and the report of a call; return the reply."""
        blueprint, seen = self._blueprint, found.seen
        lost = int(seen.lost[:updates].sum())
        if lost:
            name = blueprint.algorithm.task.spec.name
            what = f"{name}: {lost} episodes dropped in {updates} updates: an observation or a reward was not finite"
            yield Fault(role="loop", kind="env_nan", detail=what)
        metrics = {name: np.asarray(values)[:updates] for name, values in found.metrics.items()}
        fine, largest_seen = metrics.pop(SOUND), metrics.pop(SEEN)
        yield from self._judged(fine, largest_seen, metrics)
        if not fine.all() and fine.any():  # leave out dropped updates
            metrics = {name: values[fine] for name, values in metrics.items()}
        if self._replays:  # updates without a gradient have no losses
            metrics = {name: values[~np.isnan(values)] for name, values in metrics.items()}
            metrics = {name: values for name, values in metrics.items() if len(values)}
        rows = (seen.reward, seen.boundary, seen.valid, seen.first)
        in_a_row = (array[:updates].reshape(-1, blueprint.envs) for array in rows)  # the updates one after another
        episodes = tuple(self.tracker.take(*in_a_row))
        reply = yield Report(
            version=version,
            env_steps=(version - blueprint.start) * blueprint.steps_per_update,
            began_at=began,
            ended_at=ended,
            episodes=episodes,
            metrics={metric_name(n): over_all(n, m) for n, m in metrics.items()}
            | {"lag/versions": 0.0, "lag/max": 0.0},
            state=self.loop.learner,
            lags={0: updates * blueprint.steps_per_update},
            looks=self._looks(found.learners, version - updates, version),
        )
        return reply or Reply()

    def _judged(self, fine: np.ndarray, largest_seen: np.ndarray, metrics: dict[str, np.ndarray]) -> Iterator[Event]:
        """Yield a fault for each dropped update of a call, with the numbers seen in it."""
        if fine.all():
            self._watch.good()
            return
        for i, good in enumerate(fine):
            if good:
                self._watch.good()
                continue
            numbers = {name: float(values[i]) for name, values in metrics.items()}
            numbers |= dict(zip(("seen/obs", "seen/reward"), largest_seen[i].tolist(), strict=True))
            self._watch.bad(seen_in(self._blueprint.algorithm, self.loop.learner, numbers))
        while self._faults:
            yield self._faults.popleft()

    def _looks(self, learners: Any, before: int, after: int) -> list[tuple[int, Any]]:
        every = self._blueprint.report_every
        if not every:
            return []
        passed = range(before // every + 1, after // every + 1)
        return [(k * every, jax.tree.map(itemgetter(k - passed.start), learners)) for k in passed]

    def _call(self, loop: Loop, keys: Array, progress: Array, version: Array, updates: Array) -> tuple[Loop, Found]:
        """Make `updates` updates, at most as many as there are keys; the results of update i are written to row i.

        With `report_every`, the learner is written after each update too, to the row of its look: the last write stays.
        """
        every = self._blueprint.report_every
        _, seen, metrics = jax.eval_shape(self._one, loop, keys[0], progress[0])

        def room(size: int, tree: Any) -> Any:
            return jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), tree)

        def write(all_: Any, i: Array, one: Any) -> Any:
            return jax.tree.map(lambda rows, row: rows.at[i].set(row), all_, one)

        def body(i: Array, carried: tuple[Loop, Found]) -> tuple[Loop, Found]:
            loop, found = carried
            loop, seen, metrics = self._one(loop, keys[i], progress[i])
            learners = found.learners
            if every:
                learners = write(learners, (version + i) // every - version // every, loop.learner)
            return loop, Found(write(found.seen, i, seen), write(found.metrics, i, metrics), learners)

        looks = room(self._capacity // every + 2, loop.learner) if every else ()
        found = Found(room(self._capacity, seen), room(self._capacity, metrics), looks)
        loop, found = jax.lax.fori_loop(0, updates, body, (loop, found))
        return loop, found

    def _one(self, loop: Loop, keys: Array, progress: Array) -> tuple[Loop, Seen, Any]:
        blueprint, (batched, _) = self._blueprint, self._blueprint.pure_env
        learn = self._from_replay if self._replays else from_unroll
        return one_update(blueprint.algorithm, batched, blueprint.unroll, self._starts, loop, keys, progress, learn)

    def _from_replay(self, _: Algorithm, loop: Loop, trajectory: Trajectory, key: Array, progress: Array) -> Any:
        given = (loop.learner, loop.actor, trajectory, key, progress)
        return fused_replay.replay_update(self._blueprint, loop.replay, *given)

    def snapshots(self, exact: bool = True) -> Snapshot:
        parts: Snapshot = {}
        if exact:
            parts = {"loop": Part(named_leaves(self.loop.acting)), "episodes-0": Part(self.tracker.snapshot())}
        if self._replays and is_saved(self._blueprint):
            parts[REPLAY] = Part(fused_replay.snapshot(self.loop.replay), lasts=True)
        return parts

    def close(self) -> list[Fault]:
        return []

    def abort(self) -> None:
        return None


def from_unroll(algorithm: Algorithm, loop: Loop, trajectory: Trajectory, key: Array, progress: Array) -> Any:
    """Learn from the unroll alone: (learner's state, replay, metrics)."""
    after, _, metrics = update(algorithm, loop.learner, loop.actor, [trajectory], key, progress)
    return after, loop.replay, metrics


Learn = Callable[[Algorithm, Loop, Trajectory, Array, Array], Any]


def one_update(
    algorithm: Algorithm,
    batched: Any,
    unroll: int,
    starts: Any,
    loop: Loop,
    keys: Array,
    progress: Array,
    learn: Learn = from_unroll,
) -> tuple[Loop, Seen, Any]:
    """Collect an unroll of `batched` environments and learn from it; `starts` samples initial states, None leaves them alone."""
    count = len(loop.first)
    explore = jnp.ones(count, jnp.float32)
    if algorithm.experience.fresh:
        if starts is None:
            envs, remembered = batched.restart(loop.envs), loop.starts
        else:
            key = jax.random.wrap_key_data(keys[2])
            chosen, remembered = starts.sample(loop.starts, loop.actor, key, count)
            envs = batched.begin_at(loop.envs, chosen)
        loop = loop._replace(envs=envs, starts=remembered, first=jnp.ones_like(loop.first))

    def step(moving: Any, t: Array) -> Any:
        envs, carry, first = moving
        action, extras, carry = act(algorithm, loop.actor, envs.obs, carry, first, keys[0], t, explore)
        was_ended = envs.ended
        after, (_, reward, terminated, truncated) = batched.step(envs, action)
        # NaN or infinity ends the episode here: the value is blanked, and the next row begins another episode.
        lost = ~(jnp.isfinite(reward) & jnp.isfinite(after.obs.reshape(len(reward), -1)).all(axis=1))
        shaped = lost.reshape(lost.shape + (1,) * (after.obs.ndim - 1))
        after = after._replace(obs=jnp.where(shaped, 0, after.obs), ended=after.ended | lost)
        row = {
            "obs": envs.obs,
            "action": action,
            "reward": jnp.where(lost, 0.0, reward),
            "discount": (~(terminated | was_ended | lost)).astype(jnp.float32),
            "boundary": terminated | truncated | lost,
            "valid": ~(was_ended | lost),
            "first": first,
            "extras": extras,
            "lost": lost,
        }
        return (after, carry, was_ended), row

    moving = (loop.envs, loop.carry, loop.first)
    (envs, carry, first), rows = jax.lax.scan(step, moving, jnp.arange(unroll))
    lost = rows.pop("lost")
    whole = {
        **rows,
        "obs": jnp.concatenate([rows["obs"], envs.obs[None]]),
        "first": jnp.concatenate([rows["first"], first[None]]),
    }
    version = jnp.zeros(rows["reward"].shape, jnp.int32)
    trajectory = Trajectory(**whole, carry=loop.carry, version=version)
    after, replay, metrics = learn(algorithm, loop, trajectory, keys[1], progress)
    fine = metrics[SOUND]
    learner = kept(fine, after, loop.learner)
    metrics |= {SEEN: jax.lax.cond(fine, lambda: jnp.zeros(2), lambda: largest([trajectory]))}
    seen = Seen(rows["reward"], rows["boundary"], rows["valid"], rows["first"], lost.sum())
    return Loop(learner, algorithm.actor_state(learner), envs, carry, first, loop.starts, replay), seen, metrics
