"""Live progress of a parent: its children with their rates, lags, shares and distances. Writes to standard error only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from shoal.federation.ledger import Child, Ledger, updates_of
from shoal.federation.state import State
from shoal.run.live import LiveDisplay, number
from shoal.run.progress import clock, sparkline

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


def progress(updates: int, wanted: int | None, steps: int, budget: int) -> tuple[str, float]:
    """(words after the number of steps, spent share of the budget): in updates where those are the budget, else in steps."""
    if wanted is not None:
        return f"steps, {wanted:,} updates wanted", updates / wanted
    return f"of {budget:,}", steps / budget


def shown(state: State, ledger: Ledger, wanted: int | None, budget: int, now: float, **rest: Any) -> Shown:
    """What to show of a parent. `rest`: seconds, evaluated, course, rejected."""
    updates = updates_of(state)
    of, done = progress(updates, wanted, state.steps, budget)
    return Shown(
        version=state.version,
        updates=updates,
        pushes=state.pushes,
        env_steps=state.steps,
        budget=of,
        done=done,
        return_mean=ledger.return_mean,
        children=ledger.children(state, now),
        **rest,
    )


class ParentPanel(LiveDisplay[Shown]):
    """Live display of a parent."""

    def __init__(self, title: str, url: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._title, self._url = title, url
        super().__init__(quiet=quiet, stream=stream)

    def _render(self, state: Shown) -> Any:
        from rich.console import Group
        from rich.panel import Panel as Frame
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        rows.add_row("parent", f"{self._url or 'dials its children'}   version {state.version:,}")
        rows.add_row(
            "steps", f"{state.env_steps:,} {state.budget}   {state.updates:,} updates, {state.pushes:,} pushes"
        )
        rows.add_row("", ProgressBar(total=1.0, completed=min(1.0, state.done), width=40))
        rows.add_row("return", Text(number(state.return_mean), style="bold"))
        rows.add_row("", Text(sparkline(state.course), style="green"))
        rows.add_row("evaluation", number(state.evaluated))
        rows.add_row("time", f"{clock(state.seconds)}" + (f"   {state.rejected} rejected" if state.rejected else ""))
        children = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("child", "steps/s", "lag", "share", "distance"):
            children.add_column(name, justify="left" if name == "child" else "right")
        for child in state.children[:MOST]:
            children.add_row(
                child.name if child.present else f"{child.name} (away)",
                f"{child.rate:,.0f}",
                str(child.lag),
                f"{child.share:.0%}",
                f"{child.distance:.3g}",
            )
        if len(state.children) > MOST:
            children.add_row(f"and {len(state.children) - MOST} more", "", "", "", "")
        body = Group(rows, children) if state.children else Group(rows, Text("no child has joined yet", style="dim"))
        return Frame(body, title=Text(self._title, style="bold"), title_align="left", expand=False)

    def _line(self, state: Shown) -> str:
        present = [child for child in state.children if child.present]
        each = ", ".join(f"{child.name} {child.rate:,.0f}/s {child.share:.0%}" for child in present[:4])
        parts = [
            f"{self._title}: {state.env_steps:,} {state.budget}, {state.updates:,} updates",
            f"return {number(state.return_mean)}",
            f"evaluation {number(state.evaluated)}" if state.evaluated is not None else "",
            f"{len(present)} {'child' if len(present) == 1 else 'children'}" + (f" ({each})" if each else ""),
            f"{state.rejected} rejected" if state.rejected else "",
            clock(state.seconds),
        ]
        return " | ".join(part for part in parts if part)
