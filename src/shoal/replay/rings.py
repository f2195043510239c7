"""Rows in rings, one ring a writer: the newest rows stay, everybody may read all of them.

A writer announces a write before it begins and after it ends. A reader that meets one finds the rows that were being overwritten
by comparing the two numbers, so that no lock is needed and no row is read that is half of one and half of another.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.core.record import Field, Record

BEGUN, ENDED = range(2)


class Rings:
    """Arrays `[rings, slots, ...]` and counters `[rings, 2]`. Ring r's row number i lies in slot `i % slots`.

    Indices are flat: slot s of ring r is `r * slots + s`. One writer a ring, any readers.
    """

    def __init__(self, counters: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        self.rings, self.slots = next(iter(arrays.values())).shape[:2]
        self._counters = counters
        self._arrays = dict(arrays)
        self._flat = {name: a.reshape(self.rings * self.slots, *a.shape[2:]) for name, a in arrays.items()}

    @staticmethod
    def record(row: Record, rings: int, slots: int) -> Record:
        """Of the memory that rings of such rows take; `over` lays them there."""
        fields = [Field(f"rows/{f.name}", (rings, slots, *f.shape), f.dtype) for f in row.fields]
        return Record((Field("counters", (rings, 2), "int64"), *fields))

    @classmethod
    def over(cls, views: Mapping[str, np.ndarray]) -> Rings:
        """Rings on the views of their `record`."""
        return cls(views["counters"], cls.rows_of(views))

    @staticmethod
    def rows_of(views: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name.removeprefix("rows/"): a for name, a in views.items() if name.startswith("rows/")}

    def write(self, ring: int, rows: Mapping[str, np.ndarray]) -> None:
        """Append rows `{name: [n, ...]}`. Of more than `slots` only the last stay."""
        count = len(next(iter(rows.values())))
        begun = int(self._counters[ring, ENDED])
        self._counters[ring, BEGUN] = begun + count
        kept = min(count, self.slots)
        at = (begun + count - kept) % self.slots
        before = min(kept, self.slots - at)  # the rest goes round to the start
        for name, array in self._arrays.items():
            new = rows[name][count - kept :]
            array[ring, at : at + before] = new[:before]
            array[ring, : kept - before] = new[before:]
        self._counters[ring, ENDED] = begun + count

    def counts(self) -> np.ndarray:
        """[rings] rows ever written, each complete."""
        return self._counters[:, ENDED].copy()

    def sizes(self) -> np.ndarray:
        """[rings] rows that are there."""
        sizes: np.ndarray = np.minimum(self.counts(), self.slots)
        return sizes

    def read(self, indices: np.ndarray, counts: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Copies of the rows at flat `indices` of any shape, and which of them are still what they were at `counts`."""
        taken = {name: np.take(a, indices, axis=0) for name, a in self._flat.items()}
        ahead = self._counters[:, BEGUN] - counts  # rows that were written, or begun to be, since
        if not ahead.any():
            return taken, np.ones(indices.shape, bool)
        ring, slot = np.divmod(indices, self.slots)
        # A row is gone when the slots written since reach its own.
        return taken, (slot - counts[ring]) % self.slots >= ahead[ring]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of all that is there."""
        most = int(self.sizes().max(initial=0))
        return {
            "counters": self._counters.copy(),
            **{f"rows/{name}": a[:, :most].copy() for name, a in self._arrays.items()},
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """What a snapshot of rings of the same shape holds."""
        for name, array in self._arrays.items():
            saved = arrays[f"rows/{name}"]
            array[:, : saved.shape[1]] = saved
        self._counters[...] = arrays["counters"]
