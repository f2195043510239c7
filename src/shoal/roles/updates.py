"""What a trainer does with the unrolls of a round: learn from them as they come, or keep them and learn from what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from shoal.core.algorithm import ActorState, LearnerState, Replay
from shoal.core.keys import LEARNING, key_data
from shoal.core.program import Snapshot
from shoal.core.trajectory import Trajectory, as_trajectory
from shoal.roles.compiled import compiled, metric_name
from shoal.roles.parts import Parts
from shoal.roles.replaying import Replaying, ReplayUpdate
from shoal.roles.soundness import SOUND, Watch, seen_in


class Update(Protocol):
    """From one version to the next."""

    def compile(self, state: LearnerState, acted: Any, lanes: int) -> None:
        """Compile ahead of the data, for unrolls of so many lanes."""

    def __call__(
        self, state: LearnerState, acted: Any, trajectories: Sequence[Trajectory], version: int, progress: float
    ) -> tuple[LearnerState, ActorState, dict[str, float]]:
        """(state, what acts next, metrics) after an unroll of every lane, which `acted` had acted.

        An update that comes to something that is not finite is dropped: the state is the one from before it.
        """

    def snapshots(self) -> Snapshot:
        """What its successor needs besides the state, by part."""


class UnrollUpdate:
    """Each unroll once: `prepare`, then epochs x minibatches, in one call."""

    def __init__(self, parts: Parts, watch: Watch) -> None:
        self._parts, self._watch = parts, watch
        self._update = compiled(parts.algorithm).update

    def compile(self, state: LearnerState, acted: Any, lanes: int) -> None:
        slot = as_trajectory(self._parts.record.empty())
        self._update = self._update.lower(state, acted, [slot] * lanes, key_data(0), np.float32(0)).compile()

    def __call__(
        self, state: LearnerState, acted: Any, trajectories: Sequence[Trajectory], version: int, progress: float
    ) -> tuple[LearnerState, ActorState, dict[str, float]]:
        key = key_data(self._parts.seed, LEARNING, version)
        after, actor, found = self._update(state, acted, trajectories, key, np.float32(progress))
        verdict = bool(found.pop(SOUND))
        metrics = {metric_name(name): float(value) for name, value in found.items()}
        if verdict:
            self._watch.good()
            return after, actor, metrics
        algorithm = self._parts.algorithm
        self._watch.bad(seen_in(algorithm, state, metrics, trajectories))
        return state, algorithm.actor_state(state), metrics

    def snapshots(self) -> Snapshot:
        return {}


def make_update(parts: Parts, watch: Watch, memory: Replaying | None = None) -> Update:
    """By the kind of experience that the algorithm learns from; `memory` is a replay that is there already."""
    if isinstance(parts.algorithm.experience, Replay):
        return ReplayUpdate(parts, watch, memory)
    return UnrollUpdate(parts, watch)
