"""Base of live displays: a panel on a terminal, occasional lines elsewhere. Writes to standard error only."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Generic, Self, TextIO, TypeVar

_REFRESH_S = 0.25
_LINE_S = 5.0

S = TypeVar("S")


class LiveDisplay(ABC, Generic[S]):
    """Live display of a state. A context manager: leaving it (or `close`) restores the terminal and leaves the last state visible.

    `show` may be called at any rate: it draws at most four times a second on a terminal, and every five seconds elsewhere.
    """

    def __init__(self, *, quiet: bool, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._live: Any = None
        self._said: set[str] = set()
        self._drawn = -math.inf
        self._last: S | None = None  # shown and not yet drawn
        if not quiet and self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            # No refresh thread: drawing happens in `show`, so it never competes with training.
            self._live = Live(console=Console(file=self._stream), auto_refresh=False, redirect_stdout=False)
            self._live.start()

    @abstractmethod
    def _render(self, state: S) -> Any:
        """The state as a rich renderable, for a terminal."""

    @abstractmethod
    def _line(self, state: S) -> str:
        """The state as one line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show(self, state: S) -> None:
        """Show this state, now or at the next drawing."""
        if self._quiet:
            return
        self._last, now = state, time.monotonic()
        if now - self._drawn >= (_REFRESH_S if self._live else _LINE_S):
            self._drawn = now
            self._draw()

    def say(self, message: str) -> None:
        """Print a line above the panel, even when quiet: it reports a problem."""
        with contextlib.suppress(OSError):  # as in `_draw`
            if self._live:
                self._live.console.print(message, markup=False, highlight=False, soft_wrap=True)
            else:
                print(message, file=self._stream, flush=True)

    def say_once(self, message: str) -> None:
        """`say`, unless it has been said before."""
        if message not in self._said:
            self._said.add(message)
            self.say(message)

    def close(self) -> None:
        """Draw the last state, unless it is drawn already, and restore the terminal. May be called twice."""
        if self._last is not None:
            self._draw()
        if self._live:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        assert self._last is not None
        state, self._last = self._last, None
        # The terminal may be gone, or a log's disk full: there is no way to report it, and training continues.
        with contextlib.suppress(OSError):
            if self._live:
                self._live.update(self._render(state), refresh=True)
            else:
                print(self._line(state), file=self._stream, flush=True)


def number(value: float | None) -> str:
    """`12.3`; a dash for a number that is unknown or not finite."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.1f}"
