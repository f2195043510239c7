"""`fused`: environments, acting and learning in one compiled loop. For JAX-native environments; carries `sequential` alone.

The loop makes as many updates a call as fit into a quarter of a second, so that progress is shown and a stop is heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import BadInput
from shoal.core.keys import ACTING, LEARNING, key_data
from shoal.core.program import Program, Report
from shoal.core.trajectory import Array, Trajectory
from shoal.roles.compiled import act, update
from shoal.roles.episodes import EpisodeTracker
from shoal.roles.parts import Parts, named_leaves, restore_leaves
from shoal.runtimes.session import Event

CALL_SECONDS = 0.25
MOST_STEPS = 1 << 19  # of a call: bounds the memory that its rewards take
MOST_UPDATES = 1024


@dataclass(frozen=True, kw_only=True)
class FusedConfig:
    """Nothing to set."""


class Fused:
    Config = FusedConfig
    provides: frozenset[str] = frozenset()
    overlaps = False
    about = "the whole loop compiled into one function: for JAX-native environments, with topology sequential"

    def __init__(self, config: FusedConfig) -> None:
        self.config = config

    def start(self, program: Program, stopping: Callable[[], bool]) -> FusedSession:
        parts = program.whole
        if parts is None:
            raise BadInput("--runtime fused carries --topology sequential alone")
        if parts.pure_env is None:
            raise BadInput("--runtime fused needs a JAX-native environment; `shoal envs` lists them")
        if parts.actors != 1:
            raise BadInput(
                f"--actors is {parts.actors}: --runtime fused has one actor; use --envs for more environments"
            )
        return FusedSession(parts, stopping)


class Loop(NamedTuple):
    """All that goes round."""

    learner: Any
    actor: Any
    envs: Any
    carry: Any
    first: Array  # [B]


class Seen(NamedTuple):
    """What the host wants to know of each update: [updates, T, B]."""

    reward: Array
    boundary: Array
    valid: Array
    first: Array


class FusedSession:
    def __init__(self, parts: Parts, stopping: Callable[[], bool]) -> None:
        self._parts, self._stopping = parts, stopping
        batched, key = parts.pure_env
        learner = parts.initial_state()
        self._loop = Loop(
            learner=learner,
            actor=parts.algorithm.actor_state(learner),
            envs=jax.jit(batched.init)(key),
            carry=parts.algorithm.initial_carry(parts.envs),
            first=jnp.ones(parts.envs, bool),
        )
        self._tracker = EpisodeTracker(parts.envs)
        if "loop" in parts.snapshots:
            moving = {"envs": self._loop.envs, "carry": self._loop.carry, "first": self._loop.first}
            self._loop = self._loop._replace(**restore_leaves(moving, parts.snapshots["loop"]))
            self._tracker.restore(parts.snapshots["episodes-0"])
        self._capacity = int(np.clip(MOST_STEPS // parts.steps_per_update, 1, MOST_UPDATES))

    def __iter__(self) -> Iterator[Event]:
        parts, size = self._parts, self._capacity
        keys = np.zeros((size, 2, 2), np.uint32)
        progress = np.zeros(size, np.float32)
        call = jax.jit(self._call).lower(self._loop, keys, progress, np.int32(0)).compile()
        version, updates = parts.start, 1
        began = time.monotonic()
        while not self._stopping():
            updates = max(1, min(updates, size, parts.updates - version))
            for i in range(updates):
                keys[i] = key_data(parts.seed, ACTING, 0, version + i), key_data(parts.seed, LEARNING, version + i)
                progress[i] = (version + i) / max(1, parts.updates)
            before = time.monotonic()
            self._loop, seen, metrics = call(self._loop, keys, progress, np.int32(updates))
            seen = Seen(*(np.asarray(array) for array in seen))
            took = time.monotonic() - before
            version += updates
            episodes = tuple(
                episode
                for i in range(updates)
                for episode in self._tracker.take(seen.reward[i], seen.boundary[i], seen.valid[i], seen.first[i])
            )
            yield Report(
                version=version,
                env_steps=(version - parts.start) * parts.steps_per_update,
                began_at=began,
                ended_at=time.monotonic(),
                episodes=episodes,
                metrics={f"loss/{n}": float(np.mean(np.asarray(m)[:updates])) for n, m in metrics.items()}
                | {"lag/versions": 0.0, "lag/max": 0.0},
                state=self._loop.learner,
            )
            updates = max(1, int(updates * min(4.0, CALL_SECONDS / took)))

    def _call(self, loop: Loop, keys: Array, progress: Array, updates: Array) -> tuple[Loop, Seen, Any]:
        """`updates` updates, at most as many as there are keys; what is seen of each is written in its place."""
        _, seen, metrics = jax.eval_shape(self._one, loop, keys[0], progress[0])
        room = jax.tree.map(lambda x: jnp.zeros((self._capacity, *x.shape), x.dtype), (seen, metrics))

        def body(i: Array, carried: Any) -> Any:
            loop, room = carried
            loop, seen, metrics = self._one(loop, keys[i], progress[i])
            return loop, jax.tree.map(lambda all_, one: all_.at[i].set(one), room, (seen, metrics))

        loop, (seen, metrics) = jax.lax.fori_loop(0, updates, body, (loop, room))
        return loop, seen, metrics

    def _one(self, loop: Loop, keys: Array, progress: Array) -> tuple[Loop, Seen, Any]:
        """Collect an unroll and learn from it."""
        algorithm, (batched, _) = self._parts.algorithm, self._parts.pure_env
        explore = jnp.ones(self._parts.envs, jnp.float32)
        if algorithm.experience.fresh:
            loop = loop._replace(envs=batched.restart(loop.envs), first=jnp.ones_like(loop.first))

        def step(moving: Any, t: Array) -> Any:
            envs, carry, first = moving
            action, extras, carry = act(algorithm, loop.actor, envs.obs, carry, first, keys[0], t, explore)
            was_ended = envs.ended
            after, (_, reward, terminated, truncated) = batched.step(envs, action)
            row = {
                "obs": envs.obs,
                "action": action,
                "reward": reward,
                "discount": (~(terminated | was_ended)).astype(jnp.float32),
                "boundary": terminated | truncated,
                "valid": ~was_ended,
                "first": first,
                "extras": extras,
            }
            return (after, carry, was_ended), row

        moving = (loop.envs, loop.carry, loop.first)
        (envs, carry, first), rows = jax.lax.scan(step, moving, jnp.arange(self._parts.unroll))
        whole = {
            **rows,
            "obs": jnp.concatenate([rows["obs"], envs.obs[None]]),
            "first": jnp.concatenate([rows["first"], first[None]]),
        }
        version = jnp.zeros(rows["reward"].shape, jnp.int32)
        trajectory = Trajectory(**whole, carry=loop.carry, version=version)
        learner, actor, metrics = update(algorithm, loop.learner, loop.actor, [trajectory], keys[1], progress)
        seen = Seen(rows["reward"], rows["boundary"], rows["valid"], rows["first"])
        return Loop(learner, actor, envs, carry, first), seen, metrics

    def snapshots(self) -> dict[str, dict[str, np.ndarray]]:
        moving = {"envs": self._loop.envs, "carry": self._loop.carry, "first": self._loop.first}
        return {"loop": named_leaves(moving), "episodes-0": self._tracker.snapshot()}

    def close(self) -> None:
        return None

    def abort(self) -> None:
        return None
