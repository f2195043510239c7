"""Progress of a study on standard error: a live table on a terminal, one line per report elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

WORDS = {"continue": "continues", "pause": "pauses", "stop": "stopped", "complete": "complete"}
ROWS = 12  # of the live table


class StudyProgress(NamedTuple):
    begin: Callable[[Any], None]  # the study, before its first event
    tell: Callable[[Any, Any], None]  # an event and the study


@contextlib.contextmanager
def study_progress(*, quiet: bool) -> Iterator[StudyProgress]:
    """Show progress while the block runs."""
    if quiet:
        yield StudyProgress(lambda study: None, lambda event, study: None)
        return
    if not sys.stderr.isatty():

        def say(event: Any, study: Any) -> None:
            text = line_of(event, study)
            if text:
                print(f"tune: {text}", file=sys.stderr, flush=True)

        yield StudyProgress(lambda study: print(f"tune: {heading(study)}", file=sys.stderr, flush=True), say)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield StudyProgress(
            lambda study: live.update(table_of(study), refresh=True),
            lambda event, study: live.update(table_of(study), refresh=True),
        )


def heading(study: Any) -> str:
    from shoal.tuning.spaces import parse_domain, written

    config = study.plan.config
    warmed, warm = study.course.warmed, ""
    if warmed is not None:
        informing = f", {warmed.informing} of its trials inform {config.sampler}" if warmed.informing else ""
        warm = f"; the best {len(warmed.configurations)} of {warmed.source} first{informing}"
        if study.plan.test_seeds:
            tested = study.plan.test_seeds
            seeds = f"seeds {tested[0]} to {tested[-1]}" if len(tested) > 1 else f"seed {tested[0]}"
            warm += f"; winners confirmed on {seeds}, unused by that study"
    buckets = "".join(
        f"; {name} is one of {written(domain)}, each with a program of its own"
        for name, domain in study.plan.space.items()
        if config.population and written(domain) != written(parse_domain(config.space[name]))
    )
    return (
        f"{config.env}: {config.scheduler}, {config.trials} trials of {config.phases} phases of {study.plan.phase},"
        f" {config.workers} workers, in {study.path}{warm}{buckets}"
    )


def line_of(event: Any, study: Any) -> str:
    """One event as text; empty for events that are not shown."""
    from shoal.tuning.events import BASELINE, Lost, Reported, Tested

    if isinstance(event, Lost | Tested):
        who = "default settings" if event.trial == BASELINE else f"trial {event.trial}"
        if isinstance(event, Lost):
            return f"{who} lost on worker {event.slot}, back to the queue: {event.why}"
        solved = "" if event.steps is None else f", solved after {event.steps:,.0f} steps and {event.seconds:.1f} s"
        return f"{who} on fresh seed {event.seed}: {event.why or f'{event.value:.1f}'}{solved}"
    if not isinstance(event, Reported):
        return ""
    trial, config = study.course.trials[event.trial], study.plan.config
    spread = "" if trial.spread is None else f" (sd {trial.spread:.1f})"
    copied = "" if event.source is None else f", copies trial {event.source}"
    score = event.why or f"{event.value:.1f}{spread}"
    done = sum(t.state in ("stopped", "complete") for t in study.trials)
    return (
        f"trial {event.trial}, phase {event.unit} of {config.phases}: {score}: {WORDS[event.verdict]}{copied}"
        f" ({done} of {config.trials} trials over)"
    )


def table_of(study: Any) -> Any:
    """The heading, the running trials, the best of the others, and the fresh seeds so far."""
    from rich.table import Table

    config, trials = study.plan.config, study.trials
    over = sum(trial.state in ("stopped", "complete") for trial in trials)
    tests = sum(len(seeds) for seeds in study.course.tests.values())
    below = f"{over} of {config.trials} trials over, alpha {study.alpha:.0%}" + (
        f", {tests} runs on fresh seeds" if tests else ""
    )
    table = Table(title=heading(study), caption=below, title_justify="left", caption_justify="left")
    for name in ("trial", "state", "phase", "score", *study.plan.space):
        table.add_column(name, justify="left" if name == "state" else "right")
    running = [trial for trial in trials if trial.state in ("running", "waiting")]
    ranked = [trial for trial in study.course.ranked() if trial not in running]
    for trial in (running + ranked)[:ROWS]:
        score = "" if not trial.reports else f"{trial.value:.1f}"
        values = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in trial.settings.values()]
        table.add_row(str(trial.number), trial.state, f"{trial.unit}/{config.phases}", score, *values)
    return table
