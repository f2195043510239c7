"""Updates: from one version of the weights to the next, on fresh unrolls or on a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from shoal.core.algorithm import ActorState, LearnerState
from shoal.core.blueprint import Blueprint
from shoal.core.keys import LEARNING, key_data
from shoal.core.program import Snapshot
from shoal.core.telemetry import metric_name
from shoal.core.trajectory import Trajectory, as_trajectory
from shoal.learning.compiled_update import compiled_update, update
from shoal.learning.replay_update import ReplayMemory, ReplayUpdate
from shoal.learning.soundness import SOUND, Watch, seen_in
from shoal.process.compile_ahead import compile_ahead


class Update(Protocol):
    """An update from one version of the weights to the next."""

    def compile(self, state: LearnerState, acted: Any, lanes: int) -> None:
        """Compile ahead of the data, for batches of `lanes` unrolls."""

    def __call__(
        self, state: LearnerState, acted: Any, trajectories: Sequence[Trajectory], version: int, progress: float
    ) -> tuple[LearnerState, ActorState, dict[str, float]]:
        """(state, its acting part, metrics) after learning from one unroll of every lane; `acted` are the weights that acted.

        An update with a result that is not finite is dropped: the state is the one before it.
        """

    def snapshots(self) -> Snapshot:
        """The data that a successor needs besides the state, by part."""


class UnrollUpdate:
    """An update that uses each unroll once: `prepare`, then epochs x minibatches, in one call."""

    def __init__(self, blueprint: Blueprint, watch: Watch) -> None:
        self._blueprint, self._watch = blueprint, watch
        self._update = compiled_update(blueprint.algorithm)

    def compile(self, state: LearnerState, acted: Any, lanes: int) -> None:
        slot = as_trajectory(self._blueprint.record.empty())
        args = (state, acted, [slot] * lanes, key_data(0), np.float32(0))
        self._update = compile_ahead(update, self._blueprint.algorithm, *args)

    def __call__(
        self, state: LearnerState, acted: Any, trajectories: Sequence[Trajectory], version: int, progress: float
    ) -> tuple[LearnerState, ActorState, dict[str, float]]:
        key = key_data(self._blueprint.seed, LEARNING, version)
        after, actor, found = self._update(state, acted, trajectories, key, np.float32(progress))
        verdict = bool(found.pop(SOUND))
        metrics = {metric_name(name): float(value) for name, value in found.items()}
        if verdict:
            self._watch.good()
            return after, actor, metrics
        algorithm = self._blueprint.algorithm
        self._watch.bad(seen_in(algorithm, state, metrics, trajectories))
        return state, algorithm.actor_state(state), metrics

    def snapshots(self) -> Snapshot:
        return {}


def make_update(blueprint: Blueprint, watch: Watch, memory: ReplayMemory | None = None) -> Update:
    """The update for the algorithm's kind of experience; `memory` is an existing replay to use."""
    if blueprint.algorithm.replays:
        return ReplayUpdate(blueprint, watch, memory)
    return UnrollUpdate(blueprint, watch)
