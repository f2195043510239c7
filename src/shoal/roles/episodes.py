"""Episodes out of unrolls: returns and lengths, from rewards and boundaries alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from shoal.core.program import Episode


class EpisodeTracker:
    """Sums the rewards of each column's running episode from unroll to unroll. A dropped episode is not counted."""

    def __init__(self, columns: int) -> None:
        self._ret = np.zeros(columns)
        self._length = np.zeros(columns, np.int64)

    def take(self, reward: np.ndarray, boundary: np.ndarray, valid: np.ndarray, first: np.ndarray) -> Iterator[Episode]:
        """The episodes that end in this unroll, by time, then column. Arrays are [T, B]; `first` may have a row more."""
        for t in range(len(reward)):
            starts, counted = first[t], valid[t]
            if starts.any():
                self._ret[starts] = 0.0
                self._length[starts] = 0
            self._ret += np.where(counted, reward[t], 0.0)
            self._length += counted
            ends = boundary[t] & counted
            if ends.any():
                yield from map(Episode, self._ret[ends].tolist(), self._length[ends].tolist())

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"ret": self._ret.copy(), "length": self._length.copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._ret, self._length = arrays["ret"].copy(), arrays["length"].copy()
