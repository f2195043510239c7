"""Stream and Board on plain memory: one implementation for one thread, many threads, and processes that share a mapping.

Counters are aligned 64-bit integers with one writer each; data is written before the counter that announces it. That is
enough on x86-64, which keeps the order of stores; elsewhere the system calls that ring a bell act as the fence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shoal.core.ports import NOT_YET, Op, Slot
from shoal.core.program import BoardSpec, PortSpec, StreamSpec
from shoal.core.record import ALIGN, Field, Record
from shoal.runtimes.calls import MemoryCall
from shoal.runtimes.groups import MemoryGroup
from shoal.runtimes.pools import MemoryPool
from shoal.runtimes.streams import MemorySharedStream
from shoal.runtimes.tables import MemoryRoster, MemoryTable


class Bell(Protocol):
    """Wakes one role. A ring while the role is not waiting is kept until its next wait."""

    def ring(self) -> None: ...

    def wait(self, seconds: float) -> None: ...


class Silent:
    """The bell of a runtime in which no role ever sleeps."""

    def ring(self) -> None:
        return None

    def wait(self, seconds: float) -> None:
        return None


class Lock(Protocol):
    """A lock held by one role at a time. The death of a process that holds it releases it."""

    def attempt(self) -> bool:
        """Take it if it is free. Never blocks."""

    def release(self) -> None: ...


class Free:
    """The lock of a runtime in which roles never run at the same time."""

    def attempt(self) -> bool:
        return True

    def release(self) -> None:
        return None


def no_lock(at: int) -> Lock:
    return Free()


Bells = Mapping[str, Bell]


@dataclass(frozen=True)
class Place:
    """The location of one end of a port: the role that uses it, the bells that wake the others, and the locks."""

    me: str | None  # the role; None if all roles share one end
    bells: Bells
    lock: Callable[[int], Lock] = no_lock  # by byte offset: the same offset gives the same lock in every role


PUSHED, TAKEN, RELEASED = range(3)


class MemoryStream:
    """One ring of slots per lane. `pushed` belongs to the producer, `taken` and `released` to the consumer."""

    def __init__(self, spec: StreamSpec, buffer: Any, offset: int, place: Place) -> None:
        self.lanes = len(spec.producers)
        self._depth = spec.depth
        self._counters = _counters(spec).views(buffer, offset)["counters"]
        start = offset + _counters(spec).nbytes
        size = spec.record.nbytes
        self._slots = [
            [spec.record.views(buffer, start + (lane * spec.depth + i) * size) for i in range(spec.depth)]
            for lane in range(self.lanes)
        ]
        self._producers = [place.bells[name] for name in spec.producers]
        self._consumer = place.bells[spec.consumer]

    @staticmethod
    def nbytes(spec: StreamSpec) -> int:
        return _counters(spec).nbytes + len(spec.producers) * spec.depth * spec.record.nbytes

    def claim(self, lane: int) -> Op[Slot]:
        def attempt() -> Any:
            pushed, _, released = self._counters[lane]
            return self._slots[lane][pushed % self._depth] if pushed - released < self._depth else NOT_YET

        return Op(attempt, self._producers[lane].wait, f"an empty slot in lane {lane}")

    def push(self, lane: int) -> None:
        self._counters[lane, PUSHED] += 1
        self._consumer.ring()

    def take(self, lane: int) -> Op[Slot]:
        def attempt() -> Any:
            pushed, taken, _ = self._counters[lane]
            if pushed == taken:
                return NOT_YET
            self._counters[lane, TAKEN] += 1
            return self._slots[lane][taken % self._depth]

        return Op(attempt, self._consumer.wait, f"an unroll in lane {lane}")

    def take_any(self, lanes: Sequence[int]) -> Op[tuple[int, Slot]]:
        def attempt() -> Any:
            for lane in lanes:
                pushed, taken, _ = self._counters[lane]
                if pushed != taken:
                    self._counters[lane, TAKEN] += 1
                    return lane, self._slots[lane][taken % self._depth]
            return NOT_YET

        return Op(attempt, self._consumer.wait, f"an unroll in any of lanes {list(lanes)}")

    def release(self, lane: int) -> None:
        _, taken, released = self._counters[lane]
        if released >= taken:
            raise RuntimeError(f"lane {lane}: release without take")
        self._counters[lane, RELEASED] += 1
        self._producers[lane].ring()

    def untake(self, lane: int) -> None:
        self._counters[lane, TAKEN] = self._counters[lane, RELEASED]

    def depth(self, lane: int) -> int:
        return int(self._counters[lane, PUSHED] - self._counters[lane, TAKEN])

    def pushed(self, lane: int) -> int:
        return int(self._counters[lane, PUSHED])


def _counters(spec: StreamSpec) -> Record:
    return Record((Field("counters", (len(spec.producers), 3), "int64"),))


class MemoryBoard:
    """The last `history` versions, each between two copies of its number, which differ while a writer is at work."""

    def __init__(self, spec: BoardSpec, buffer: Any, offset: int, place: Place) -> None:
        views = _board(spec).views(buffer, offset)
        self._head, self._before, self._after, self._vectors = (views[f.name] for f in _board(spec).fields)
        self._history, self._size = spec.history, spec.size
        self._readers = [place.bells[name] for name in spec.readers]
        self._waits = None if place.me is None else place.bells[place.me].wait

    @staticmethod
    def nbytes(spec: BoardSpec) -> int:
        return _board(spec).nbytes

    def publish(self, version: int, vector: np.ndarray) -> None:
        newest = int(self._head[0]) - 1
        if version <= newest:
            raise ValueError(f"version {version} is not newer than {newest}: versions only rise")
        if vector.shape != (self._size,):
            raise ValueError(f"a vector of shape {vector.shape}; this board holds ({self._size},)")
        at = version % self._history
        self._before[at] = version + 1  # zero means never written
        self._vectors[at] = vector
        self._after[at] = version + 1
        self._head[0] = version + 1
        for bell in self._readers:
            bell.ring()

    def read(self, version: int) -> Op[np.ndarray]:
        def attempt() -> Any:
            if self._head[0] - 1 < version:
                return NOT_YET
            copy = self._copy(version)
            if copy is None:
                raise LookupError(
                    f"version {version} is gone: the newest is {self._head[0] - 1}, {self._history} are kept"
                )
            return copy

        return Op(attempt, self._waits, f"version {version} of the weights")

    def _copy(self, version: int) -> np.ndarray | None:
        at = version % self._history
        if self._after[at] != version + 1:
            return None
        copy = self._vectors[at].copy()
        return copy if self._before[at] == version + 1 else None

    def latest(self) -> tuple[int, np.ndarray]:
        while True:
            version = int(self._head[0]) - 1
            if version < 0:
                return -1, np.zeros(self._size, np.float32)
            copy = self._copy(version)
            if copy is not None:
                return version, copy
            time.sleep(0)  # the writer has wrapped around the whole history meanwhile: let it finish


def _board(spec: BoardSpec) -> Record:
    return Record(
        (
            Field("head", (1,), "int64"),
            Field("before", (spec.history,), "int64"),
            Field("after", (spec.history,), "int64"),
            Field("vectors", (spec.history, spec.size), "float32"),
        )
    )


PLAIN: dict[str, Any] = {
    "Stream": MemoryStream,
    "Board": MemoryBoard,
    "Pool": MemoryPool,
    "Call": MemoryCall,
    "Group": MemoryGroup,
    "Table": MemoryTable,
    "Roster": MemoryRoster,
}


def _made_by(spec: PortSpec) -> Any:
    return MemorySharedStream if isinstance(spec, StreamSpec) and spec.shared else PLAIN[spec.kind]


def arena_size(specs: Mapping[str, PortSpec]) -> int:
    return sum(_up(_made_by(spec).nbytes(spec)) for spec in specs.values()) + ALIGN


def plain_ports(specs: Mapping[str, PortSpec], buffer: Any, place: Place) -> dict[str, Any]:
    """All ports, laid out one after another over `buffer`, as the role at `place` sees them."""
    ports: dict[str, Any] = {}
    offset = 0
    for name, spec in specs.items():
        ports[name] = _made_by(spec)(spec, buffer, offset, place)
        offset += _up(_made_by(spec).nbytes(spec))
    return ports


def private_arena(specs: Mapping[str, PortSpec]) -> Any:
    """Zeroed memory of this process, aligned so that JAX can read it in place."""
    raw = np.zeros(arena_size(specs) + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start:].data


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
