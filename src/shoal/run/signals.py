"""Stopping on request: the first SIGINT or SIGTERM asks, the second insists."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTE = b"stopping after this update: checkpointing (again to exit now)\n"


class StopRequest:
    """While entered, SIGINT or SIGTERM sets `requested`; a second one runs the abort callbacks and exits at once.

    Handlers are set with `signal.signal`, for shells start background jobs with SIGINT ignored. Outside the main thread
    Python allows no handlers: then it is inactive, and only `request` sets it.
    """

    def __init__(self, note: bytes = _NOTE) -> None:
        self.requested = False
        self.active = False
        self._note = note
        self._signals = 0
        self._callbacks: list[Callable[[], None]] = []
        self._previous: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        """As the first signal does, silently: for callbacks that want the run to end."""
        self.requested = True

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call `callback` before the second signal exits, newest first: to kill children, to restore the terminal."""
        self._callbacks.append(callback)

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # how Python says that this is not the main thread
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
            self.active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from Python and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        self.active = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._signals += 1
        if self._signals == 1:
            # Unbuffered: the handler may run in the middle of another print. A closed stderr must not stop the stop.
            with contextlib.suppress(OSError):
                os.write(2, self._note)
            return
        for callback in reversed(self._callbacks):
            try:
                callback()
            except Exception:  # the others still have children to kill
                traceback.print_exc()
        os._exit(128 + number)
