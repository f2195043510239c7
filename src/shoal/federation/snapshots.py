"""Snapshots of a parent's weights during training, evaluated after it: a learning path with a value at every asked update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from shoal.core.algorithm import Algorithm
from shoal.core.keys import CHECKING, key_data
from shoal.experiment import Plan
from shoal.federation.ledger import updates_of
from shoal.federation.normaliser import Counts
from shoal.federation.state import State
from shoal.federation.vectors import StateVectors
from shoal.launch.checks import EPISODES
from shoal.launch.evaluation import EvaluationFailed, Evaluator

MOST = 2**30  # bytes of weights that are kept


class Snapshot(NamedTuple):
    """What an evaluation needs of a state."""

    updates: int
    steps: int
    at: float  # monotonic time
    weights: np.ndarray  # [P]
    normaliser: Counts | None


class Snapshots:
    """Keeps the weights at every multiple of `every` updates, in memory: a restart forgets them. 0 keeps none.

    `note` belongs to the hub's thread; `write` is called once no push is applied any more.
    """

    def __init__(self, every: int, start: State) -> None:
        self.kept: list[Snapshot] = []
        self.dropped = 0  # snapshots beyond the memory limit
        self._every, self._next = every, 0
        self._plan_next(updates_of(start))

    def note(self, state: State, at: float) -> None:
        """Keep this state, which came `at` this time, if it is due.

        Where one push ends several updates, the first state after the multiple is kept.
        """
        updates = updates_of(state)
        if not self._every or updates < self._next:
            return
        if (len(self.kept) + 1) * state.weights.nbytes > MOST:
            self.dropped += 1
        else:
            self.kept.append(Snapshot(updates, state.steps, at, state.weights, state.normaliser))
        self._plan_next(updates)

    def _plan_next(self, updates: int) -> None:
        if self._every:
            self._next = (updates // self._every + 1) * self._every

    def write(
        self,
        evaluator: Evaluator,
        algorithm: Algorithm,
        vectors: StateVectors,
        plan: Plan,
        began: float,
        write: Callable[[Mapping[str, float]], object],
        say: Callable[[str], None],
    ) -> None:
        """Evaluate each snapshot on 25 episodes and write its mean return as metrics, with its seconds since `began`."""
        if self.dropped:
            say(f"{self.dropped} snapshots were not kept: --path-every would need more than {MOST >> 30} GiB")
        for number, one in enumerate(self.kept):
            actor = algorithm.actor_state(vectors.state(one.weights, one.normaliser, {}, 1.0))
            seed = int(key_data(plan.settings.seed, CHECKING, number)[0])
            try:
                played = evaluator.play(actor, EPISODES, sample=plan.settings.until_eval_by == "sampled", seed=seed)
            except EvaluationFailed as error:
                say(f"no further evaluation of snapshots: {error}")
                return
            at = {"path/step": one.steps, "path/updates": one.updates, "path/seconds": one.at - began}
            write({"path/return": float(np.mean(played.returns)), **{name: float(value) for name, value in at.items()}})
