"""Shared streams across nodes: queue, stack and window, hosted by the producer of each lane.

A lane is one record of numbers and its slots, in the producer's part of the window. To change it, a rank takes the lane's
lock by compare-and-swap, fetches the numbers, changes them, and writes them back. A lock is held for one copy. When a rank
dies, MPI ends the whole job, so no rank waits for a lock whose holder is dead.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.core.ports import NOT_YET, Op, Slot
from shoal.core.program import StreamSpec
from shoal.core.record import ALIGN, Field, Record
from shoal.runtimes.windows import Copy, Nap, RemoteWindow

NO_SLOT = 0  # in `filling`, which counts slots from 1


class RmaSharedStream:
    """All ends see the same lanes; `end_of` gives a consumer its own copies and its own record of what it has read."""

    def __init__(self, spec: StreamSpec, window: RemoteWindow, at: Sequence[tuple[int, int]], bell: Nap) -> None:
        self.lanes, self._spec = len(spec.producers), spec
        self._window, self._at, self._wait = window, at, bell.wait
        self._layout = _numbers(spec)
        self._first = ALIGN + self._layout.nbytes  # the lock has a line of its own, then the numbers, then the slots
        self._own = {
            lane: [
                window.views(spec.record, offset + self._first + i * spec.record.nbytes) for i in range(_slots(spec))
            ]
            for lane, (rank, offset) in enumerate(at)
            if rank == window.rank
        }
        self._begin(0, False)

    @staticmethod
    def parts(spec: StreamSpec, rank_of: Mapping[str, int]) -> list[tuple[int, int]]:
        size = ALIGN + _numbers(spec).nbytes + _slots(spec) * spec.record.nbytes
        return [(rank_of[name], size) for name in spec.producers]

    def _begin(self, consumer: int, reread: bool) -> None:
        self._consumer, self._reread = consumer, reread
        self._seen = np.zeros(self.lanes, np.int64)
        self._taken: list[list[Copy]] = [[] for _ in range(self.lanes)]
        self._free: list[Copy] = []

    def end_of(self, consumer: int, reread: bool = False) -> RmaSharedStream:
        end = object.__new__(RmaSharedStream)
        end.__dict__ |= self.__dict__
        end._begin(consumer, reread)
        return end

    def _look(self, lane: int) -> Slot:
        """A copy of the lane's numbers without the lock, so they need not be consistent with each other."""
        rank, offset = self._at[lane]
        numbers = Copy(self._layout)
        self._window.get(rank, offset + ALIGN, numbers.raw)
        return numbers.views

    @contextlib.contextmanager
    def _held(self, lane: int) -> Iterator[Slot]:
        """The lane's numbers, under its lock; changes are written back."""
        rank, offset = self._at[lane]
        while not self._window.swap(rank, offset, 0, 1):
            time.sleep(0)  # another rank is copying a slot
        try:
            numbers = Copy(self._layout)
            self._window.get(rank, offset + ALIGN, numbers.raw)
            before = numbers.raw.copy()
            yield numbers.views
            if (numbers.raw != before).any():
                self._window.put(rank, offset + ALIGN, numbers.raw)
        finally:
            self._window.store(rank, offset, 0)

    def claim(self, lane: int) -> Op[Slot]:
        def attempt() -> Any:
            with self._held(lane) as now:
                if now["filling"][0] == NO_SLOT:
                    room = self._room(now["number"])
                    if room is None:
                        return NOT_YET
                    now["number"][room], now["filling"][0] = 0, room + 1
                return self._own[lane][now["filling"][0] - 1]

        return Op(attempt, self._wait, f"an empty slot in lane {lane}")

    def _room(self, numbers: np.ndarray) -> int | None:
        empty = np.flatnonzero(numbers == 0)
        if len(empty):
            return int(empty[0])
        # A window has two slots: the newer one has replaced the older one, which is free to fill.
        return int(numbers.argmin()) if self._spec.order == "window" else None

    def push(self, lane: int) -> None:
        self._window.fence()  # the slot must be written before the number that announces it
        with self._held(lane) as now:
            if now["filling"][0] == NO_SLOT:
                raise RuntimeError(f"lane {lane}: push without claim")
            at, numbers = int(now["filling"][0]) - 1, now["number"]
            if self._spec.order == "window" and numbers.any():
                now["lost"][0] += not now["readers"][numbers.argmax()].any()
            now["readers"][at] = False
            now["filling"][0] = NO_SLOT
            now["pushed"][0] += 1
            numbers[at] = now["pushed"][0]

    def take(self, lane: int) -> Op[Slot]:
        def attempt() -> Any:
            slot = self._copy(lane)
            return NOT_YET if slot is None else slot

        return Op(attempt, self._wait, f"an unroll in lane {lane}")

    def take_any(self, lanes: Sequence[int]) -> Op[tuple[int, Slot]]:
        def attempt() -> Any:
            for lane in lanes:
                slot = self._copy(lane)
                if slot is not None:
                    return lane, slot
            return NOT_YET

        return Op(attempt, self._wait, f"an unroll in any of lanes {list(lanes)}")

    def _copy(self, lane: int) -> Slot | None:
        window = self._spec.order == "window"
        newest = self._look(lane)["number"].max()
        if not newest or (window and newest == self._seen[lane] and not self._reread):
            return None  # checked without the lock, since most checks find nothing
        rank, offset = self._at[lane]
        with self._held(lane) as now:
            numbers = now["number"]
            full = np.flatnonzero(numbers)
            if not len(full):
                return None
            at = int(full[numbers[full].argmin() if self._spec.order == "queue" else numbers[full].argmax()])
            number, readers = int(numbers[at]), now["readers"][at]
            copy = self._free.pop() if self._free else Copy(self._spec.record)
            self._window.get(rank, offset + self._first + at * self._spec.record.nbytes, copy.raw)
            if number != self._seen[lane]:
                now["reads"][self._consumer] += np.array([1, readers.any()])
            readers[self._consumer] = True
            self._seen[lane] = number
            if not window:
                numbers[at] = 0
        self._taken[lane].append(copy)
        return copy.views

    def release(self, lane: int) -> None:
        if not self._taken[lane]:
            raise RuntimeError(f"lane {lane}: release without take")
        self._free.append(self._taken[lane].pop(0))

    def discard(self, lane: int) -> None:
        self._free.append(self._taken[lane].pop())

    def untake(self, lane: int) -> None:
        raise RuntimeError(f"lane {lane}: a copy cannot be given back, its slot may have been filled again")

    def depth(self, lane: int) -> int:
        numbers = self._look(lane)["number"]
        if self._spec.order == "window":
            return int(self._reread or numbers.max() > self._seen[lane])
        return int(np.count_nonzero(numbers))

    def pushed(self, lane: int) -> int:
        return int(self._look(lane)["pushed"][0])

    def finish(self, lane: int) -> None:
        with self._held(lane) as now:
            now["ended"][0] = 1

    def active(self) -> np.ndarray:
        lanes = [self._look(lane) for lane in range(self.lanes)]
        seen = self._seen if self._spec.order == "window" else np.zeros(self.lanes, np.int64)
        return np.array([not now["ended"][0] or now["number"].max() > s for now, s in zip(lanes, seen, strict=True)])

    def lost(self) -> int:
        return sum(int(self._look(lane)["lost"][0]) for lane in range(self.lanes))

    def collisions(self) -> np.ndarray:
        return np.asarray(np.sum([self._look(lane)["reads"] for lane in range(self.lanes)], axis=0))


def _slots(spec: StreamSpec) -> int:
    """Slots per lane. A window needs two: the newest, and the one that is being filled."""
    return 2 if spec.order == "window" else spec.depth


def _numbers(spec: StreamSpec) -> Record:
    """The numbers of one lane: those of `MemorySharedStream`, except that `reads` are counted per lane."""
    return Record(
        (
            Field("number", (_slots(spec),), "int64"),
            Field("readers", (_slots(spec), len(spec.consumers)), "bool"),
            Field("filling", (1,), "int64"),
            Field("pushed", (1,), "int64"),
            Field("ended", (1,), "int64"),
            Field("lost", (1,), "int64"),
            Field("reads", (len(spec.consumers), 2), "int64"),
        )
    )
