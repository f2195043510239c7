"""A sum tree in NumPy: levels of pair sums, searched for thousands of values at once."""

from __future__ import annotations

import numpy as np

SMALL = 1 << 17  # leaves: recomputing a whole tree up to this size costs less than updating a few paths
MANY = 256  # setting more than one leaf in this many is also cheaper by recomputing the whole tree


class SumTree:
    """`leaves[i]` >= 0 is the weight of i.

    Every inner node is exactly the sum of its two children, so the same leaves give the same tree, independent of its history.
    """

    def __init__(self, size: int) -> None:
        depth = max(1, (size - 1).bit_length())
        self._levels = [np.zeros(1 << d) for d in range(depth + 1)]  # the root first
        self.leaves = self._levels[-1][:size]
        self._size = size
        self._smallest = -1  # the leaf with the smallest positive weight; -1 if unknown

    @property
    def total(self) -> float:
        return float(self._levels[0][0])

    def least(self) -> float:
        """The smallest weight above zero; infinity if there is none."""
        if self._smallest < 0:
            self._smallest = int(np.argmin(np.where(self.leaves > 0, self.leaves, np.inf)))
        return float(self.leaves[self._smallest]) or np.inf

    def set(self, indices: np.ndarray, weights: np.ndarray) -> None:
        """Set weights. If an index occurs twice, the last weight counts."""
        before = self.least()
        self.leaves[indices] = weights
        if self.leaves[self._smallest] != before:
            self._smallest = -1
        else:
            set_ = np.where(self.leaves[indices] > 0, self.leaves[indices], np.inf)
            if len(indices) and set_.min() < before:
                self._smallest = int(indices[set_.argmin()])
        levels = list(zip(self._levels[:0:-1], self._levels[-2::-1], strict=True))  # (below, above), from the leaves up
        if self._size <= SMALL or len(indices) * MANY > self._size:
            for below, above in levels:
                np.add(below[::2], below[1::2], out=above)
            return
        nodes = indices
        for below, above in levels:
            nodes = nodes >> 1
            above[nodes] = below[2 * nodes] + below[2 * nodes + 1]

    def find(self, shares: np.ndarray) -> np.ndarray:
        """The leaves at these shares (in [0, 1)) of the cumulative total: [n] int64."""
        rest = shares * self.total
        at = np.zeros(len(shares), np.int64)
        for level in self._levels[1:]:
            at <<= 1
            left = level[at]
            # Rounding may leave slightly more than the left side holds; never go right if the right side is empty.
            right = (rest >= left) & (level[at + 1] > 0)
            rest -= left * right
            at += right
        return at
