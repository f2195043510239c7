"""Rows in rings, one ring per writer: each keeps its newest rows, and all readers may read all rings.

A writer announces a write before it begins and after it ends. By comparing the two numbers, a reader finds the rows that were
being overwritten, so no lock is needed and no torn row is used. An announcement is never withdrawn: rows that a dead writer
may have touched count as overwritten until its successor has passed them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.core.record import Field, Record

BEGUN, ENDED = range(2)


class Rings:
    """Arrays `[rings, slots, ...]` and counters `[rings, 2]`. Ring r's row number i is in slot `i % slots`.

    Indices are flat: slot s of ring r is `r * slots + s`. One writer per ring, any readers.
    """

    def __init__(self, counters: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        self.rings, self.slots = next(iter(arrays.values())).shape[:2]
        self._counters = counters
        self._arrays = dict(arrays)
        self._flat = {name: a.reshape(self.rings * self.slots, *a.shape[2:]) for name, a in arrays.items()}

    @staticmethod
    def record(row: Record, rings: int, slots: int) -> Record:
        """Record of the memory for rings of such rows; `over` maps rings onto it."""
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
        """Append rows `{name: [n, ...]}`. If there are more than `slots`, only the last are kept."""
        count = len(next(iter(rows.values())))
        begun = int(self._counters[ring, ENDED])
        self._counters[ring, BEGUN] = max(int(self._counters[ring, BEGUN]), begun + count)
        kept = min(count, self.slots)
        at = (begun + count - kept) % self.slots
        before = min(kept, self.slots - at)  # the rest wraps around to the start
        for name, array in self._arrays.items():
            new = rows[name][count - kept :]
            array[ring, at : at + before] = new[:before]
            array[ring, : kept - before] = new[before:]
        self._counters[ring, ENDED] = begun + count

    def counts(self) -> np.ndarray:
        """[rings] rows completely written so far."""
        return self._counters[:, ENDED].copy()

    def sizes(self) -> np.ndarray:
        """[rings] rows that are currently held."""
        sizes: np.ndarray = np.minimum(self.counts(), self.slots)
        return sizes

    def read(self, indices: np.ndarray, counts: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Copies of the rows at flat `indices` of any shape, and a mask of those not overwritten since `counts` was taken."""
        taken = {name: np.take(a, indices, axis=0) for name, a in self._flat.items()}
        ahead = self._counters[:, BEGUN] - counts  # rows whose writing has begun since
        if not ahead.any():
            return taken, np.ones(indices.shape, bool)
        ring, slot = np.divmod(indices, self.slots)
        # A row is gone if the slots written since then reach its own.
        return taken, (slot - counts[ring]) % self.slots >= ahead[ring]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of all rows and counters. Rows overwritten meanwhile are marked, as for a reader."""
        counts = self.counts()
        most = int(np.minimum(counts, self.slots).max(initial=0))
        rows = {f"rows/{name}": a[:, :most].copy() for name, a in self._arrays.items()}
        counters = np.stack([self._counters[:, BEGUN], counts], axis=1)  # `BEGUN` is read last
        return {"counters": counters, "slots": np.array([self.slots]), **rows}

    def fits(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether a snapshot has the same number and size of rings, so that its rows keep their slots."""
        slots = int(arrays["slots"][0]) if "slots" in arrays else self.slots
        return (len(arrays["counters"]), slots) == (self.rings, self.slots)

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load a snapshot. If it does not fit, its newest rows are dealt out evenly over the rings."""
        if not self.fits(arrays):
            self._deal(arrays)
            return
        for name, array in self._arrays.items():
            saved = arrays[f"rows/{name}"]
            array[:, : saved.shape[1]] = saved
        self._counters[...] = arrays["counters"]

    def _deal(self, arrays: Mapping[str, np.ndarray]) -> None:
        width = next(array.shape[1] for name, array in arrays.items() if name.startswith("rows/"))
        slots, found = int(arrays["slots"][0]) if "slots" in arrays else width, []
        for ring, (begun, ended) in enumerate(arrays["counters"].tolist()):
            numbers = np.arange(max(0, ended - slots, begun - slots), ended)  # older ones were being overwritten
            found.append(np.stack([numbers - ended, np.full(len(numbers), ring), numbers % slots]))
        by_age = np.concatenate(found, axis=1)
        by_age = by_age[:, np.argsort(by_age[0], kind="stable")][1:, -self.rings * self.slots :]
        for ring in range(self.rings):
            from_ring, slot = by_age[:, ring :: self.rings]
            self.write(ring, {name: arrays[f"rows/{name}"][from_ring, slot] for name in self._arrays})
