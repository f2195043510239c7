"""Stopping on request: the first SIGINT or SIGTERM stops gracefully, the second exits at once; SIGUSR1 pauses."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Literal, Self

STOP, PAUSE = signal.SIGTERM, signal.SIGUSR1  # signals that stop or pause a training in another process
REQUESTS = (signal.SIGINT, STOP, PAUSE)
_NOTE = b"stopping after this update: checkpointing (again to exit now)\n"
_PAUSING = b"pausing after this update: checkpointing\n"
_SKIP = b"stopping: what was learnt is saved, the rest is left out (again to exit now)\n"
PATIENCE = 4.0  # seconds after the first signal until a loop that has not ended is interrupted
LAST_RESORT = 1.5  # seconds after that until the process exits without waiting for it
_NUDGE = signal.SIGUSR2  # sent by the listener to its own process, to interrupt the main thread


class StopRequest:
    """While entered, SIGINT or SIGTERM sets `requested`; a second one runs the abort callbacks and exits at once.

    SIGUSR1 sets `requested` too, and `why` to "paused": the run will be resumed later. Repeated SIGUSR1 never exits at once.

    Handlers are set with `signal.signal`, because shells start background jobs with SIGINT ignored. Outside the main thread
    Python allows no handlers: then it is inactive, and only `request` sets it.

    Python runs handlers only between two bytecodes of the main thread, so a compilation or a hanging environment delays
    them. The function that `listener` returns, called in a thread of its own, receives signals at any time.
    """

    def __init__(self, note: bytes = _NOTE) -> None:
        self.requested = False
        self.why: Literal["stopped", "paused"] = "stopped"
        self.active = False
        self._note = note
        self._signals = 0
        self._noted = False
        self._raises = False  # a request interrupts at once
        self._last_resort: Callable[[], None] | None = None
        self._listening = False
        self._callbacks: list[Callable[[], None]] = []
        self._previous: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        """Request a stop silently, as the first signal does: for callbacks that want the run to end."""
        self.requested = True

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call `callback` before the second signal exits, newest first: to kill children, to restore the terminal."""
        self._callbacks.append(callback)

    @contextlib.contextmanager
    def bounded(self, last_resort: Callable[[], None]) -> Iterator[None]:
        """A block that must end soon after a request. If it does not, the listener interrupts it (KeyboardInterrupt);
        if even that has no effect, it calls `last_resort`, and the process exits with 0, or with 1 if that fails."""
        self._last_resort = last_resort
        try:
            yield
        finally:
            self._last_resort = None

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that has nothing to lose: a request interrupts it at once (KeyboardInterrupt)."""
        self._raises = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._raises = False

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # raised by Python outside the main thread
            for number in REQUESTS:
                self._previous[number] = signal.signal(number, self._handle)
            self._previous[_NUDGE] = signal.signal(_NUDGE, self._interrupt)
            self.active = True
        if self.active:
            self._reading, self._writing = os.pipe()
            os.set_blocking(self._writing, False)
            self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from Python and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        if self.active:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._writing)  # the listener reads end of file
            if not self._listening:
                os.close(self._reading)
        self.active = False

    def listener(self) -> Callable[[], None]:
        """A function for a thread of its own, which receives signals until the context is left."""
        self._listening = self.active
        return self._listen if self.active else lambda: None

    def _listen(self) -> None:
        signals = 0
        pending: list[tuple[float, Callable[[], None]]] = []  # (when, what to do) if a request has no effect
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        while True:
            wait = max(0.0, pending[0][0] - time.monotonic()) * 1e3 if pending else None
            if not poll.poll(wait):
                pending.pop(0)[1]()
                continue
            numbers = os.read(self._reading, 64)
            if not numbers:
                os.close(self._reading)
                return
            for number in numbers:
                if number not in REQUESTS:
                    continue
                signals += number != PAUSE
                if signals > 1:
                    self._leave(128 + number)
                self._ask(number)
                if pending:
                    continue
                at = time.monotonic() + PATIENCE
                pending = [(at, self._nudge), (at + LAST_RESORT, self._leave_without)]

    def _ask(self, number: int) -> None:
        if self._noted:
            return
        self.why = "paused" if number == PAUSE else "stopped"
        self._noted = self.requested = True
        # Unbuffered, because the handler may run in the middle of another print. A closed stderr must not prevent the stop.
        with contextlib.suppress(OSError):
            os.write(2, _SKIP if self._raises else _PAUSING if number == PAUSE else self._note)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signals += number != PAUSE
        if self._signals > 1:
            self._leave(128 + number)
        self._ask(number)
        if self._raises:
            raise KeyboardInterrupt

    def _nudge(self) -> None:
        if self._last_resort is not None:
            os.kill(os.getpid(), _NUDGE)  # the kernel delivers it to the main thread and ends its sleep or read

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._last_resort is not None:  # it may have ended just now
            raise KeyboardInterrupt

    def _leave_without(self) -> None:
        last_resort = self._last_resort
        if last_resort is None:
            return
        code = 1
        try:
            last_resort()
            code = 0
        except Exception:  # the process must end nevertheless
            traceback.print_exc()
        self._leave(code)

    def _leave(self, code: int) -> None:
        for callback in reversed(self._callbacks):
            try:
                callback()
            except Exception:  # the others still have children to kill
                traceback.print_exc()
        os._exit(code)


@contextlib.contextmanager
def leaving_at_once(note: bytes = b"stopped before the run began\n") -> Iterator[None]:
    """A block with nothing to save yet: SIGINT, SIGTERM or SIGUSR1 ends the process with 0, even during imports."""

    def leave(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, note)
        os._exit(0)

    previous: dict[signal.Signals, Any] = {}
    with contextlib.suppress(ValueError):  # not the main thread
        for number in REQUESTS:
            previous[number] = signal.signal(number, leave)
        # The process that started this one may have blocked them until there are handlers.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
