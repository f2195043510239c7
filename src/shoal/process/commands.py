"""Shoal's own commands in processes of their own: nothing of a run is left in the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

GRACE = 15.0  # seconds that an interrupted command has to write its checkpoint
# The kernel ends the command if we are killed; being a process's own wish, it outlives the exec that follows.
_ENTRY = """
import ctypes, os, signal, sys
library = ctypes.CDLL(None)
if hasattr(library, "prctl"):
    library.prctl(1, signal.SIGTERM)
if sys.argv[2] == "train":  # which lets them through once it can answer
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "shoal", *sys.argv[2:]])
"""


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        return reason(self.code, self.err)


def reason(code: int, err: str) -> str:
    """The last line of standard error: where a command says in one line why it refused or failed."""
    lines = err.strip().splitlines()
    return lines[-1].removeprefix("shoal: ") if lines else f"it ended with code {code} and no word"


def run_command(words: Sequence[str]) -> Finished:
    """`shoal WORDS ...`, to its end. An interrupt or SIGTERM here is handed on, and raised once the command has ended."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        child = _started(words, subprocess.PIPE, subprocess.PIPE)
        try:
            out, err = child.communicate()
        except BaseException:
            child.send_signal(signal.SIGINT)
            try:
                child.communicate(timeout=GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return Finished(child.returncode, out, err)


class Command:
    """`shoal WORDS ...` beside this process, with which it ends. What it prints on standard output is dropped."""

    def __init__(self, words: Sequence[str]) -> None:
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the command may write)
        self._child = _started(words, subprocess.DEVNULL, self._err)

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._child.poll()

    def send(self, number: signal.Signals) -> None:
        """A signal; it has no effect once the command has ended."""
        self._child.send_signal(number)

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code, waited for at most this long; None if it still runs."""
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    @property
    def reason(self) -> str:
        """Why a command that has ended refused or failed, in one line."""
        self._err.seek(0)
        return reason(self._child.returncode, self._err.read().decode(errors="replace"))


def _started(words: Sequence[str], out: Any, err: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        [sys.executable, "-c", _ENTRY, str(os.getpid()), *words],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        process_group=0,  # a terminal's Ctrl-C comes through us: once, and in order
    )
