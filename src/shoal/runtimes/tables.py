"""Table and Roster on plain memory: for one thread, many threads, and processes that share a mapping.

Counters have one writer each, or are written under a lock. A row under `lock` is two buffers and a version that says which
one is current: a write becomes visible with the version, whole or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.ports import NOT_YET, Change, Op
from shoal.core.program import RosterSpec, TableSpec
from shoal.core.record import Field, Record
from shoal.core.weights import moved

if TYPE_CHECKING:
    from shoal.runtimes.memory import Lock, Place

SAMPLE = 1024  # entries of a vector, at most, that are sampled to measure what races lost


class Gate:
    """A lock with a list of waiters: a role marks itself in memory before it sleeps, and the role that releases rings them."""

    def __init__(self, lock: Lock, waiting: np.ndarray, workers: Sequence[str], place: Place) -> None:
        self._lock, self._waiting = lock, waiting
        self._bells = [place.bells[name] for name in workers]
        self._me = workers.index(place.me) if place.me in workers else None

    def attempt(self) -> bool:
        if self._lock.attempt():
            return True
        if self._me is not None:
            self._waiting[self._me] = 1
        return self._lock.attempt()  # the holder may have released it before it could see that we wait

    def release(self) -> None:
        self._lock.release()
        if self._waiting.any():
            for index in np.flatnonzero(self._waiting.copy()):  # a copy, since others write meanwhile
                self._waiting[index] = 0
                self._bells[index].ring()


class MemoryTable:
    """`hogwild`: one vector that all workers add to in place, and one count per worker. `lock`: two buffers per row."""

    def __init__(self, spec: TableSpec, buffer: Any, offset: int, place: Place) -> None:
        self.rows, self.waited = spec.rows, 0.0
        self._size, self._wild = spec.size, spec.consistency == "hogwild"
        self._stride = _stride(spec.size)
        views = _table(spec).views(buffer, offset)
        self._versions, self._began, self._counts = views["versions"], views["began"], views["counts"]
        self._vectors, self._first = views["vectors"], views["first"]
        self._sums, self._moved = views["sums"], views["moved"]
        self._gates = [
            Gate(place.lock(offset + row), views["waiting"], spec.workers, place) for row in range(spec.rows)
        ]
        self._waits = None if place.me is None else place.bells[place.me].wait

    @staticmethod
    def nbytes(spec: TableSpec) -> int:
        return _table(spec).nbytes

    def put(self, vector: np.ndarray, row: int = 0) -> None:
        self._fits(vector)
        self._vectors[row, 0] = vector
        if self._wild:
            self._first[...] = vector[:: self._stride]

    def pull(self, row: int = 0, most: int | None = None) -> tuple[int, np.ndarray]:
        if self._wild:
            return int(self._counts.sum()), self._vectors[row, 0, :most].copy()
        while True:
            version = int(self._versions[row])
            copy = self._vectors[row, version % 2, :most].copy()
            if self._began[row, version % 2] == version:  # else two writes happened while we copied
                return version, copy

    def push(self, worker: int, delta: np.ndarray, row: int = 0) -> Op[int]:
        self._fits(delta)
        if not self._wild:
            return self.change([row], lambda _, vectors: [vectors[0] + delta])
        done: list[int] = []

        def attempt() -> int:
            if not done:
                self._add(worker, delta)
                done.append(int(self._counts.sum()))
            return done[0]

        return Op(attempt, self._waits, "the table")

    def _add(self, worker: int, delta: np.ndarray) -> None:
        vector = self._vectors[0, 0]
        np.add(vector, delta, out=vector)  # reads, adds, writes: a simultaneous addition may undo it
        sample = delta[:: self._stride]
        self._sums[worker] += sample
        self._moved[worker] += np.abs(sample)
        self._counts[worker] += 1

    def change(self, rows: Sequence[int], by: Change) -> Op[int]:
        if self._wild:
            raise RuntimeError("a table under hogwild has no locks: it is pushed to, not changed")
        done: list[int] = []
        asked: list[float] = []
        gates = [self._gates[row] for row in sorted(rows)]

        def attempt() -> Any:
            if done:
                return done[0]
            held: list[Gate] = []
            try:
                for gate in gates:
                    if not gate.attempt():
                        if not asked:
                            asked.append(time.monotonic())
                        return NOT_YET
                    held.append(gate)
                self.waited += time.monotonic() - asked[0] if asked else 0.0
                self._write(rows, by)
                done.append(int(self._versions[rows[0]]))
                return done[0]
            finally:
                for gate in reversed(held):
                    gate.release()

        return Op(attempt, self._waits, f"the lock of row {', '.join(map(str, rows))}")

    def move(self, old: np.ndarray, new: np.ndarray, row: int = 0) -> Op[int]:
        if not self._wild:
            return self.change([row], lambda _, vectors: [moved(vectors[0], old, new)])
        done: list[int] = []

        def attempt() -> int:
            if not done:
                vector = self._vectors[0, 0]
                vector[...] = moved(vector, old, new)
                self._first += (new - old)[:: self._stride]
                done.append(int(self._counts.sum()))
            return done[0]

        return Op(attempt, self._waits, "the table")

    def _write(self, rows: Sequence[int], by: Change) -> None:
        versions = [int(self._versions[row]) for row in rows]
        new = by(versions, [self._vectors[row, v % 2].copy() for row, v in zip(rows, versions, strict=True)])
        for row, version, vector in zip(rows, versions, new, strict=True):
            self._fits(vector)
            self._began[row, (version + 1) % 2] = version + 1
            self._vectors[row, (version + 1) % 2] = vector
            self._versions[row] = version + 1

    def lost(self) -> float:
        if not self._wild:
            return 0.0
        pushed = self._first + self._sums.sum(axis=0)
        arrived = self._vectors[0, 0, :: self._stride]
        return float(np.abs(pushed - arrived).sum() / max(float(self._moved.sum()), 1e-30))

    def _fits(self, vector: np.ndarray) -> None:
        if vector.shape != (self._size,):
            raise ValueError(f"a vector of shape {vector.shape}; a row of this table holds ({self._size},)")


def _stride(size: int) -> int:
    return max(1, -(-size // SAMPLE))


def _table(spec: TableSpec) -> Record:
    wild = spec.consistency == "hogwild"
    if wild and spec.rows != 1:
        raise ValueError(f"{spec.rows} rows: a table under hogwild has one")
    workers, sample = len(spec.workers), -(-spec.size // _stride(spec.size)) if wild else 0
    return Record(
        (
            Field("versions", (spec.rows,), "int64"),  # its bytes also name the locks
            Field("began", (spec.rows, 2), "int64"),
            Field("counts", (workers,), "int64"),
            Field("waiting", (workers,), "int8"),
            Field("vectors", (spec.rows, 1 if wild else 2, spec.size), "float32"),
            Field("first", (sample,), "float64"),
            Field("sums", (workers, sample), "float64"),
            Field("moved", (workers, sample), "float64"),
        )
    )


class MemoryRoster:
    """`taken`, `number`, `done` and `came` have one entry per worker, which writes it; a lock orders the taking of turns."""

    def __init__(self, spec: RosterSpec, buffer: Any, offset: int, place: Place) -> None:
        views = _roster(spec).views(buffer, offset)
        self._opened, self._taken, self._number = views["opened"], views["taken"], views["number"]
        self._done, self._came = views["done"], views["came"]
        self._gate = Gate(place.lock(offset), views["waiting"], spec.workers, place)
        self._spec, self._inline = spec, place.me is None
        self._workers = [place.bells[name] for name in spec.workers]
        self._watcher = place.bells[spec.watcher]
        self._waits = None if place.me is None else place.bells[place.me].wait

    @staticmethod
    def nbytes(spec: RosterSpec) -> int:
        return _roster(spec).nbytes

    def open(self) -> None:
        self._opened[0] = 1
        self._wake()

    def turn(self, worker: int) -> Op[int]:
        asked: list[bool] = []

        def attempt() -> Any:
            # No other role runs meanwhile: first let the others take turns, and the watcher look.
            if self._inline and not asked:
                asked.append(True)
                return NOT_YET
            if not self._opened[0]:
                return NOT_YET
            if self._taken[worker] > self._done[worker]:  # taken by a predecessor, or by this very call
                return int(self._number[worker])
            if not self._gate.attempt():
                return NOT_YET
            try:
                number = self._spec.start + int(self._taken.sum())
                if number >= self._spec.end or (self._inline and worker != self._next_in_line(number)):
                    return NOT_YET
                self._number[worker] = number
                self._taken[worker] += 1
                return number
            finally:
                self._gate.release()

        return Op(attempt, self._waits, f"a turn of worker {worker}")

    def _next_in_line(self, number: int) -> int:
        """The worker that has this turn if workers alternate. Those that wait in `meet` are passed over: they ask for no turn."""
        waiting = self._came > self._came.min()
        order = (number + np.arange(len(waiting))) % len(waiting)
        return int(order[waiting[order].argmin()])

    def finish(self, worker: int) -> None:
        if self._taken[worker] <= self._done[worker]:
            raise RuntimeError(f"worker {worker} has no turn to finish")
        self._done[worker] += 1
        if self._spec.start + self.finished() >= self._spec.end:
            self._watcher.ring()

    def finished(self) -> int:
        return int(self._done.sum())

    def turns(self, worker: int) -> int:
        return int(self._done[worker])

    def meet(self, worker: int) -> Op[None]:
        self._came[worker] += 1
        mine = int(self._came[worker])
        if self._came.min() >= mine:
            self._wake()

        def attempt() -> Any:
            return None if self._came.min() >= mine else NOT_YET

        return Op(attempt, self._waits, f"the workers that have not come {mine} times")

    def _wake(self) -> None:
        for bell in self._workers:
            bell.ring()


def _roster(spec: RosterSpec) -> Record:
    workers = len(spec.workers)
    return Record(
        (
            Field("opened", (1,), "int64"),
            *(Field(name, (workers,), "int64") for name in ("taken", "number", "done", "came")),
            Field("waiting", (workers,), "int8"),
        )
    )
