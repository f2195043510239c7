"""Live progress of a parent: its children with their rates, lags, shares and distances. Writes to standard error only."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TextIO

from shoal.federation.ledger import Child
from shoal.run.progress import clock, sparkline

REFRESH = 0.25  # seconds between two pictures on a terminal
LINE = 5.0  # seconds between two lines elsewhere
MOST = 12  # children with their own line


class Shown(NamedTuple):
    """The state of a parent, for display."""

    seconds: float
    version: int
    updates: int
    pushes: int
    env_steps: int
    budget: str  # for people: "of 100,000"
    done: float  # spent share of the budget
    return_mean: float | None
    evaluated: float | None
    course: Sequence[float]
    children: Sequence[Child]
    rejected: int


class ParentPanel:
    """A picture on a terminal, a line now and then elsewhere. A context manager that gives the terminal back."""

    def __init__(self, title: str, url: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._title, self._url, self._quiet = title, url, quiet
        self._stream = stream if stream is not None else sys.stderr
        self._drawn, self._live = -math.inf, None
        self._last: Shown | None = None
        if not quiet and self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), auto_refresh=False, redirect_stdout=False)
            self._live.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, shown: Shown) -> None:
        """Show this state. May be called at any rate: it draws at most four times a second."""
        if self._quiet:
            return
        self._last, now = shown, time.monotonic()
        if now - self._drawn >= (REFRESH if self._live else LINE):
            self._drawn = now
            self._draw()

    def say(self, message: str) -> None:
        """A line for the user above the panel."""
        with contextlib.suppress(OSError):  # a terminal that is gone: there is nobody to tell
            if self._live:
                self._live.console.print(message, markup=False, highlight=False, soft_wrap=True)
            else:
                print(message, file=self._stream, flush=True)

    def close(self) -> None:
        """Draw the last state and give the terminal back. May be called twice."""
        if self._last is not None:
            self._draw()
            self._last = None
        if self._live:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        assert self._last is not None
        with contextlib.suppress(OSError):
            if self._live:
                self._live.update(self._render(self._last), refresh=True)
            else:
                print(line(self._title, self._last), file=self._stream, flush=True)

    def _render(self, shown: Shown) -> Any:
        from rich.console import Group
        from rich.panel import Panel as Frame
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        rows.add_row("parent", f"{self._url or 'dials its children'}   version {shown.version:,}")
        rows.add_row(
            "steps", f"{shown.env_steps:,} {shown.budget}   {shown.updates:,} updates, {shown.pushes:,} pushes"
        )
        rows.add_row("", ProgressBar(total=1.0, completed=min(1.0, shown.done), width=40))
        rows.add_row("return", Text(_number(shown.return_mean), style="bold"))
        rows.add_row("", Text(sparkline(shown.course), style="green"))
        rows.add_row("evaluation", _number(shown.evaluated))
        rows.add_row("time", f"{clock(shown.seconds)}" + (f"   {shown.rejected} rejected" if shown.rejected else ""))
        children = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("child", "steps/s", "lag", "share", "distance"):
            children.add_column(name, justify="left" if name == "child" else "right")
        for child in shown.children[:MOST]:
            children.add_row(
                child.name if child.present else f"{child.name} (away)",
                f"{child.rate:,.0f}",
                str(child.lag),
                f"{child.share:.0%}",
                f"{child.distance:.3g}",
            )
        if len(shown.children) > MOST:
            children.add_row(f"and {len(shown.children) - MOST} more", "", "", "", "")
        body = Group(rows, children) if shown.children else Group(rows, Text("no child has joined yet", style="dim"))
        return Frame(body, title=Text(self._title, style="bold"), title_align="left", expand=False)


def line(title: str, shown: Shown) -> str:
    """The state in one line."""
    present = [child for child in shown.children if child.present]
    each = ", ".join(f"{child.name} {child.rate:,.0f}/s {child.share:.0%}" for child in present[:4])
    parts = [
        f"{title}: {shown.env_steps:,} {shown.budget}, {shown.updates:,} updates",
        f"return {_number(shown.return_mean)}",
        f"evaluation {_number(shown.evaluated)}" if shown.evaluated is not None else "",
        f"{len(present)} {'child' if len(present) == 1 else 'children'}" + (f" ({each})" if each else ""),
        f"{shown.rejected} rejected" if shown.rejected else "",
        clock(shown.seconds),
    ]
    return " | ".join(part for part in parts if part)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.1f}"
