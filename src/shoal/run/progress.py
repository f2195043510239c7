"""Live progress of a run: a panel on a terminal, occasional lines elsewhere. Writes to standard error only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from shoal.run.live import LiveDisplay, number

_BARS = "▁▂▃▄▅▆▇█"
_PHASES = {"collect": "cyan", "learn": "magenta", "broadcast": "yellow", "wait": "bright_black"}


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
    shown = {
        n.removeprefix("status/").replace("_per_s", "/s"): v for n, v in metrics.items() if n.startswith("status/")
    }
    words = [f"{n} {v:,.0f}" if v == round(v) or abs(v) >= 100 else f"{n} {v:.1f}" for n, v in shown.items()]
    return ("  ".join(words),) if words else ()


class Progress(NamedTuple):
    """The state of a run, for display."""

    env_steps: int = 0
    seconds: float = 0.0  # since the first environment step
    return_mean: float | None = None
    history: Sequence[float] = ()  # of the mean return
    times: Mapping[str, float] = {}  # spent in each phase
    extra: Sequence[str] = ()  # lines below


class Panel(LiveDisplay[Progress]):
    """Live display of a run."""

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
        super().__init__(quiet=quiet, stream=stream)
        if self._live:
            # The first update may take seconds, while environments are made and code is compiled.
            self._live.update(self._render(Progress(extra=("starting",))), refresh=True)

    def update(
        self,
        env_steps: int,
        seconds: float,
        return_mean: float | None = None,
        history: Sequence[float] = (),
        times: Mapping[str, float] | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        """Show the fields of `Progress`. May be called after every update of the learner."""
        self.show(Progress(env_steps, seconds, return_mean, history, times or {}, extra))

    def _left(self, now: Progress) -> str:
        left = now.seconds * max(0, self.total_steps - now.env_steps) / now.env_steps if now.env_steps > 0 else None
        return f"at most {clock(left)} left"

    def _return(self, now: Progress) -> str:
        target = "" if self.target_return is None else f" (target {self.target_return:g})"
        return f"{number(now.return_mean)}{target}"

    def _line(self, state: Progress) -> str:
        parts = [
            f"{self.title}: {state.env_steps:,} of {self.total_steps:,} steps",
            _speed(state),
            f"return {self._return(state)}",
            self._left(state),
            " ".join(f"{name} {share:.0%}" for name, share in shares(state.times).items()),
            *state.extra,
        ]
        return " | ".join(part for part in parts if part)

    def _render(self, state: Progress) -> Any:
        from rich.panel import Panel as Frame
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        rows.add_row("steps", f"{state.env_steps:,} of {self.total_steps:,}   {_speed(state)}")
        done = min(1.0, state.env_steps / max(1, self.total_steps))
        rows.add_row("", ProgressBar(total=1.0, completed=done, width=40))
        rows.add_row("return", Text(self._return(state), style="bold"))
        rows.add_row("", Text(sparkline(state.history), style="green"))
        rows.add_row("time", f"{clock(state.seconds)}   {self._left(state)}")
        bar, legend = Text(), Text()
        for name, share in shares(state.times).items():
            bar.append("█" * round(share * 40), style=_PHASES[name])
            legend.append(f"{name} {share:.0%}  ", style=_PHASES[name])
        if legend:
            rows.add_row("spent", bar)
            rows.add_row("", legend)
        for line in state.extra:
            rows.add_row("", Text(line))
        return Frame(rows, title=Text(self.title, style="bold"), title_align="left", expand=False)


def _speed(now: Progress) -> str:
    return f"{now.env_steps / now.seconds if now.seconds > 0 else 0.0:,.0f} steps/s"
