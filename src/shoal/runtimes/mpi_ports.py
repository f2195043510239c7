"""Ports across nodes: one-sided access to windows that the producing rank hosts, and a Group by MPI's all-gather.

A lane of a Stream is hosted by its producer, which fills slots in place; the consumer reads the head and fetches the slot. A
Board is hosted by its writer. Reads need no answer: the hosting rank may be busy meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.core.ports import NOT_YET, Op, Slot
from shoal.core.program import BoardSpec, GroupSpec, PortSpec, StreamSpec
from shoal.core.record import ALIGN, Field, Record
from shoal.runtimes.mpi_shared_stream import RmaSharedStream
from shoal.runtimes.ranks import Ranks
from shoal.runtimes.windows import Copy, Nap, RemoteWindow

At = tuple[int, int]  # (rank, offset in its part of the window)
RankOf = Mapping[str, int]  # of each role

PUSHED, TAKEN, RELEASED = 0, ALIGN, 2 * ALIGN  # offsets of a lane's counters, a cache line each
SLOTS = 3 * ALIGN


class RmaStream:
    """One ring of slots per lane, hosted by its producer. Head and tail are atomic numbers beside it."""

    def __init__(self, spec: StreamSpec, window: RemoteWindow, at: Sequence[At], bell: Nap) -> None:
        self.lanes, self._depth, self._record = len(spec.producers), spec.depth, spec.record
        self._window, self._at, self._wait = window, at, bell.wait
        self._pushed = [0] * self.lanes  # last known values: each counter has one writer
        self._taken, self._released = [0] * self.lanes, [0] * self.lanes
        self._own = {
            lane: [window.views(spec.record, offset + SLOTS + i * spec.record.nbytes) for i in range(spec.depth)]
            for lane, (rank, offset) in enumerate(at)
            if rank == window.rank
        }
        self._copies: dict[int, list[Copy]] = {}

    @staticmethod
    def parts(spec: StreamSpec, rank_of: RankOf) -> list[tuple[int, int]]:
        return [(rank_of[name], SLOTS + spec.depth * spec.record.nbytes) for name in spec.producers]

    def _load(self, lane: int, counter: int) -> int:
        rank, offset = self._at[lane]
        return self._window.load(rank, offset + counter)

    def _store(self, lane: int, counter: int, value: int) -> None:
        rank, offset = self._at[lane]
        self._window.store(rank, offset + counter, value)

    def claim(self, lane: int) -> Op[Slot]:
        def attempt() -> Any:
            pushed = self._pushed[lane]
            if pushed - self._released[lane] >= self._depth:
                self._released[lane] = self._load(lane, RELEASED)
            return self._own[lane][pushed % self._depth] if pushed - self._released[lane] < self._depth else NOT_YET

        return Op(attempt, self._wait, f"an empty slot in lane {lane}")

    def push(self, lane: int) -> None:
        self._window.fence()  # the slot must be written before the number that announces it
        self._pushed[lane] += 1
        self._store(lane, PUSHED, self._pushed[lane])

    def take(self, lane: int) -> Op[Slot]:
        def attempt() -> Any:
            slot = self._fetch(lane)
            return NOT_YET if slot is None else slot

        return Op(attempt, self._wait, f"an unroll in lane {lane}")

    def take_any(self, lanes: Sequence[int]) -> Op[tuple[int, Slot]]:
        def attempt() -> Any:
            for lane in lanes:
                slot = self._fetch(lane)
                if slot is not None:
                    return lane, slot
            return NOT_YET

        return Op(attempt, self._wait, f"an unroll in any of lanes {list(lanes)}")

    def _fetch(self, lane: int) -> Slot | None:
        taken = self._taken[lane]
        if self._pushed[lane] == taken:
            self._pushed[lane] = self._load(lane, PUSHED)
        if self._pushed[lane] == taken:
            return None
        copies = self._copies.setdefault(lane, [Copy(self._record) for _ in range(self._depth)])
        copy, (rank, offset) = copies[taken % self._depth], self._at[lane]
        self._window.get(rank, offset + SLOTS + taken % self._depth * self._record.nbytes, copy.raw)
        self._taken[lane] = taken + 1
        self._store(lane, TAKEN, taken + 1)
        return copy.views

    def release(self, lane: int) -> None:
        if self._released[lane] >= self._taken[lane]:
            raise RuntimeError(f"lane {lane}: release without take")
        self._released[lane] += 1
        self._store(lane, RELEASED, self._released[lane])

    def untake(self, lane: int) -> None:
        self._taken[lane] = self._released[lane]
        self._store(lane, TAKEN, self._taken[lane])

    def depth(self, lane: int) -> int:
        return self._load(lane, PUSHED) - self._load(lane, TAKEN)

    def pushed(self, lane: int) -> int:
        return self._load(lane, PUSHED)


class RmaBoard:
    """The last versions, hosted by the writer, each between two copies of its number, which differ while it is written."""

    def __init__(self, spec: BoardSpec, window: RemoteWindow, at: Sequence[At], bell: Nap) -> None:
        self._history, self._size = spec.history, spec.size
        self._window, (self._rank, self._offset), self._wait = window, at[0], bell.wait
        self._vectors = ALIGN * (1 + spec.history)  # after the head and one line per version with both numbers
        self._stride = -(-4 * spec.size // ALIGN) * ALIGN
        row = Record((Field("vector", (spec.size,), "float32"),))
        self._rows = (
            [window.views(row, self._vector_at(i))["vector"] for i in range(spec.history)]
            if self._rank == window.rank
            else []
        )

    @staticmethod
    def parts(spec: BoardSpec, rank_of: RankOf) -> list[tuple[int, int]]:
        return [(rank_of[spec.writer], ALIGN * (1 + spec.history) + spec.history * (4 * spec.size + ALIGN))]

    def _vector_at(self, i: int) -> int:
        return self._offset + self._vectors + i * self._stride

    def _number_at(self, i: int, after: bool) -> int:
        return self._offset + ALIGN * (1 + i) + 8 * after

    def _newest(self) -> int:
        return self._window.load(self._rank, self._offset) - 1

    def publish(self, version: int, vector: np.ndarray) -> None:
        newest, window, at = self._newest(), self._window, version % self._history
        if version <= newest:
            raise ValueError(f"version {version} is not newer than {newest}: versions only rise")
        if vector.shape != (self._size,):
            raise ValueError(f"a vector of shape {vector.shape}; this board holds ({self._size},)")
        window.store(self._rank, self._number_at(at, after=False), version + 1)  # zero means never written
        window.fence()
        self._rows[at][...] = vector
        window.fence()
        window.store(self._rank, self._number_at(at, after=True), version + 1)
        window.store(self._rank, self._offset, version + 1)

    def read(self, version: int) -> Op[np.ndarray]:
        def attempt() -> Any:
            newest = self._newest()
            if newest < version:
                return NOT_YET
            copy = self._copy(version)
            if copy is None:
                raise LookupError(f"version {version} is gone: the newest is {newest}, {self._history} are kept")
            return copy

        return Op(attempt, self._wait, f"version {version} of the weights")

    def _copy(self, version: int) -> np.ndarray | None:
        at, copy = version % self._history, np.empty(self._size, np.float32)
        if self._window.load(self._rank, self._number_at(at, after=True)) != version + 1:
            return None
        self._window.get(self._rank, self._vector_at(at), copy)
        return copy if self._window.load(self._rank, self._number_at(at, after=False)) == version + 1 else None

    def latest(self) -> tuple[int, np.ndarray]:
        while True:
            version = self._newest()
            if version < 0:
                return -1, np.zeros(self._size, np.float32)
            copy = self._copy(version)
            if copy is not None:
                return version, copy
            self._wait(1.0)  # the writer has wrapped around the whole history meanwhile: let it finish


class RmaGroup:
    """All members' vectors by MPI's all-gather, then added up by each member in the order of their numbers.

    MPI's own all-reduce is not used: its order of summation, and so the bits, may change with the size of the message and the
    number of ranks. Here the bits equal those of every other runtime.
    """

    def __init__(self, spec: GroupSpec, here: Ranks, rank_of: RankOf, bell: Nap) -> None:
        self.members, self._size, self._wait = spec.members, spec.size, bell.wait
        self._here = here
        ranks = [rank_of[name] for name in spec.roles] if spec.roles else list(range(spec.members))
        colour = 0 if here.rank in ranks else here.mpi.UNDEFINED
        self._comm = here.world.Split(colour, ranks.index(here.rank) if here.rank in ranks else 0)
        self._rounds = 0  # entered by this member
        self._round: tuple[Any, np.ndarray, np.ndarray] | None = None  # the current one: request, given, rows

    def mean(self, member: int, vector: np.ndarray) -> Op[np.ndarray]:
        if vector.ndim != 1 or vector.size > self._size:
            raise ValueError(f"a vector of shape {vector.shape}; this group's have at most {self._size} numbers")
        if self._round is not None:
            raise RuntimeError(f"member {member} entered one round twice")
        request, rows = self._enter(np.array(vector, np.float32))
        answer: list[np.ndarray] = []

        def attempt() -> Any:
            if not answer:
                if not request.Test():
                    return NOT_YET
                self._round = None
                total = rows[0]
                for other in range(1, self.members):
                    total = total + rows[other]
                answer.append(np.asarray(total / np.float32(self.members)))
            return answer[0]

        return Op(attempt, self._wait, "the other members of this round")

    def _enter(self, given: np.ndarray) -> tuple[Any, np.ndarray]:
        """Begin a round. MPI reads and writes the arrays until it is complete, even if the caller no longer waits."""
        rows = np.empty((self.members, given.size), np.float32)
        byte = self._here.mpi.BYTE
        request = self._comm.Iallgather([given, byte], [rows, byte])
        self._rounds += 1
        self._round = request, given, rows
        return request, rows

    def free(self) -> None:
        """Free the group; collective over all ranks. Members that a stop kept from the last round enter it now, so that it ends."""
        size = 0 if self._round is None else self._round[1].size
        # The maximum over ranks gives the last round and its size.
        furthest = np.array([self._rounds << 32 | size], np.int64)
        self._here.world.Allreduce(self._here.mpi.IN_PLACE, furthest, op=self._here.mpi.MAX)
        rounds, size = int(furthest[0]) >> 32, int(furthest[0]) & 0xFFFFFFFF
        if not self._comm:
            return  # not a member
        if self._rounds < rounds:
            self._finish()
            self._enter(np.zeros(size, np.float32))
        self._finish()
        self._comm.Free()

    def _finish(self) -> None:
        if self._round is not None:
            self._round[0].Wait()
        self._round = None


HOSTED: dict[str, Any] = {"Stream": RmaStream, "Board": RmaBoard}
RMA = frozenset({*HOSTED, "Group"})


def rma_window(
    specs: Mapping[str, PortSpec], here: Ranks, rank_of: RankOf, first: int = 0
) -> tuple[RemoteWindow, dict[str, list[At]]]:
    """One window for all ports, and each port's offsets in it, after `first` bytes on rank 0. Collective."""
    used = [first] + [0] * (here.size - 1)
    at: dict[str, list[At]] = {name: [] for name in specs}
    for name, spec in specs.items():
        for rank, size in _made_by(spec).parts(spec, rank_of) if spec.kind in HOSTED else ():
            at[name].append((rank, used[rank]))
            used[rank] += -(-size // ALIGN) * ALIGN
    return RemoteWindow(here, used[here.rank]), at


def rma_ports(
    specs: Mapping[str, PortSpec], here: Ranks, rank_of: RankOf, window: RemoteWindow, at: Mapping[str, list[At]]
) -> dict[str, Any]:
    """The ports as this rank sees them. Collective if there is a Group: every rank makes them in the same order."""
    bell = Nap(window.fence)
    return {
        name: RmaGroup(spec, here, rank_of, bell)
        if isinstance(spec, GroupSpec)
        else _made_by(spec)(spec, window, at[name], bell)
        for name, spec in specs.items()
    }


def _made_by(spec: PortSpec) -> Any:
    return RmaSharedStream if isinstance(spec, StreamSpec) and spec.shared else HOSTED[spec.kind]
