"""Live progress of a run: a panel on a terminal, occasional lines elsewhere. Writes to standard error only."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

_BARS = "▁▂▃▄▅▆▇█"
_PHASES = {"collect": "cyan", "learn": "magenta", "broadcast": "yellow", "wait": "bright_black"}
_REFRESH_S = 0.25
_LINE_S = 5.0


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """`values` as a line of at most `width` characters, each the mean of its share; gaps where no value is finite."""
    if not values:
        return ""
    width = min(width, len(values))
    cuts = [len(values) * i // width for i in range(width + 1)]
    shares = [[v for v in values[a:b] if math.isfinite(v)] for a, b in itertools.pairwise(cuts)]
    means = [sum(share) / len(share) if share else math.nan for share in shares]
    finite = [m for m in means if math.isfinite(m)]
    if not finite:
        return " " * width
    low, span = min(finite), max(finite) - min(finite)
    # A flat course is drawn at half height.
    levels = [0.5 if span == 0 else (m - low) / span for m in means]
    return "".join(" " if math.isnan(x) else _BARS[min(7, int(x * 8))] for x in levels)


def clock(seconds: float | None) -> str:
    """`4.2 s`, `3:07`, `2:03:45`; a dash for unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shares(times: Mapping[str, float]) -> dict[str, float]:
    """Each phase's share of the total time, {} if nothing was measured."""
    known = {name: max(0.0, times[name]) for name in _PHASES if math.isfinite(times.get(name, math.nan))}
    total = sum(known.values())
    return {name: value / total for name, value in known.items()} if total > 0 else {}


def status(metrics: Mapping[str, float]) -> tuple[str, ...]:
    """The metrics called `status/...`, in which roles describe their work, as one line; () if there are none."""
    said = {n.removeprefix("status/").replace("_per_s", "/s"): v for n, v in metrics.items() if n.startswith("status/")}
    words = [f"{n} {v:,.0f}" if v == round(v) or abs(v) >= 100 else f"{n} {v:.1f}" for n, v in said.items()]
    return ("  ".join(words),) if words else ()


class Panel:
    """Live display of a run. A context manager: leaving it (or `close`) restores the terminal and leaves the last state visible.

    `update` may be called after every update of the learner: it draws at most four times a second.
    """

    def __init__(
        self,
        title: str,
        total_steps: int,
        target_return: float | None = None,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self.title = title
        self.total_steps = total_steps
        self.target_return = target_return
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._live: Any = None
        self._drawn = -math.inf
        self._last: dict[str, Any] | None = None
        if not quiet and self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            # No refresh thread: drawing happens in `update`, so it never competes with the learner.
            self._live = Live(console=Console(file=self._stream), auto_refresh=False, redirect_stdout=False)
            self._live.start()
            # The first update may take seconds, while environments are made and code is compiled.
            self._live.update(self._render(0, 0.0, None, (), {}, ("starting",)), refresh=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(
        self,
        env_steps: int,
        seconds: float,
        return_mean: float | None = None,
        history: Sequence[float] = (),
        times: Mapping[str, float] | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        """`seconds` since the first environment step, `history` of the mean return, `times` spent in each phase."""
        if self._quiet:
            return
        now = time.monotonic()
        self._last = {
            "env_steps": env_steps,
            "seconds": seconds,
            "return_mean": return_mean,
            "history": history,
            "times": times or {},
            "extra": extra,
        }
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

    def close(self) -> None:
        """Draw the last state and restore the terminal. May be called twice."""
        if self._last is not None:
            self._draw()
            self._last = None
        if self._live:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        assert self._last is not None
        # The terminal may be gone, or a log's disk full: there is no way to report it, and training continues.
        with contextlib.suppress(OSError):
            if self._live:
                self._live.update(self._render(**self._last), refresh=True)
            else:
                print(self._line(**self._last), file=self._stream, flush=True)

    def _left(self, env_steps: int, seconds: float) -> float | None:
        return seconds * max(0, self.total_steps - env_steps) / env_steps if env_steps > 0 else None

    def _line(
        self,
        env_steps: int,
        seconds: float,
        return_mean: float | None,
        history: Sequence[float],
        times: Mapping[str, float],
        extra: Sequence[str],
    ) -> str:
        speed = env_steps / seconds if seconds > 0 else 0.0
        parts = [
            f"{self.title}: {env_steps:,} of {self.total_steps:,} steps",
            f"{speed:,.0f} steps/s",
            f"return {_number(return_mean)}{self._target()}",
            f"at most {clock(self._left(env_steps, seconds))} left",
            " ".join(f"{name} {share:.0%}" for name, share in shares(times).items()),
            *extra,
        ]
        return " | ".join(part for part in parts if part)

    def _target(self) -> str:
        return "" if self.target_return is None else f" (target {self.target_return:g})"

    def _render(
        self,
        env_steps: int,
        seconds: float,
        return_mean: float | None,
        history: Sequence[float],
        times: Mapping[str, float],
        extra: Sequence[str],
    ) -> Any:
        from rich.panel import Panel as Frame
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        speed = env_steps / seconds if seconds > 0 else 0.0
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        rows.add_row("steps", f"{env_steps:,} of {self.total_steps:,}   {speed:,.0f} steps/s")
        done = min(1.0, env_steps / max(1, self.total_steps))
        rows.add_row("", ProgressBar(total=1.0, completed=done, width=40))
        rows.add_row("return", Text(f"{_number(return_mean)}{self._target()}", style="bold"))
        rows.add_row("", Text(sparkline(history), style="green"))
        rows.add_row("time", f"{clock(seconds)}   at most {clock(self._left(env_steps, seconds))} left")
        bar, legend = Text(), Text()
        for name, share in shares(times).items():
            bar.append("█" * round(share * 40), style=_PHASES[name])
            legend.append(f"{name} {share:.0%}  ", style=_PHASES[name])
        if legend:
            rows.add_row("spent", bar)
            rows.add_row("", legend)
        for line in extra:
            rows.add_row("", Text(line))
        return Frame(rows, title=Text(self.title, style="bold"), title_align="left", expand=False)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.1f}"
