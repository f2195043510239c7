"""A guarded process that answers requests: it may crash, hang or be killed without harm to its parent.

It is started by an entry module of its own (`guarded_worker`), as the workers of `processes` are. The work is cloudpickled
from a parent to its own child; requests and answers are frames of bytes over pipes, and the user defines their meaning. The
child marks in shared memory when it enters and leaves a foreign call, such as a step of an environment. The parent
therefore notices a call that does not return, even while it holds Python's lock, and knows which call crashed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import cloudpickle

from shoal.core.errors import RunFailed
from shoal.core.record import Field, Record
from shoal.runtimes.processes import cause, has_fd
from shoal.runtimes.watch import START_TIMEOUT

HEADER = struct.Struct("<cQ")  # kind and length of a frame
READY, PART, END, BUG = b"r", b"p", b"e", b"b"

CLOCK = Record((Field("since", (), "float64"), Field("which", (), "int64")))  # monotonic seconds, 0 outside of calls
OUTSIDE = -1

Mark = Callable[[int], None]  # marks the begin of a foreign call by a number of the caller's choice; `OUTSIDE`: its end
Answer = Callable[[bytes, Mark], Iterator[bytes]]  # yields the messages that answer a request


class CannotSend(RunFailed):
    """The work for the process cannot be pickled."""


class Gone(NamedTuple):
    """How a process ended: `died`, `hung`, `unsent` if it could not load the work, or `bug` for an exception of the work."""

    kind: Literal["died", "hung", "unsent", "bug"]
    detail: str
    which: int = OUTSIDE  # the number of the foreign call that it was in


def frame(kind: bytes, data: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(data)) + data


class Guarded:
    """A guarded process. Used by one thread at a time; the kernel ends the process with the thread that started it."""

    def __init__(self, answer: Answer, *, timeout: float, nice: int = 0, gently: bool = False) -> None:
        """`timeout`: seconds that a foreign call may take. `nice`: its priority; `gently`: load at low priority.

        Raises `CannotSend` if `answer` cannot be pickled.
        """
        try:
            recipe = cloudpickle.dumps(answer)
        except Exception as error:
            raise CannotSend(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        self._timeout = timeout
        self._started = time.monotonic()
        self._ready = False
        self._ended: Gone | None = None
        self._unread = bytearray()
        self._asked = self._answered = 0
        asked, self._requests = os.pipe()
        self._messages, said = os.pipe()
        os.set_blocking(self._requests, False)
        os.set_blocking(self._messages, False)
        with tempfile.TemporaryFile() as clock:  # unnamed, so that no file is left behind
            clock.truncate(CLOCK.nbytes)
            self._clock = CLOCK.views(mmap.mmap(clock.fileno(), CLOCK.nbytes))
            self._clock["which"][...] = OUTSIDE
            words = [str(number) for number in (asked, said, clock.fileno(), nice, int(gently))]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shoal.runtimes.guarded_worker", *words],
                pass_fds=(asked, said, clock.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if has_fd(sys.stderr) else None,
                process_group=0,  # a terminal's Ctrl-C goes to the whole group, and is the parent's to answer
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        os.close(asked)
        os.close(said)
        self._unsent = bytearray(frame(PART, recipe))

    def ask(self, request: bytes) -> None:
        """Send a request without waiting; `hear` sends the part that does not fit into the pipe.

        A request that is still being answered is abandoned, and the rest of its messages are dropped.
        """
        self._asked += 1
        self._unsent += frame(PART, request)
        self._send()

    def hear(self, seconds: float = 0.0) -> Iterator[bytes]:
        """The messages that have arrived, after waiting at most `seconds` for one.

        Once the process has ended, `gone` says how, and no further message arrives.
        """
        if self._ended is None:
            wait_for_any([self], seconds)
            self._read()
            yield from self._heard()  # before the look: it may say that the process has started
            if self._ended is None:
                self._look()
        yield from self._heard()

    def _heard(self) -> Iterator[bytes]:
        while (whole := self._next()) is not None:
            kind, data = whole
            if kind == READY:
                self._ready = True
            elif kind == BUG:
                self._ended = Gone("bug" if self._ready else "unsent", data.decode())
            elif kind == END:
                self._answered += 1
            elif self._answered == self._asked - 1:
                yield data

    def watch(self, poll: select.poll) -> None:
        """Let `poll` wake when `hear` would find something: a message, the process's end, or room for the rest of a request."""
        if self._ended is None:
            self._send()
            poll.register(self._messages, select.POLLIN)
            if self._unsent:
                poll.register(self._requests, select.POLLOUT)

    @property
    def gone(self) -> Gone | None:
        """How the process ended; None while it is alive."""
        return self._ended

    def kill(self) -> None:
        """End the process at once, with any processes that its environments started. Safe to call from a signal handler."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and close its pipes. May be called twice."""
        self.kill()
        self._process.wait()
        self._ended = self._ended or Gone("died", "it was closed")
        if self._messages >= 0:
            os.close(self._messages)
            os.close(self._requests)
            self._messages = -1

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                del self._unsent[: os.write(self._requests, self._unsent)]

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._messages, 1 << 20):
                self._unread += data

    def _look(self) -> None:
        """Check whether the process is alive and its current call is within the timeout."""
        code = self._process.poll()
        if code is not None:
            self._read()
            self._ended = Gone("died", cause(code), int(self._clock["which"]))
            return
        since, now = float(self._clock["since"]), time.monotonic()
        if since and now - since > self._timeout:
            what = f"was killed after {now - since:.0f} s: a call of the environment did not return"
            self._ended = Gone("hung", what, int(self._clock["which"]))
            self.kill()
        elif not self._ready and now - self._started > max(START_TIMEOUT, self._timeout):
            self.kill()
            self._ended = Gone("hung", f"was killed after {now - self._started:.0f} s: it did not start")

    def _next(self) -> tuple[bytes, bytes] | None:
        if len(self._unread) < HEADER.size:
            return None
        kind, size = HEADER.unpack_from(self._unread)
        end = HEADER.size + size
        if len(self._unread) < end:
            return None
        data = bytes(self._unread[HEADER.size : end])
        del self._unread[:end]
        return kind, data


def wait_for_any(processes: Iterable[Guarded], seconds: float) -> None:
    """Wait until one of the processes has something to `hear`, or has ended; at most `seconds`."""
    poll = select.poll()  # `select` takes no descriptor above 1023
    for process in processes:
        process.watch(poll)
    poll.poll(1e3 * seconds)
