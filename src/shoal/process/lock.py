"""One training at a time in a run folder: a lock that the kernel frees when its holder dies, whatever kills it."""

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

NAME = "run.lock"
_held: set[int] = set()  # descriptors of this process


class Holder(msgspec.Struct):
    """What the file says of the process that holds it, or held it last."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class RunLock:
    """While entered, no other training may use `folder`; `BadInput` says which one does. Readers need no lock.

    Only the process that took it holds it: one that it forks gives its copy up at once, or a child that outlives the run would
    keep others out. The file goes with its holder; one that was opened before it went is not taken for the folder's lock.
    """

    def __init__(self, folder: Path, on_alert: Callable[[str], None] = lambda message: None) -> None:
        self._path, self._on_alert = folder / NAME, on_alert
        self._fd: int | None = None

    def __enter__(self) -> Self:
        _give_up_in_children()
        while (descriptor := self._open()) is not None and not self._is_current(descriptor):
            os.close(descriptor)  # its holder has removed it meanwhile
        if descriptor is None:
            return self
        self._fd = descriptor
        _held.add(descriptor)
        now = Holder(os.getpid(), socket.gethostname(), time.strftime("%F %T"))
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(now) + b"\n", 0)
        except OSError as error:  # a full disk: the lock holds all the same
            self._on_alert(f"cannot write {self._path}: {error.strerror}")
        return self

    def _open(self) -> int | None:
        """The file, locked; None where the file system has no locks."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadInput(f"cannot write the run folder {str(self._path.parent)!r}: {error.strerror}") from None
        try:
            _take(descriptor)
        except OSError as error:
            said = os.pread(descriptor, 1 << 12, 0)
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise BadInput(
                    f"the run folder {str(self._path.parent)!r} is in use by {_holder(said)}: one training at a time"
                ) from None
            self._on_alert(
                f"cannot lock {self._path}: {error.strerror}; see to it that no other training uses the folder"
            )
            return None
        return descriptor

    def _is_current(self, descriptor: int) -> bool:
        """Whether the file is still the one that the folder's entry names."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd in _held:  # and not in a process that was forked meanwhile
            _held.discard(self._fd)
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._fd)
        self._fd = None


def holder_of(folder: Path) -> Holder | None:
    """The process that trains in `folder` now; None if none does."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return _decoded(os.pread(descriptor, 1 << 12, 0))
    finally:
        os.close(descriptor)


def wait_for(holder: Holder, seconds: float) -> None:
    """Wait until this process has ended, at most so long. Of one on another machine nothing is heard: the time passes."""
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        if holder.host == socket.gethostname():
            with contextlib.suppress(OSError, AttributeError):  # it has ended; or this system has no such descriptors
                descriptor = os.pidfd_open(holder.pid)
                stack.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1e3)


def _take(descriptor: int) -> None:
    """Lock for this process alone; OSError if another holds the lock, though not if one merely looks who does."""
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a look shares: only a holder refuses it


def _decoded(said: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(said, type=Holder)
    except msgspec.MsgspecError:  # it has not said so yet
        return None


def _holder(said: bytes) -> str:
    return str(_decoded(said) or "another process")


@cache
def _give_up_in_children() -> None:
    """Once a process. Closing a copy of the descriptor frees nothing of the parent's."""

    def let_go() -> None:
        while _held:
            os.close(_held.pop())

    os.register_at_fork(after_in_child=let_go)
