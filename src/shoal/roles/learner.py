"""Who learns: takes one unroll of every actor, updates, publishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shoal.acting.collector import Collector
from shoal.acting.episodes import EpisodeTracker
from shoal.core.blueprint import Blueprint
from shoal.core.ports import Board, Slot, Stream
from shoal.core.program import Context, Part, Ports, Reply, Report, Snapshot, Steps
from shoal.core.trajectory import as_trajectory
from shoal.core.weights import to_vector
from shoal.learning.soundness import Watch
from shoal.learning.update import Update, make_update


class Trainer:
    """The learner's state and its bookkeeping, without ports: `learn` turns slots into a report."""

    def __init__(self, blueprint: Blueprint, context: Context, update: Update | None = None) -> None:
        self._blueprint = blueprint
        self._update = update or make_update(blueprint, Watch(context))
        self.version = blueprint.start
        self.state = blueprint.initial_state()
        self.actor = blueprint.algorithm.actor_state(self.state)
        self._trackers = [EpisodeTracker(blueprint.envs) for _ in range(blueprint.batch)]
        for i, tracker in enumerate(self._trackers):
            if f"episodes-{i}" in blueprint.snapshots:
                tracker.restore(blueprint.snapshots[f"episodes-{i}"])
        self._began_at = 0.0
        self._steps = 0

    def compile(self, acted: Any) -> None:
        """Compile the update ahead of the data."""
        self._update.compile(self.state, acted, self._blueprint.batch)

    def learn(self, slots: Sequence[Slot], acted: Any, waited: float, steps: int = 0) -> Report:
        """One update on one unroll of each actor, which `acted` had acted; `steps` were made before, if more than were learnt."""
        blueprint, now = self._blueprint, time.monotonic
        if not self._steps:
            self._began_at = min(float(slot["clock"][0]) for slot in slots)
        trajectories = [as_trajectory(slot) for slot in slots]
        before = now()
        progress = blueprint.progress(self.version, steps)
        self.state, self.actor, metrics = self._update(self.state, acted, trajectories, self.version, progress)
        learnt = now() - before
        lag = self.version - np.concatenate([slot["version"].ravel() for slot in slots])
        episodes = tuple(
            episode
            for slot, tracker in zip(slots, self._trackers, strict=True)
            for episode in tracker.take(slot["reward"], slot["boundary"], slot["valid"], slot["first"])
        )
        self.version += 1
        self._steps += blueprint.steps_per_update
        metrics |= {
            "lag/versions": float(lag.mean()),
            "lag/max": float(lag.max()),
            "time/collect": float(np.mean([slot["clock"][1] - slot["clock"][0] for slot in slots])),
            "time/learn": learnt,
            "time/wait": waited,
        }
        return Report(
            version=self.version,
            env_steps=self._steps,
            began_at=self._began_at,
            ended_at=now(),
            episodes=episodes,
            metrics=metrics,
            state=self.state,
            lags=dict(zip(*(n.tolist() for n in np.unique(lag, return_counts=True)), strict=True)),
        )

    def adopt(self, reply: Reply) -> None:
        """Go on with the weights that the reply brings, if it does."""
        if reply.weights is not None:
            self.state = self._blueprint.adopted(self.state, reply.weights)
            self.actor = self._blueprint.algorithm.actor_state(self.state)

    def snapshots(self) -> Snapshot:
        trackers = {f"episodes-{i}": Part(tracker.snapshot()) for i, tracker in enumerate(self._trackers)}
        return {**trackers, **self._update.snapshots()}


class Learner:
    """One learner of many actors: publishes version 0, then takes, updates and publishes for ever.

    `schedule` names the version that acted on an unroll; the learner keeps the few that may still be asked for.
    """

    def __init__(self, blueprint: Blueprint, schedule: Callable[[int], int], ports: Ports, context: Context) -> None:
        self._blueprint, self._schedule = blueprint, schedule
        self._board: Board = ports["weights"]
        self._stream: Stream = ports["unrolls"]
        self.trainer = Trainer(blueprint, context)

    def run(self) -> Steps:
        trainer, stream, lanes = self.trainer, self._stream, range(self._blueprint.actors)
        acted, driven = {trainer.version: trainer.actor}, self._blueprint.driven
        # Compiled first: actors that began now would only wait for it, and take cores from it.
        trainer.compile(trainer.actor)
        broadcast = self._publish()
        while True:
            asked, slots = time.monotonic(), []
            for lane in lanes:
                slots.append((yield from stream.take(lane)))
            waited = time.monotonic() - asked
            needed = self._schedule(trainer.version)
            acted = {version: actor for version, actor in acted.items() if version >= needed}
            report = trainer.learn(slots, acted[needed], waited)
            for lane in lanes:
                stream.release(lane)
            broadcast = broadcast if driven else self._publish()
            times = {"time/broadcast": broadcast, "queue/depth": sum(map(stream.depth, lanes))}
            trainer.adopt((yield Report(**{**vars(report), "metrics": {**report.metrics, **times}})))
            acted[trainer.version] = trainer.actor
            if driven:
                broadcast = self._publish()

    def _publish(self) -> float:
        """The newest weights, to all actors; the seconds that it took."""
        began = time.monotonic()
        self._board.publish(self.trainer.version, to_vector(self.trainer.actor))
        return time.monotonic() - began

    def snapshots(self) -> Snapshot:
        return self.trainer.snapshots()

    def close(self) -> None:
        return None


class Sequential:
    """Actors and learner in one loop: each actor in turn, then the update. No ports, no lag."""

    def __init__(self, blueprint: Blueprint, ports: Ports, context: Context) -> None:
        self._blueprint = blueprint
        self.trainer = Trainer(blueprint, context)
        self._collectors = [Collector(blueprint, i, context) for i in range(blueprint.actors)]
        self._slots = [blueprint.record.empty() for _ in range(blueprint.actors)]

    def run(self) -> Steps:
        blueprint, trainer = self._blueprint, self.trainer
        trainer.compile(trainer.actor)
        while True:
            # Through the same vector as everywhere, so that actors see the same bits on every topology.
            actor = jax.device_put(blueprint.layout.tree(to_vector(trainer.actor)))
            for collector, slot in zip(self._collectors, self._slots, strict=True):
                collector.collect(actor, trainer.version, trainer.version, slot)
            report = trainer.learn(self._slots, trainer.actor, 0.0)
            trainer.adopt((yield Report(**{**vars(report), "metrics": {**report.metrics, "time/broadcast": 0.0}})))

    def snapshots(self) -> Snapshot:
        collectors = {f"actor-{i}": Part(c.snapshot()) for i, c in enumerate(self._collectors)}
        return {**collectors, **self.trainer.snapshots()}

    def close(self) -> None:
        for collector in self._collectors:
            collector.close()
