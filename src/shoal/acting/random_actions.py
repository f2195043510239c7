"""Epsilon-greedy on top of any policy: some actions are replaced by random ones before the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.core.blueprint import EnvRows
from shoal.core.keys import RANDOM_ACTIONS, key_data, resumed_at, successor_of
from shoal.core.ports import Slot
from shoal.core.program import Context
from shoal.core.spec import ActionSpec, Binary, Categorical

COUNT = "random_actions/unrolls"  # a name in snapshots


class RandomActions:
    """Rows whose actions are random with probability `epsilon`. The slot holds the actions that were taken.

    A run resumed from version `start`, and an actor that replaces another, draw other random numbers than before.
    """

    def __init__(
        self,
        rows: EnvRows,
        action: ActionSpec,
        epsilon: float,
        seed: int,
        actor: int,
        start: int = 0,
        deaths: int = 0,
    ) -> None:
        self._rows, self._action, self._epsilon = rows, action, epsilon
        self._path, self._again = (seed, RANDOM_ACTIONS, actor), (*resumed_at(start), *successor_of(deaths))
        self._unrolls = 0
        self._rng = np.random.default_rng(0)
        self.obs, self.first = rows.obs, rows.first

    def begin(self, slot: Slot, fresh: bool = False, starts: np.ndarray | None = None) -> None:
        self._rng = np.random.default_rng(key_data(*self._path, self._unrolls, *self._again))
        self._unrolls += 1
        self._rows.begin(slot, fresh, starts)
        self.obs, self.first = self._rows.obs, self._rows.first

    def step(self, slot: Slot, t: int, action: np.ndarray) -> None:
        replaced = self._rng.random(len(action)) < self._epsilon
        if replaced.any():
            action = np.array(action)
            action[replaced] = self._uniform(int(replaced.sum()))
        self._rows.step(slot, t, action)
        self.obs, self.first = self._rows.obs, self._rows.first

    def _uniform(self, count: int) -> np.ndarray:
        """Uniform random actions: every choice with equal probability, every number from -1 to 1."""
        columns: list[Any] = []
        for part in self._action.parts:
            if isinstance(part, Categorical):
                columns.append(self._rng.integers(0, part.sizes, (count, part.width)))
            elif isinstance(part, Binary):
                columns.append(self._rng.integers(0, 2, (count, part.width)))
            else:
                columns.append(self._rng.uniform(-1, 1, (count, part.width)))
        drawn = np.concatenate(columns, axis=1).astype(self._action.dtype)
        return drawn[:, 0] if self._action.scalar else drawn

    def snapshot(self) -> dict[str, np.ndarray]:
        inner = self._rows.snapshot()
        return {**inner, COUNT: np.array([self._unrolls])} if inner else {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        if arrays:
            self._unrolls, self._again = int(arrays[COUNT][0]), ()
        self._rows.restore({name: array for name, array in arrays.items() if name != COUNT})
        self.obs, self.first = self._rows.obs, self._rows.first

    def close(self) -> None:
        self._rows.close()


def random_action_rows(
    make_rows: Callable[[int, Context], EnvRows],
    action: ActionSpec,
    epsilon: float,
    seed: int,
    start: int,
    actor: int,
    context: Context,
) -> EnvRows:
    """The rows of `make_rows` with random actions."""
    return RandomActions(make_rows(actor, context), action, epsilon, seed, actor, start, context.deaths)
