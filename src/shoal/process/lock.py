"""A lock that allows one training at a time in a run folder; the kernel frees it when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from shoal.core.errors import BadInput
from shoal.process.lifetime import Guard, guard

NAME = "run.lock"
HELD = (errno.EWOULDBLOCK, errno.EACCES)  # errors that mean: another process holds the lock
RETRY = 0.3  # seconds to try for the lock: another process's `holder_of` holds it for microseconds
_held: set[int] = set()  # descriptors of this process


class Holder(msgspec.Struct):
    """The lock file's contents: the process that holds it, or held it last."""

    pid: int
    host: str
    since: str
    guard: Guard | None = None  # the process that restarts this one when it is killed
    takes_signals: bool = True  # False for a training outside the main thread

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}" if self.pid else "another process"


UNKNOWN = Holder(0, "", "")  # holds a lock whose file it has not written, or could not


class RunLock:
    """While entered, no other training may use `folder`. Raises `BadInput`, naming the holder, if one does. Readers need no lock.

    Only the process that took the lock holds it. A forked child closes its copy at once: otherwise a child that outlives the
    run would keep others out. The holder removes the file; a file that was opened before its removal does not count as the
    folder's lock.
    """

    def __init__(
        self, folder: Path, on_alert: Callable[[str], None] = lambda message: None, *, takes_signals: bool = True
    ) -> None:
        self._path, self._on_alert, self._takes_signals = folder / NAME, on_alert, takes_signals
        self._fd: int | None = None

    def __enter__(self) -> Self:
        _give_up_in_children()
        while (descriptor := self._open()) is not None and not self._is_current(descriptor):
            os.close(descriptor)  # its holder has removed it meanwhile
        if descriptor is None:
            return self
        self._fd = descriptor
        _held.add(descriptor)
        now = Holder(os.getpid(), socket.gethostname(), time.strftime("%F %T"), guard(), self._takes_signals)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(now) + b"\n", 0)
        except OSError as error:  # a full disk: the lock is held nevertheless
            self._on_alert(f"cannot write {self._path}: {error.strerror}")
        return self

    def _open(self) -> int | None:
        """Open and lock the file; None if the file system has no locks."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadInput(f"cannot write the run folder {str(self._path.parent)!r}: {error.strerror}") from None
        try:
            _lock(descriptor)
        except OSError as error:
            said = os.pread(descriptor, 1 << 12, 0)
            os.close(descriptor)
            if error.errno in HELD:
                raise BadInput(
                    f"the run folder {str(self._path.parent)!r} is in use by {_holder(said)}: one training at a time"
                ) from None
            self._on_alert(
                f"cannot lock {self._path}: {error.strerror}; make sure that no other training uses the folder"
            )
            return None
        return descriptor

    def _is_current(self, descriptor: int) -> bool:
        """Whether the open file is still the one at the lock's path."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Remove the file and free the lock. Has no effect if it is not held."""
        if self._fd in _held:  # and not in a process that was forked meanwhile
            _held.discard(self._fd)
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._fd)
        self._fd = None


def _lock(descriptor: int) -> None:
    """Take the lock; raises `OSError` if a training holds it. Retries while `holder_of` holds it, which shares the lock."""
    deadline = time.monotonic() + RETRY
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK or time.monotonic() > deadline:
                raise
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def holder_of(folder: Path) -> Holder | None:
    """The process that trains in `folder` now, or whose guard will restart it; None if there is none.

    None also on a file system without locks, where it cannot be known.
    """
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in HELD:
            return None
        return _decoded(os.pread(descriptor, 1 << 12, 0)) or UNKNOWN
    else:
        last = _decoded(os.pread(descriptor, 1 << 12, 0))  # of a process that was killed
        if last is None or last.guard is None or last.host != socket.gethostname():
            return None
        return last if last.guard.lives() else None
    finally:
        os.close(descriptor)


def wait_for(holder: Holder, seconds: float) -> None:
    """Wait until this process, or its guard, has ended, at most `seconds`. For another machine, waits the full time."""
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        if holder.host == socket.gethostname():
            with contextlib.suppress(OSError, AttributeError):  # it has ended, or this system has no pidfds
                descriptor = os.pidfd_open(holder.pid if holder.guard is None else holder.guard.pid)
                stack.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1e3)


def _decoded(said: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(said, type=Holder)
    except msgspec.MsgspecError:  # its holder has not written it yet
        return None


def _holder(said: bytes) -> str:
    return str(_decoded(said) or UNKNOWN)


@cache
def _give_up_in_children() -> None:
    """Register, once per process, that forked children close their copies. That does not free the parent's lock."""

    def let_go() -> None:
        while _held:
            os.close(_held.pop())

    os.register_at_fork(after_in_child=let_go)
