"""Observation statistics that several workers share: each adds those of its unroll."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from shoal.core.algorithm import LearnerState, Moments
from shoal.core.ports import Op, Table
from shoal.core.trajectory import Array, Trajectory
from shoal.core.weights import to_vector
from shoal.learning.shared_layout import SharedLayout
from shoal.ops import statistics


@jax.jit
def _gathered(obs: Array, valid: Array) -> Moments:
    """The statistics of one unroll alone."""
    return statistics.update_moments(statistics.empty_moments(obs.shape[valid.ndim :]), obs, valid)


@jax.jit
def _merged(shared: Moments, mine: Moments) -> Moments:
    return statistics.faded(statistics.merge(shared, mine))


def if_finite(new: np.ndarray, row: np.ndarray) -> np.ndarray:
    """`new`, or the present row if some of `new` is not finite: an infinite spread would scale every observation to 0."""
    return new if np.isfinite(new).all() else row


class SharedStatistics:
    """Observation statistics that all workers add to, merged under a lock."""

    def __init__(self, table: Table, layout: SharedLayout) -> None:
        self._table, self._layout = table, layout
        self._version = -1  # version of the shared statistics that equals the worker's own; -1 if they differ

    def pull(self, state: LearnerState) -> LearnerState:
        self._version, vector = self._table.pull()
        return self._layout.unpack_statistics(vector, state)

    def push(self, state: LearnerState, trajectory: Trajectory) -> Generator[Op[Any], Any, None]:
        """Add an unroll's statistics. `state` already has them in its own, which replace the shared ones if those are unchanged.

        Statistics that are not finite are not added.
        """
        mine = to_vector(state.obs)
        known = self._version if np.isfinite(mine).all() else -1
        brought = _gathered(trajectory.obs[:-1], trajectory.valid)

        def by(versions: Any, rows: Any) -> Any:
            if versions[0] == known:
                return [mine]
            shared = self._layout.unpack_statistics(rows[0], state).obs
            return [if_finite(to_vector(_merged(shared, brought)), rows[0])]

        count = yield from self._table.change([0], by)
        self._version = count if count - 1 == known else -1
