"""A sum tree in NumPy: levels of pair sums, searched for thousands of values at once."""

from __future__ import annotations

import numpy as np

WHOLE = 32  # nodes of a level per changed leaf, up to which computing the whole level costs less than picking the changed nodes


class SumTree:
    """`leaves[i]` >= 0 is the weight of i.

    Every inner node is exactly the sum of its two children, so the same leaves give the same tree, independent of its history.
    Inner nodes are brought up to date when they are next read, so that several calls of `set` cost one pass.
    """

    def __init__(self, size: int) -> None:
        depth = max(1, (size - 1).bit_length())
        self._levels = [np.zeros(1 << d) for d in range(depth + 1)]  # the root first
        self.leaves = self._levels[-1][:size]
        self._size = size
        self._smallest = -1  # the leaf with the smallest positive weight; -1 if unknown
        self._changed: list[np.ndarray] = []  # leaves that the inner nodes do not know of yet

    @property
    def total(self) -> float:
        self._sum_up()
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
        self._changed.append(indices)

    def _sum_up(self) -> None:
        """Bring the inner nodes up to date."""
        if not self._changed:
            return
        levels = list(zip(self._levels[:0:-1], self._levels[-2::-1], strict=True))  # (below, above), from the leaves up
        changed = sum(map(len, self._changed))
        picked = [pair for pair in levels if len(pair[1]) > WHOLE * changed]  # the large levels come first
        if picked:
            nodes = np.concatenate(self._changed)
        for below, above in picked:
            nodes = nodes >> 1
            above[nodes] = below[2 * nodes] + below[2 * nodes + 1]
        for below, above in levels[len(picked) :]:
            np.add(below[::2], below[1::2], out=above)
        self._changed = []

    def find(self, shares: np.ndarray) -> np.ndarray:
        """The leaves at these shares (in [0, 1)) of the cumulative total: [n] int64.

        The search begins in the running sums of the level that has about as many nodes as there are shares, which costs less than
        to walk down to it.
        """
        self._sum_up()
        first = min(len(self._levels), len(shares).bit_length()) - 1
        sums = np.cumsum(self._levels[first])
        rest = shares * sums[-1]
        at = _search(sums, shares, rest)
        rest -= np.where(at > 0, sums[at - 1], 0.0)
        for level in self._levels[first + 1 :]:
            at <<= 1
            left = level[at]
            # Rounding may leave slightly more than the left side holds; never go right if the right side is empty.
            right = (rest >= left) & (level[at + 1] > 0)
            rest -= left * right
            at += right
        return at


def _search(sums: np.ndarray, shares: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each value, the first of the running sums that exceeds it: [n] int64. Values are shares of the last sum.

    As `np.searchsorted(..., side="right")`, in half its time: a table says for each of K equal parts of the total how many
    sums lie before it, and from there it is a step or two.
    """
    parts = len(sums)
    part_of = (sums * (parts / sums[-1] * (1 + 1e-12))).astype(
        np.int64
    )  # rounded up: a step too many to go, never one too few
    before = np.zeros(parts + 2, np.int64)
    np.cumsum(np.bincount(part_of, minlength=parts + 1)[: parts + 1], out=before[1:])
    last = int(np.searchsorted(sums, sums[-1]))  # the last node that is not empty, also for a value that was rounded up
    at: np.ndarray = np.minimum(before[(shares * parts).astype(np.int64)], last)
    behind = np.flatnonzero((sums[at] <= values) & (at < last))
    while len(behind):
        at[behind] += 1
        here = at[behind]
        behind = behind[(sums[here] <= values[behind]) & (here < last)]
    return at
