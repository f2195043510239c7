"""Shared streams on plain memory: queue, stack and window, taken by copy under one lock per lane.

Each slot has a number: 0 while it is empty or being filled, else the number of its push. The oldest slot has the smallest
number, the newest the largest. The lock keeps a slot from being filled while it is copied. A lock is held for one copy, and
no role sleeps while it holds one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.ports import NOT_YET, Op, Slot
from shoal.core.program import StreamSpec
from shoal.core.record import Field, Record

if TYPE_CHECKING:
    from shoal.runtimes.memory import Lock, Place

NO_SLOT = 0  # in `filling`, which counts slots from 1


class MemorySharedStream:
    """All ends see the same counters; `end_of` gives a consumer its own copies and its own record of what it has read."""

    def __init__(self, spec: StreamSpec, buffer: Any, offset: int, place: Place) -> None:
        self.lanes = len(spec.producers)
        self._spec = spec
        views = _counters(spec).views(buffer, offset)
        self._number, self._readers, self._filling, self._pushed, self._ended, self._lost, self._reads = (
            views[f.name] for f in _counters(spec).fields
        )
        start, size, slots = offset + _counters(spec).nbytes, spec.record.nbytes, _slots(spec)
        self._slots = [
            [spec.record.views(buffer, start + (lane * slots + i) * size) for i in range(slots)]
            for lane in range(self.lanes)
        ]
        self._locks = [place.lock(offset + lane) for lane in range(self.lanes)]
        self._producers = [place.bells[name] for name in spec.producers]
        self._consumers = [place.bells[name] for name in spec.consumers]
        self._consumer, self._reread = 0, False
        self._seen = np.zeros(self.lanes, np.int64)
        self._taken: list[list[Slot]] = [[] for _ in range(self.lanes)]
        self._free: list[Slot] = []

    @staticmethod
    def nbytes(spec: StreamSpec) -> int:
        return _counters(spec).nbytes + len(spec.producers) * _slots(spec) * spec.record.nbytes

    def end_of(self, consumer: int, reread: bool = False) -> MemorySharedStream:
        end = object.__new__(MemorySharedStream)
        end.__dict__ |= self.__dict__
        end._consumer, end._reread = consumer, reread
        end._seen = np.zeros(self.lanes, np.int64)
        end._taken, end._free = [[] for _ in range(self.lanes)], []
        return end

    def claim(self, lane: int) -> Op[Slot]:
        def attempt() -> Any:
            with _held(self._locks[lane]):
                if self._filling[lane] == NO_SLOT:
                    room = self._room(lane)
                    if room is None:
                        return NOT_YET
                    self._number[lane, room] = 0
                    self._filling[lane] = room + 1
                return self._slots[lane][self._filling[lane] - 1]

        return Op(attempt, self._producers[lane].wait, f"an empty slot in lane {lane}")

    def _room(self, lane: int) -> int | None:
        """The slot to fill next."""
        numbers = self._number[lane]
        empty = np.flatnonzero(numbers == 0)
        if len(empty):
            return int(empty[0])
        # A window has two slots: the newer one has replaced the older one, which is free to fill.
        return int(numbers.argmin()) if self._spec.order == "window" else None

    def push(self, lane: int) -> None:
        with _held(self._locks[lane]):
            if self._filling[lane] == NO_SLOT:
                raise RuntimeError(f"lane {lane}: push without claim")
            at = int(self._filling[lane]) - 1
            if self._spec.order == "window" and self._number[lane].any():
                replaced = int(self._number[lane].argmax())
                self._lost[lane] += not self._readers[lane, replaced].any()
            self._readers[lane, at] = False
            # The number is last: a producer that dies before it has pushed nothing, and its successor claims an empty slot.
            self._filling[lane] = NO_SLOT
            self._pushed[lane] += 1
            self._number[lane, at] = self._pushed[lane]
        for bell in self._consumers:
            bell.ring()

    def take(self, lane: int) -> Op[Slot]:
        def attempt() -> Any:
            slot = self._copy(lane)
            return NOT_YET if slot is None else slot

        return Op(attempt, self._consumers[self._consumer].wait, f"an unroll in lane {lane}")

    def take_any(self, lanes: Sequence[int]) -> Op[tuple[int, Slot]]:
        def attempt() -> Any:
            for lane in lanes:
                slot = self._copy(lane)
                if slot is not None:
                    return lane, slot
            return NOT_YET

        return Op(attempt, self._consumers[self._consumer].wait, f"an unroll in any of lanes {list(lanes)}")

    def _copy(self, lane: int) -> Slot | None:
        if not self._number[lane].any():
            return None  # checked without the lock, since most checks find nothing
        with _held(self._locks[lane]):
            numbers = self._number[lane]
            full = np.flatnonzero(numbers)
            if not len(full):
                return None
            at = int(full[numbers[full].argmin() if self._spec.order == "queue" else numbers[full].argmax()])
            window, number = self._spec.order == "window", int(numbers[at])
            if window and number == self._seen[lane] and not self._reread:
                return None
            copy = self._free.pop() if self._free else self._spec.record.empty()
            for name, array in self._slots[lane][at].items():
                copy[name][...] = array
            readers = self._readers[lane, at]
            if number != self._seen[lane]:
                self._reads[self._consumer] += np.array([1, readers.any()])
            readers[self._consumer] = True
            self._seen[lane] = number
            if not window:
                self._number[lane, at] = 0
        if not window:
            self._producers[lane].ring()
        self._taken[lane].append(copy)
        return copy

    def release(self, lane: int) -> None:
        if not self._taken[lane]:
            raise RuntimeError(f"lane {lane}: release without take")
        self._free.append(self._taken[lane].pop(0))

    def discard(self, lane: int) -> None:
        self._free.append(self._taken[lane].pop())

    def untake(self, lane: int) -> None:
        raise RuntimeError(f"lane {lane}: a copy cannot be given back, its slot may have been filled again")

    def depth(self, lane: int) -> int:
        numbers = self._number[lane]
        if self._spec.order == "window":
            return int(self._reread or numbers.max() > self._seen[lane])
        return int(np.count_nonzero(numbers))

    def pushed(self, lane: int) -> int:
        return int(self._pushed[lane])

    def finish(self, lane: int) -> None:
        self._ended[lane] = True
        for bell in self._consumers:
            bell.ring()

    def active(self) -> np.ndarray:
        ended = self._ended != 0  # read before the numbers: a producer ends its lane after its last push
        newest = self._number.max(axis=1)
        left = newest > (self._seen if self._spec.order == "window" else 0)
        return np.asarray(~ended | left)

    def lost(self) -> int:
        return int(self._lost.sum())

    def collisions(self) -> np.ndarray:
        return np.array(self._reads)


def _slots(spec: StreamSpec) -> int:
    """Slots per lane. A window needs two: the newest, and the one that is being filled."""
    return 2 if spec.order == "window" else spec.depth


def _counters(spec: StreamSpec) -> Record:
    lanes, consumers = len(spec.producers), len(spec.consumers)
    return Record(
        (
            Field("number", (lanes, _slots(spec)), "int64"),
            Field("readers", (lanes, _slots(spec), consumers), "bool"),
            Field("filling", (lanes,), "int64"),
            Field("pushed", (lanes,), "int64"),
            Field("ended", (lanes,), "int64"),
            Field("lost", (lanes,), "int64"),
            Field("reads", (consumers, 2), "int64"),
        )
    )


@contextlib.contextmanager
def _held(lock: Lock) -> Iterator[None]:
    while not lock.attempt():
        time.sleep(0)  # another role is copying a slot
    try:
        yield
    finally:
        lock.release()
