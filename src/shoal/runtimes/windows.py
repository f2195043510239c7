"""Memory shared between ranks: a window on one node, one-sided access across nodes."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import numpy as np

from shoal.core.record import ALIGN, Record
from shoal.runtimes.ranks import Ranks
from shoal.runtimes.watch import BUILDING

SHORTEST, LONGEST = 2e-5, 1e-3  # seconds of a nap
YIELDS = 20  # times that a wait only yields the core before it sleeps
SAME = 2e-4  # seconds between two naps that belong to one wait


class Nap:
    """A bell without a wake-up, because MPI cannot wake a sleeping rank: `wait` sleeps briefly, and longer the longer it waits."""

    def __init__(self, fence: Any) -> None:
        self._fence = fence
        self._waits, self._woke = 0, 0.0

    def ring(self) -> None:
        self._fence()

    def wait(self, seconds: float) -> None:
        went_on = time.monotonic() - self._woke > SAME
        self._waits = 0 if went_on else self._waits + 1
        pause = SHORTEST * 2 ** min(self._waits - YIELDS, 10) if self._waits > YIELDS else 0.0
        time.sleep(min(pause, LONGEST, seconds))
        self._woke = time.monotonic()


class SharedWindow:
    """One memory mapped by every rank of a node: plain ports work on it as they do between processes."""

    def __init__(self, here: Ranks, size: int) -> None:
        self._win = here.mpi.Win.Allocate_shared(size + ALIGN if here.rank == 0 else 0, 1, comm=here.world)
        memory, _ = self._win.Shared_query(0)
        self.memory = memory
        if here.rank == 0:
            np.frombuffer(memory, np.uint8)[:] = 0
        self.fence = self._win.Sync
        self._win.Lock_all(here.mpi.MODE_NOCHECK)
        self.locks = _locks_file(here)  # its bytes are locked, never written: the kernel frees a dead rank's locks
        here.world.Barrier()

    def free(self) -> None:
        os.close(self.locks)
        self._win.Unlock_all()
        self._win.Free()


def _locks_file(here: Ranks) -> int:
    """An unlinked file that every rank of this node has open."""
    path = os.path.join(tempfile.gettempdir(), f"shoal-locks-{os.getpid()}-{time.monotonic_ns()}")
    path = here.share(path.encode() if here.rank == 0 else None).decode()
    if here.rank == 0:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        here.world.Barrier()
    else:
        here.world.Barrier()
        fd = os.open(path, os.O_RDWR)
    here.world.Barrier()
    if here.rank == 0:
        os.unlink(path)
    return fd


class RemoteWindow:
    """One window with a part hosted by each rank, which every rank reads and writes without the host's help.

    Numbers are 64-bit and atomic. An access is complete when the call returns.
    """

    def __init__(self, here: Ranks, size: int) -> None:
        self._mpi, self.rank = here.mpi, here.rank
        self._win = here.mpi.Win.Allocate(size + ALIGN, 1, comm=here.world)
        raw = np.frombuffer(self._win.tomemory(), np.uint8)
        raw[:] = 0
        self._own = raw
        self._one, self._two = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._answer = np.zeros(1, np.int64)
        self._win.Lock_all(here.mpi.MODE_NOCHECK)
        self.fence = self._win.Sync
        here.world.Barrier()

    def views(self, record: Record, at: int) -> dict[str, np.ndarray]:
        """Arrays over this rank's own part."""
        return record.views(self._own.data, at)

    def load(self, rank: int, at: int) -> int:
        self._win.Fetch_and_op(self._one, self._answer, rank, at, self._mpi.NO_OP)
        self._win.Flush(rank)
        return int(self._answer[0])

    def store(self, rank: int, at: int, value: int) -> None:
        self._one[0] = value
        self._win.Fetch_and_op(self._one, self._answer, rank, at, self._mpi.REPLACE)
        self._win.Flush(rank)

    def post(self, rank: int, at: int, value: int) -> None:
        """Store without waiting for arrival."""
        self._one[0] = value
        self._win.Accumulate(self._one, rank, at, op=self._mpi.REPLACE)
        self._win.Flush_local(rank)

    def add(self, rank: int, at: int, value: int) -> int:
        """Add `value`. Returns the number before."""
        self._one[0] = value
        self._win.Fetch_and_op(self._one, self._answer, rank, at, self._mpi.SUM)
        self._win.Flush(rank)
        return int(self._answer[0])

    def swap(self, rank: int, at: int, expected: int, value: int) -> bool:
        """Replace `expected` by `value`. Returns False if another number was there."""
        self._one[0], self._two[0] = value, expected
        self._win.Compare_and_swap(self._one, self._two, self._answer, rank, at)
        self._win.Flush(rank)
        return bool(self._answer[0] == expected)

    def get(self, rank: int, at: int, into: np.ndarray) -> None:
        self._win.Get([into, self._mpi.BYTE], rank, [at, into.nbytes, self._mpi.BYTE])
        self._win.Flush(rank)

    def put(self, rank: int, at: int, array: np.ndarray) -> None:
        self._win.Put([array, self._mpi.BYTE], rank, [at, array.nbytes, self._mpi.BYTE])
        self._win.Flush(rank)

    def free(self) -> None:
        self._win.Unlock_all()
        self._win.Free()


class RemotePulse:
    """A pulse (`watch.Pulse`) at the front of rank 0's part. Posts are not waited for: a busy rank 0 sees them late."""

    def __init__(self, window: RemoteWindow, record: Record, rank: int) -> None:
        calls, _ = record.fields
        self._window, self._count = window, 0
        self._calls = rank * 8
        self._ready = -(-calls.nbytes // ALIGN) * ALIGN + rank * 8

    def begin(self) -> None:
        self._count = BUILDING
        self._window.post(0, self._calls, self._count)

    def ready(self) -> None:
        self._window.post(0, self._ready, 1)

    def env(self, inside: bool) -> None:
        self._count += 1
        self._window.post(0, self._calls, self._count)


class Copy:
    """A record in this rank's memory and the bytes behind it, to receive a copy of another rank's slot."""

    def __init__(self, record: Record) -> None:
        raw = np.zeros(record.nbytes + ALIGN, np.uint8)
        start = -raw.ctypes.data % ALIGN
        self.raw = raw[start : start + record.nbytes]
        self.views = record.views(raw.data, start)
