"""Learners: the loop that takes unrolls, updates and publishes, and the loop that acts and learns in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import jax
import numpy as np

from shoal.acting.collector import Collector
from shoal.acting.episodes import EpisodeTracker
from shoal.core.algorithm import LearnerState
from shoal.core.blueprint import Blueprint
from shoal.core.ports import Board, Op, Slot, Stream
from shoal.core.program import Context, Part, Ports, Reply, Report, Snapshot, Steps
from shoal.core.telemetry import lags_of
from shoal.core.trajectory import as_trajectory
from shoal.core.weights import to_vector
from shoal.learning.handed_in import adopted
from shoal.learning.soundness import Watch
from shoal.learning.update import Update, make_update

Schedule = Callable[[int], int]  # the version that acts on an unroll


class Trainer:
    """The learner's state and its bookkeeping, without ports: `learn` turns slots into a report."""

    def __init__(self, blueprint: Blueprint, context: Context, update: Update | None = None) -> None:
        self._blueprint = blueprint
        self._update = update or make_update(blueprint, Watch(context))
        self.version = blueprint.start
        self._trackers = [EpisodeTracker(blueprint.envs) for _ in range(blueprint.batch)]
        for i, tracker in enumerate(self._trackers):
            if f"episodes-{i}" in blueprint.snapshots:
                tracker.restore(blueprint.snapshots[f"episodes-{i}"])
        self._began_at = 0.0
        self._steps = 0

    @cached_property
    def state(self) -> LearnerState:
        """The state of the newest version."""
        return self._blueprint.initial_state()

    @cached_property
    def actor(self) -> Any:
        """The acting part of the newest version."""
        return self._blueprint.algorithm.actor_state(self.state)

    def compile(self, holds_acting_weights: bool) -> None:
        """Compile the update ahead of the data, by shapes: another thread may still be making the first weights."""
        blueprint = self._blueprint
        acted = blueprint.actor_shapes if holds_acting_weights else None
        self._update.compile(blueprint.state_shapes, acted, blueprint.batch)

    def learn(self, slots: Sequence[Slot], acted: Any, waited: float, steps: int = 0) -> Report:
        """One update on one unroll from each actor. `acted` are the weights that acted; `steps` counts environment steps made
        before, if more than were learnt from."""
        blueprint, now = self._blueprint, time.monotonic
        if not self._steps:
            self._began_at = min(float(slot["clock"][0]) for slot in slots)
        trajectories = [as_trajectory(slot) for slot in slots]
        before = now()
        progress = blueprint.progress(self.version, steps)
        self.state, self.actor, metrics = self._update(self.state, acted, trajectories, self.version, progress)
        learnt = now() - before
        lag = lags_of(self.version, *(slot["version"] for slot in slots))
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
        """Adopt what the reply hands in, if anything."""
        if reply.brings:
            self.state = adopted(self._blueprint.algorithm, self.state, reply)
            self.actor = self._blueprint.algorithm.actor_state(self.state)

    def snapshots(self) -> Snapshot:
        trackers = {f"episodes-{i}": Part(tracker.snapshot()) for i, tracker in enumerate(self._trackers)}
        return {**trackers, **self._update.snapshots()}


class Feed(Protocol):
    """A learner's source of batches: the part that differs between topologies with a single learner."""

    @property
    def update(self) -> Update | None:
        """The update to use; None for the one that fits the algorithm."""

    def batch(self, version: int) -> Generator[Op[Any], Any, Sequence[Slot] | None]:
        """The unrolls that lead from `version` to the next; None if all actors have ended and none is left."""

    def release(self) -> None:
        """Free the slots of the batch, which has been learnt from."""

    def announce(self, version: int, state: LearnerState) -> None:
        """Publish data that must be readable before the weights of `version`."""

    def complete(self, report: Report) -> Report:
        """The report with the feed's own counts and depths; also steps, episodes or state, if they differ from the batch's."""

    def rest(self, report: Report | None) -> Generator[Op[Any], Any, Report | None]:
        """A final report after the last batch, if there is anything left to report; `report` is the previous one."""


class Learner:
    """The loop of a single learner: take a batch, update, publish, report.

    `make_feed(blueprint, ports, context)` makes the source of batches. `schedule` names the version that acted on a version's
    batch, and the learner keeps the few versions that may still be named; it is None if actors take the newest weights.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        schedule: Schedule | None,
        make_feed: Callable[[Blueprint, Ports, Context], Feed],
        ports: Ports,
        context: Context,
    ) -> None:
        self._schedule, self._driven = schedule, blueprint.driven
        self._board: Board = ports["weights"]
        self._feed = make_feed(blueprint, ports, context)
        self.trainer = Trainer(blueprint, context, self._feed.update)
        self._acted: dict[int, Any] = {}

    def run(self) -> Steps:
        trainer, feed = self.trainer, self._feed
        # Compile before publishing: actors that started now would only wait, and take cores from compiling.
        trainer.compile(holds_acting_weights=self._schedule is not None)
        self._acted[trainer.version] = trainer.actor
        broadcast, report = self._publish(), None
        while True:
            asked = time.monotonic()
            slots = yield from feed.batch(trainer.version)
            if slots is None:
                if (report := (yield from feed.rest(report))) is not None:
                    yield report
                return
            waited = time.monotonic() - asked
            report = trainer.learn(slots, self._acting_weights(), waited, 0 if report is None else report.env_steps)
            # Publish before freeing the slots, so that an actor that waited for room finds the weights its unroll led to.
            if not self._driven:
                broadcast = self._publish()
                feed.release()
            report = feed.complete(report)
            trainer.state = report.state
            report = replace(report, metrics={**report.metrics, "time/broadcast": broadcast})
            trainer.adopt((yield report))
            if self._driven:
                broadcast = self._publish()
                feed.release()
            self._acted[trainer.version] = trainer.actor

    def _acting_weights(self) -> Any:
        """The weights that acted on the current batch; None if the learner does not hold them."""
        if self._schedule is None:
            return None
        needed = self._schedule(self.trainer.version)
        self._acted = {version: actor for version, actor in self._acted.items() if version >= needed}
        return self._acted[needed]

    def _publish(self) -> float:
        """Publish the newest weights. Returns the seconds that it took."""
        trainer, began = self.trainer, time.monotonic()
        self._feed.announce(trainer.version, trainer.state)
        self._board.publish(trainer.version, to_vector(trainer.actor))
        return time.monotonic() - began

    def snapshots(self) -> Snapshot:
        return self.trainer.snapshots()

    def close(self) -> None:
        return None


class OneOfEach:
    """The feed of `sync`: one unroll from every actor, lane by lane."""

    update: Update | None = None

    def __init__(self, blueprint: Blueprint, ports: Ports, context: Context) -> None:
        self._stream: Stream = ports["unrolls"]
        self._lanes = range(self._stream.lanes)

    def batch(self, version: int) -> Generator[Op[Any], Any, Sequence[Slot] | None]:
        slots = []
        for lane in self._lanes:
            slots.append((yield from self._stream.take(lane)))
        return slots

    def release(self) -> None:
        for lane in self._lanes:
            self._stream.release(lane)

    def announce(self, version: int, state: LearnerState) -> None:
        return None

    def complete(self, report: Report) -> Report:
        depth = {"queue/depth": float(sum(map(self._stream.depth, self._lanes)))}
        return replace(report, metrics={**report.metrics, **depth})

    def rest(self, report: Report | None) -> Generator[Op[Any], Any, Report | None]:
        """None: these actors never end."""
        yield from ()
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
        trainer.compile(holds_acting_weights=True)
        while True:
            # Through the same vector as in other topologies, so that actors see the same bits everywhere.
            actor = jax.device_put(blueprint.layout.tree(to_vector(trainer.actor)))
            for collector, slot in zip(self._collectors, self._slots, strict=True):
                collector.collect(actor, trainer.version, trainer.version, slot)
            report = trainer.learn(self._slots, trainer.actor, 0.0)
            trainer.adopt((yield Report(**{**vars(report), "metrics": {**report.metrics, "time/broadcast": 0.0}})))

    def snapshots(self) -> Snapshot:
        collectors = {f"actor-{i}": Part(c.snapshot()) for i, c in enumerate(self._collectors)}
        return {**collectors, **self.trainer.snapshots()}

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # closes all of them, even if some raise
            for collector in self._collectors:
                stack.callback(collector.close)
