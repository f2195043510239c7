"""Evaluation of a parent's weights during training, one snapshot at a time, in the evaluation process of `launch`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shoal.core.algorithm import Algorithm
from shoal.core.keys import CHECKING, key_data
from shoal.federation.ledger import updates_of
from shoal.federation.state import State
from shoal.federation.vectors import StateVectors
from shoal.launch.checks import EPISODES
from shoal.launch.evaluation import EvaluationFailed, Evaluator


class Judged(NamedTuple):
    """Result of one evaluation."""

    state: State  # the evaluated snapshot
    ret: float  # mean return of its episodes


class Judging:
    """Evaluations of one parent. Nothing here blocks; evaluation takes at most half of the wall-clock time."""

    def __init__(
        self,
        evaluator: Evaluator,
        algorithm: Algorithm,
        vectors: StateVectors,
        spent: Callable[[State], float],
        *,
        every: int,
        sample: bool,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._evaluator, self._algorithm, self._vectors, self._say = evaluator, algorithm, vectors, say
        self._spent = spent  # share of the budget
        self._every, self._sample, self._seed = every, sample, seed
        self._number = 0
        self._snapshot: State | None = None  # under evaluation now
        self._began = self._pause_until = 0.0
        self._next = every  # updates at which the next evaluation is due
        self._looked = -1  # version of the newest snapshot whose evaluation has begun
        self.failed = False
        self.last: float | None = None

    def look(self, state: State, *, wanted: bool) -> Judged | None:
        """Begin an evaluation if one is due or `wanted`, unless it would be of the same weights as the one before; the result
        of one that has just ended, or None."""
        if self.failed:
            return None
        try:
            if self._snapshot is None:
                if state.version > self._looked and (wanted or (self._every and updates_of(state) >= self._next)):
                    self._begin(state, wanted)
                return None
            played = self._evaluator.look()
        except EvaluationFailed as error:
            self.failed = True
            self._say(f"no further evaluation during training: {error}")
            return None
        if played is None:
            return None
        judged, self._snapshot = Judged(self._snapshot, float(np.mean(played.returns))), None
        now = time.monotonic()
        self._pause_until, self.last = now + (now - self._began), judged.ret
        return judged

    def knows(self, state: State) -> bool:
        """Whether the evaluation of these weights has ended."""
        return self._snapshot is None and state.version <= self._looked

    def _begin(self, state: State, wanted: bool) -> None:
        now = time.monotonic()
        if now < self._pause_until and not wanted:
            return
        learner = self._vectors.state(state.weights, state.normaliser, state.moments, self._spent(state))
        seed = int(key_data(self._seed, CHECKING, self._number)[0])
        self._evaluator.begin(self._algorithm.actor_state(learner), EPISODES, sample=self._sample, seed=seed)
        self._snapshot, self._began, self._number = state, now, self._number + 1
        self._looked = state.version
        self._next = updates_of(state) + self._every
