"""A sum tree on NumPy: levels of pair sums, walked by thousands of searches at once."""

from __future__ import annotations

import numpy as np

REBUILD = 16  # setting more than one leaf in so many costs less by adding all of the tree up again


class SumTree:
    """`leaves[i]` >= 0 is the weight of i.

    Every inner node is the sum of its two below and of nothing else, so that the same leaves give the same tree, whatever
    was there before.
    """

    def __init__(self, size: int) -> None:
        depth = max(1, (size - 1).bit_length())
        self._levels = [np.zeros(1 << d) for d in range(depth + 1)]  # the root first
        self.leaves = self._levels[-1][:size]
        self._size = size

    @property
    def total(self) -> float:
        return float(self._levels[0][0])

    def set(self, indices: np.ndarray, weights: np.ndarray) -> None:
        """Where an index is there twice the last weight counts."""
        self.leaves[indices] = weights
        if len(indices) * REBUILD > self._size:
            for below, above in zip(self._levels[:0:-1], self._levels[-2::-1], strict=True):
                np.add(below[::2], below[1::2], out=above)
            return
        nodes = np.unique(indices)
        for below, above in zip(self._levels[:0:-1], self._levels[-2::-1], strict=True):
            nodes = np.unique(nodes >> 1)
            above[nodes] = below[2 * nodes] + below[2 * nodes + 1]

    def find(self, shares: np.ndarray) -> np.ndarray:
        """The leaves at these shares (from 0 to less than 1) of the total, in the order of their indices: [n] int64."""
        rest = shares * self.total
        at = np.zeros(len(shares), np.int64)
        for level in self._levels[1:]:
            at <<= 1
            left = level[at]
            # Rounding may leave a little more than the right side holds; where that is empty there is nothing to find.
            right = (rest >= left) & (level[at + 1] > 0)
            rest -= left * right
            at += right
        return at
