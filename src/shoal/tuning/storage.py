"""Optuna's journal file with a lock that is released when its holder dies.

Optuna's own locks are files that exist or not: a killed holder blocks all other processes for 30 s, and waiters back off for up
to a second. `flock` belongs to an open file, so the kernel releases it when the holder dies and wakes a waiter at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalStorage

from shoal.core.errors import BadInput

_CHUNK = 1 << 16


def open_journal(path: str | Path, *, sync_every: float = 0.0) -> JournalStorage:
    """Open the journal file at `path`, created if it is missing, as a storage for any Optuna study.

    Every entry is synced to disk before it is acknowledged. With `sync_every`, the file is synced only every `sync_every` seconds:
    a killed process loses nothing, a power cut loses at most that many seconds. `BadInput` if `path` cannot be a journal.
    """
    name = str(path)
    lock = JournalLock(name)
    try:
        lock.acquire()
        lock.release()
        return JournalStorage(_JournalFile(name, lock, sync_every))
    except OSError as error:
        raise BadInput(f"cannot open the journal {name!r}: {error.strerror}") from None
    except ValueError as error:  # a line that is not JSON, with others after it
        raise BadInput(f"{name!r} is not a journal: {error}") from None


class _JournalFile(JournalFileBackend):
    """Optuna's journal file with fewer syncs to disk."""

    def __init__(self, path: str, lock: JournalLock, sync_every: float) -> None:
        super().__init__(path, lock_obj=lock)  # type: ignore[arg-type]  # its base class is private
        self._own, self._guard = path, lock
        self._every, self._synced = sync_every, -float("inf")

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        data = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self._guard.acquire()
        try:
            with open(self._own, "ab") as file:
                file.write(data)
                file.flush()
                if time.monotonic() - self._synced >= self._every:
                    os.fsync(file.fileno())
                    self._synced = time.monotonic()
        finally:
            self._guard.release()


class JournalLock:
    """Exclusive lock on PATH.lock, for Optuna's `lock_obj`; `acquire` also repairs the journal.

    A writer that was killed during an append leaves half a line, and one more append would make the file unreadable. While the
    lock is held, no writer can be in the middle of a line, so `acquire` cuts off an incomplete one. Not for network file
    systems older than NFSv4.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._held: int | None = None

    def acquire(self) -> bool:
        # A new descriptor each time, so that two threads of one process exclude each other like two processes.
        descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _cut_torn_line(self._path)
        except BaseException:
            os.close(descriptor)
            raise
        self._held = descriptor
        return True

    def release(self) -> None:
        descriptor, self._held = self._held, None
        if descriptor is None:
            raise RuntimeError(f"the lock of {self._path} is not held")
        os.close(descriptor)


def _cut_torn_line(name: str) -> None:
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if not size or os.pread(descriptor, 1, size - 1) == b"\n":
            return
        end = size
        while end:  # backwards to the last newline
            begin = max(0, end - _CHUNK)
            found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
            if found >= 0:
                end = begin + found + 1
                break
            end = begin
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
