"""Lanes: trials that train side by side in one compiled function.

Lanes of one program share all shapes; only numbers vary, which the compiled function takes as arguments. A lane computes the same
as a run under `fused` and writes the same run folder, so that `shoal train --resume` continues it. Lanes are dealt out to as many
packs as there are cores, which train at the same time. When only a quarter of the lanes is left, they are packed into narrower
programs. Widths are powers of two, so that few programs are compiled.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from shoal.acting.episodes import EpisodeTracker
from shoal.core import config as configs
from shoal.core.blueprint import Blueprint, named_leaves
from shoal.core.keys import ACTING, LEARNING, STARTS, keys_in_a_row
from shoal.core.program import Episode
from shoal.experiment import Plan
from shoal.launch.compose import make_blueprint
from shoal.learning.soundness import SOUND
from shoal.process.limits import cores
from shoal.run.checkpoints import Checkpoints
from shoal.run.folder import RunFolder
from shoal.runtimes.fused import FusedSession, Loop, Seen, one_update, side_by_side
from shoal.tuning.phases import WINDOW, Phase

VARIES = ("learning_rate", "gamma", "lam", "entropy", "clip")  # fields that are only used in arithmetic
CALL = 16  # most updates per call
KEYS = 16 * CALL  # updates whose keys are made at once, which takes hardly longer than for one call


class LaneProgram:
    """One compiled function and its lanes: runs of `plan` that differ in their seed, their budget and the fields in `VARIES`."""

    def __init__(self, plan: Plan, phase: Phase) -> None:
        self._phase, self._plan = phase, plan
        self._blueprint = make_blueprint(plan, None, None)
        names = {f.name for f in dataclasses.fields(self._plan.algo)}
        self._varies = tuple(name for name in VARIES if name in names)
        self._fresh: dict[int, Loop] = {}  # by seed: the same for all configurations
        self._packs: list[Pack] = []
        self._programs: dict[int, Any] = {}  # compiled functions by width

    def start(self, folder: Path, given: Mapping[str, Any], *, go_on: bool) -> Lane:
        """Start the run with these nested settings, or resume the one in `folder`."""
        varied = {name: value for name, value in given.get("algo", {}).items() if name in self._varies}
        own: dict[str, Any] = {name: given[name] for name in ("seed", "steps") if name in given}
        plan = dataclasses.replace(
            self._plan,
            algo=configs.replace(self._plan.algo, varied, "algo."),
            settings=configs.replace(self._plan.settings, own),
        )
        if go_on:
            loaded = Checkpoints(folder / "checkpoints").load("last")
            recent = loaded.arrays["recent"].tolist()
            return Lane(self, folder, plan, make_blueprint(plan, loaded, None), None, loaded.meta, recent)
        seed = plan.settings.seed
        blueprint = make_blueprint(plan, None, None)
        if seed not in self._fresh:
            self._fresh[seed] = FusedSession(blueprint, lambda: False).loop
        return Lane(self, folder, plan, blueprint, self._fresh[seed], {}, ())

    def train(self, lanes: list[Lane]) -> None:
        """Train these lanes for a few updates, up to the next end of a phase in any of them."""
        self._pack(lanes)
        updates = min(CALL, *(lane.updates_left(self._phase) for lane in lanes))
        width = self._packs[0].width
        if width not in self._programs:
            given = self._packs[0].arguments(self._varies, updates)
            self._programs[width] = jax.jit(self._call).lower(*given).compile()
        program = self._programs[width]
        side_by_side([partial(pack.train, program, self._varies, updates) for pack in self._packs])

    def _call(
        self, loops: Any, varied: dict[str, Any], keys: Any, progress: Any, updates: Any
    ) -> tuple[Any, Seen, Any]:
        """Train every lane for `updates` updates; the results of each are [lanes, CALL, ...]."""
        blueprint, (batched, _) = self._blueprint, self._blueprint.pure_env
        starts = blueprint.starts[0] if blueprint.starts else None

        def lane(loop: Loop, varied: dict[str, Any], keys: Any, progress: Any) -> tuple[Loop, Seen, Any]:
            base: Any = blueprint.algorithm
            algorithm = dataclasses.replace(base, config=dataclasses.replace(base.config, **varied))

            def one(loop: Loop, keys: Any, progress: Any) -> tuple[Loop, Seen, Any]:
                loop, seen, metrics = one_update(algorithm, batched, blueprint.unroll, starts, loop, keys, progress)
                return loop, seen, metrics[SOUND]

            def body(i: Any, carried: Any) -> Any:
                loop, results = carried
                loop, *found = one(loop, keys[i], progress[i])
                return loop, jax.tree.map(lambda rows, row: rows.at[i].set(row), results, tuple(found))

            _, *shapes = jax.eval_shape(one, loop, keys[0], progress[0])
            room = jax.tree.map(lambda x: jnp.zeros((CALL, *x.shape), x.dtype), tuple(shapes))
            loop, (seen, sound) = jax.lax.fori_loop(0, updates, body, (loop, room))
            return loop, seen, sound

        return jax.vmap(lane)(loops, varied, keys, progress)

    def _pack(self, lanes: list[Lane]) -> None:
        """Deal these lanes out to packs; lanes that are no longer packed keep their own loop."""
        packed = [lane for pack in self._packs for lane in pack.lanes]
        if lanes == packed:
            return
        for pack in self._packs:
            pack.release()
        each = -(-len(lanes) // min(cores(), len(lanes)))
        width = self._packs[0].width if self._packs else 0
        if each > width or 4 * each <= width:  # every width is compiled separately
            width = 1 << (each - 1).bit_length()
        self._packs = [Pack(lanes[at : at + each], width) for at in range(0, len(lanes), each)]

    def loop_of(self, lane: Lane) -> Loop:
        """The loop of a packed lane."""
        return next(pack.loop_of(pack.lanes.index(lane)) for pack in self._packs if lane in pack.lanes)


class Pack:
    """Lanes whose loops are stacked, and padded with copies of the last one to `width`."""

    def __init__(self, lanes: list[Lane], width: int) -> None:
        self.lanes, self.width = lanes, width
        loops = [lane.loop for lane in lanes]
        loops += [loops[-1]] * (width - len(loops))
        self._loops = jax.tree.map(lambda *leaves: np.stack(leaves), *loops)
        self._held: Any = None  # the same in NumPy, on demand: taking one lane's part costs no device calls there
        for lane in lanes:
            lane.loop = None

    def arguments(self, varies: Sequence[str], updates: int) -> tuple[Any, ...]:
        """Arguments of the compiled function for the next `updates` updates."""
        padded = [*self.lanes, *[self.lanes[-1]] * (self.width - len(self.lanes))]
        inputs = [lane.inputs() for lane in self.lanes]
        inputs += [inputs[-1]] * (self.width - len(inputs))
        keys, progress = (np.stack(arrays) for arrays in zip(*inputs, strict=True))
        varied = {name: np.array([getattr(lane.plan.algo, name) for lane in padded], np.float32) for name in varies}
        return self._loops, varied, keys, progress, np.int32(updates)

    def train(self, program: Any, varies: Sequence[str], updates: int) -> None:
        """Train the lanes for `updates` updates; those whose budget is spent end."""
        given = self.arguments(varies, updates)
        began = time.monotonic()
        self._held = None
        self._loops, seen, sound = program(*given)
        seen, sound = jax.tree.map(np.asarray, (seen, sound))
        took = (time.monotonic() - began) / updates
        for i, lane in enumerate(self.lanes):
            lane.take(jax.tree.map(lambda x, i=i: x[i, :updates], seen), sound[i, :updates], took)
            if lane.over:
                lane.loop = self.loop_of(i)
                lane.end("budget")

    def loop_of(self, index: int) -> Loop:
        if self._held is None:
            self._held = jax.tree.map(np.asarray, self._loops)
        found: Loop = jax.tree.map(lambda x: x[index], self._held)
        return found

    def release(self) -> None:
        """Give each lane its own loop back."""
        for i, lane in enumerate(self.lanes):
            if lane.loop is None:
                lane.loop = self.loop_of(i)


class Lane:
    """One training among others in `program`, with an ordinary run folder."""

    def __init__(
        self,
        program: LaneProgram,
        folder: Path,
        plan: Plan,
        blueprint: Blueprint,
        loop: Loop | None,
        meta: Mapping[str, Any],
        recent: Sequence[float],
    ) -> None:
        self.program, self.plan = program, plan
        self._blueprint, self.version = blueprint, blueprint.start
        self.tracker = EpisodeTracker(blueprint.envs)
        if loop is None:
            session = FusedSession(blueprint, lambda: False)
            loop, self.tracker = session.loop, session.tracker
        self.loop: Loop | None = loop
        self.code: int | None = None
        self.reason = ""
        self._keys, self._keys_from = np.zeros((0, 3, 2), np.uint32), 0  # of updates to come, and the first of them
        self._rows: list[dict[str, Any]] = []
        self._episodes, self._seconds = int(meta.get("episodes", 0)), float(meta.get("seconds", 0.0))
        self._recent, self._bad = deque(recent, maxlen=WINDOW), 0
        self._faults = 0  # since this lane was started
        self._counts = {name: int(meta.get(name, 0)) for name in ("faults", "bad_updates")}
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = RunFolder(folder)
        self._folder.write_config(plan.as_dict())

    @property
    def over(self) -> bool:
        return self.version >= self._blueprint.updates

    @property
    def _steps(self) -> int:
        return self._blueprint.spent + (self.version - self._blueprint.start) * self._blueprint.steps_per_update

    def updates_left(self, phase: Phase) -> int:
        """Updates left to the end of the phase, if that is known, and of the budget."""
        left = self._blueprint.updates - self.version
        if phase.unit != "steps":
            return left
        size, each = round(phase.amount), self._blueprint.steps_per_update
        return max(1, min(left, -(-(size - self._steps % size) // each)))

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys [CALL, 3, 2] and progress [CALL] of the next updates, the same as under `fused`."""
        blueprint = self._blueprint
        if not 0 <= self.version - self._keys_from <= len(self._keys) - CALL:
            paths = ((ACTING, 0), (LEARNING,), (STARTS, 0))
            rows = [keys_in_a_row(blueprint.seed, *path, first=self.version, count=KEYS) for path in paths]
            self._keys, self._keys_from = np.stack(rows, axis=1), self.version
        keys = self._keys[self.version - self._keys_from :][:CALL]
        made = self._steps + np.arange(CALL) * blueprint.steps_per_update
        return keys, blueprint.progress_at(made).astype(np.float32)

    def take(self, seen: Seen, sound: np.ndarray, took: float) -> None:
        """Take the results of the last call: one line of metrics per update."""
        lines = []
        ended = self.tracker.take_unrolls(seen.reward, seen.boundary, seen.valid, seen.first)
        for episodes, fine in zip(ended, sound, strict=True):
            self.version += 1
            self._seconds += took
            self._episodes += len(episodes)
            self._recent.extend(episode.ret for episode in episodes)
            self._bad = 0 if fine else self._bad + 1
            self._counts["bad_updates"] += not fine
            row = {"step": self._steps, "time": round(time.time(), 3), "speed/env_steps": float(self._steps)}
            row |= {"speed/updates": float(self.version), "speed/seconds": self._seconds, **_of(episodes)}
            lines.append(row)
        if lost := int(seen.lost.sum()):
            lines[-1]["fault/env_nan"] = 1.0
            self._fault(f"{lost} episodes dropped in {len(sound)} updates: an observation or a reward was not finite")
        with self._folder.metrics_path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in lines))
        self._rows += lines
        if self._bad >= self.plan.settings.max_bad_updates:
            self.code, self.reason = 1, f"{self._bad} consecutive updates gave values that are not finite"

    def _fault(self, detail: str) -> None:
        """Count and log a fault of the environments, as an ordinary run does."""
        self._faults += 1
        self._counts["faults"] += 1
        self._folder.log(f"loop env_nan\n{self.plan.source.name}: {detail}")
        most = self.plan.settings.max_faults
        if self._faults > most:
            self.code, self.reason = 1, f"{self._faults} faults, more than --max-faults {most}: env_nan: {detail}"

    def rows(self) -> list[dict[str, Any]]:
        rows, self._rows = self._rows, []
        return rows

    def pause(self) -> None:
        self.end("paused")

    def stop(self) -> None:
        self.end("stopped")

    def kill(self) -> None:
        if self.code is None:
            self.code, self.reason = -9, "killed"

    def end(self, why: str) -> None:
        """Write a checkpoint from which this lane, or `shoal train --resume`, continues."""
        if self.code is not None:
            return
        loop = self.loop if self.loop is not None else self.program.loop_of(self)
        parts = {"loop": named_leaves(loop.acting)}
        parts["episodes-0"] = self.tracker.snapshot()
        arrays = {f"state/{name}": np.asarray(array) for name, array in named_leaves(loop.learner).items()}
        for part, leaves in parts.items():
            arrays |= {f"part/{part}/{leaf}": np.asarray(array) for leaf, array in leaves.items()}
        arrays["recent"] = np.asarray(self._recent, np.float64)
        config = {name: value for name, value in self.plan.as_dict().items() if name != "spec"}
        meta: dict[str, Any] = {"version": self.version, "env_steps": self._steps, "seconds": self._seconds}
        meta |= {
            "episodes": self._episodes,
            "lags": {"0": self._steps},
            "lasting": [],
            "config": config,
            **self._counts,
        }
        meta |= {"spec": msgspec.to_builtins(self.plan.spec)}
        Checkpoints(self._folder.checkpoints, keep=self.plan.settings.keep).save(self._steps, arrays, meta)
        summary = {"ended": why, "env_steps": self._steps, "episodes": self._episodes, "run": str(self._folder.path)}
        self._folder.write_json(self._folder.summary_path, summary)
        self.code = 0


def _of(episodes: Sequence[Episode]) -> dict[str, float]:
    """Metrics of episodes, without the quantiles of an ordinary run, which would take longer than the update."""
    if not episodes:
        return {}
    count = len(episodes)
    mean, length = sum(one.ret for one in episodes) / count, sum(one.length for one in episodes) / count
    return {"episode/return": mean, "episode/length": length, "episode/count": float(count)}
