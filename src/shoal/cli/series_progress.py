"""Progress of a series of runs on standard error: a bar on a terminal, one line per run elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple


class SeriesProgress(NamedTuple):
    tell: Callable[[int, int, str], None]  # runs done, runs in all, name of the next run
    say: Callable[[str], None]  # a line that stays


@contextlib.contextmanager
def series_progress(name: str, *, quiet: bool) -> Iterator[SeriesProgress]:
    """Show progress while the block runs."""
    if quiet:
        yield SeriesProgress(lambda done, total, what: None, lambda line: None)
        return

    def plain(line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield SeriesProgress(lambda done, total, what: plain(f"{done + 1} of {total}: {what}"), plain)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield SeriesProgress(
            lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
            lambda line: bar.console.print(line, markup=False, highlight=False),
        )
        bar.update(task, description="done")
