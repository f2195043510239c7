"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path

import msgspec

_guard: Guard | None = None


class Guard(msgspec.Struct, frozen=True):
    """A process that restarts another one when that is killed. Process ids are reused, so its start time is stored too."""

    pid: int
    began: str  # in ticks since the machine booted; empty if the system does not report it

    @classmethod
    def of(cls, pid: int) -> Guard:
        return cls(pid, _stat(pid)[1])

    def lives(self) -> bool:
        """Whether it still runs on this machine."""
        state, began = _stat(self.pid)
        return state not in ("", "Z", "X") and began == self.began


def _stat(pid: int) -> tuple[str, str]:
    """(state, start) of a process, as in proc(5); empty words if it is gone or this is not Linux."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return words[0], words[19]


def guard() -> Guard | None:
    """The guard of this process, if it has one."""
    return _guard


def guarded_by(pid: int) -> None:
    """Note that `pid` is the guard of this process."""
    global _guard
    _guard = Guard.of(pid)


def killed_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, even if one of them hangs. Works only on Linux."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
