"""Shoal's own commands in processes of their own, so that no state is left over from one run to the next."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

from shoal.process.signals import PAUSE, REQUESTS

GRACE = 15.0  # seconds for an interrupted command to write its checkpoint
RUNS = 0.02  # seconds that a slowed command runs between two stops
# The kernel ends the command when the thread that started it ends; the setting survives the exec that follows.
_ENTRY = """
import ctypes, os, signal, sys
library = ctypes.CDLL(None)
if hasattr(library, "prctl"):
    library.prctl(1, int(sys.argv[2]))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "shoal", *sys.argv[3:]])
"""


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        return reason(self.code, self.err)


def reason(code: int, err: str) -> str:
    """The last line of standard error, in which a command says why it refused or failed."""
    lines = err.strip().splitlines()
    return lines[-1].removeprefix("shoal: ") if lines else f"it ended with code {code} and no message"


def run_command(words: Sequence[str], seconds: float | None = None) -> Finished:
    """Run `shoal WORDS ...` to its end; after `seconds`, a training is asked to pause, which ends it with a checkpoint.

    An interrupt or SIGTERM is passed on, and raised here once the command has ended.
    """

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        child = start(words, subprocess.PIPE, subprocess.PIPE)
        try:
            try:
                out, err = child.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                child.send_signal(PAUSE)
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
    """`shoal WORDS ...` in a child process, which ends with this one. Its standard output is dropped.

    With `slow` F it takes F times as long, as on a slower machine: it is repeatedly stopped for F - 1 times as long as it
    has just run. Its own subprocesses are not slowed down. A stopped process receives no request, so the kernel kills it if
    this one is killed.
    """

    def __init__(self, words: Sequence[str], *, slow: float = 1.0) -> None:
        self._err, path = tempfile.mkstemp()  # not a pipe, which could fill up and block it
        os.unlink(path)
        orphaned = signal.SIGKILL if slow > 1.0 else signal.SIGTERM
        self._child = self._started(words, self._err, orphaned)
        self.reason = ""  # why it refused or failed, in one line, once it has ended
        self._full_speed = threading.Event()
        self._slowing = threading.Thread(target=self._slow_down, args=(slow,), daemon=True)
        if slow > 1.0:
            self._slowing.start()

    def _started(self, words: Sequence[str], err: int, orphaned: signal.Signals) -> subprocess.Popen[str]:
        return start(words, subprocess.DEVNULL, err, orphaned)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while the command runs."""
        return self.wait(0.0)

    def at_full_speed(self) -> None:
        """Stop slowing it down."""
        self._full_speed.set()
        if self._slowing.is_alive():
            self._slowing.join()

    def _slow_down(self, factor: float) -> None:
        began = time.monotonic()
        while not self._full_speed.wait(RUNS) and self._child.poll() is None:
            ran = time.monotonic() - began
            self._child.send_signal(signal.SIGSTOP)
            self._full_speed.wait((factor - 1.0) * ran)
            began = time.monotonic()
            self._child.send_signal(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, which has no effect once the command has ended."""
        self._child.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Wait at most this long for the exit code; None if the command still runs."""
        try:
            code = self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):  # what was not written yet has no reader
                self._child.stdin.close()
        if not self.reason:
            with open(self._err, "rb") as err:
                err.seek(0)
                self.reason = reason(code, err.read().decode(errors="replace"))
        return code


def wait_for_any(commands: Sequence[Command], seconds: float) -> None:
    """Wait until one of them ends, at most this long. A system without pidfds waits the full time."""
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        for command in commands:
            if command.code is not None:
                return
            with contextlib.suppress(OSError, AttributeError):  # it has just ended, or this system has no pidfds
                descriptor = os.pidfd_open(command.pid)
                stack.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1e3)


@cache
def _spawner(pid: int) -> ThreadPoolExecutor:
    """A thread that lives as long as this process, to start commands for threads that may end before them."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="shoal-spawner")


def start(words: Sequence[str], out: Any, err: Any, orphaned: signal.Signals = signal.SIGTERM) -> subprocess.Popen[str]:
    """Start `shoal WORDS ...`; the kernel sends `orphaned` when this process ends."""
    if threading.current_thread() is threading.main_thread():
        return _spawn(words, out, err, orphaned)
    return _spawner(os.getpid()).submit(_spawn, words, out, err, orphaned).result()


def _spawn(words: Sequence[str], out: Any, err: Any, orphaned: signal.Signals) -> subprocess.Popen[str]:
    # A training starts with these signals blocked, and unblocks them once it has handlers: none is lost, none kills it.
    held = REQUESTS if words[0] in ("train", "join") else ()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _ENTRY, str(os.getpid()), str(int(orphaned)), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            process_group=0,  # a terminal's Ctrl-C reaches it through us, once and in order
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
