"""Runs a grid of trainings one after another, each in a process of its own, and compares their results.

A finished run with the same environment and settings is not repeated, so an interrupted comparison can be continued. An
interrupted run starts over, so that its times are those of one uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.config import Positive, build
from shoal.core.errors import BadInput, RunFailed
from shoal.studies.finished import finished_run
from shoal.studies.grid import GridConfig, Skipped, Way, ways_of
from shoal.studies.measured import Values, figures, measure, rows_of

Tell = Callable[[int, int, str], None]  # runs done, runs in all, name of the next run
Say = Callable[[str], None]

_QUIET = {"eval_episodes": 0, "sinks": "jsonl", "checkpoint_every": 1e9}  # defaults; the grid may set others


def grid(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """A grid as an experiment of `shoal reproduce`."""
    return compare(build(GridConfig, size), folder, tell)


@dataclass(frozen=True, kw_only=True)
class GridsConfig:
    """Several grids in one table, for algorithms with different settings."""

    grids: tuple[dict[str, Any], ...]
    """what differs: settings of `GridConfig`, one table each"""
    env: str
    """environment that all of them train on"""
    until_return: float | None = None
    """a run ends when the mean of its last 100 episodes reaches this"""
    steps: Positive | None = None
    """a run ends after this many environment steps at the latest; by default the tuned number"""
    seeds: Positive = 3
    """runs of each combination"""


def grids(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Several grids as one experiment of `shoal reproduce`."""
    config = build(GridsConfig, size)
    shared = {"env": config.env, "until_return": config.until_return, "steps": config.steps, "seeds": config.seeds}
    parts = [build(GridConfig, {**shared, **own}) for own in config.grids]
    counts = [len(ways_of(part)[0]) * part.seeds for part in parts]
    found = []
    for i, part in enumerate(parts):

        def tell_part(done: int, total: int, following: str, before: int = sum(counts[:i])) -> None:
            tell(before + done, sum(counts), following)

        found.append(compare(part, folder, tell_part))
    rows = [row for one in found for row in one["rows"]]
    notes = list(dict.fromkeys(note for one in found for note in one["notes"]))
    return {"rows": rows, "figures": figures(rows, config.until_return), "notes": notes}


def compare(config: GridConfig, folder: Path, tell: Tell, say: Say = lambda line: None) -> dict[str, Any]:
    """Do the missing runs, in folders below `folder`. Returns rows, figures and notes for `observe.comparison`."""
    ways, skipped = ways_of(config)
    for one in skipped:
        say(f"skipped {one.way}: {one.reason}")
    found: dict[str, list[Values]] = {way.keys["way"]: [] for way in ways}
    refused: dict[str, str] = {}
    failed: list[str] = []
    total, done = len(ways) * config.seeds, 0
    # Seeds are the outer loop: after the first round every combination has a run, and a slow phase of the machine hits all.
    for seed in range(config.seeds):
        for way in ways:
            name = way.keys["way"]
            tell(done, total, f"{name}, seed {seed}")
            done += 1
            if name in refused:
                continue
            try:
                found[name].append(measure(_run(way, seed, folder), config.until_return))
            except BadInput as error:
                refused[name] = str(error)
                say(f"skipped {name}: {error}")
            except RunFailed as error:
                failed.append(f"{name}, seed {seed}: {error}")
                say(f"failed {failed[-1]}")
            else:
                say(_line(name, seed, found[name][-1]))
    skipped += [Skipped(name, reason) for name, reason in refused.items()]
    measured = [way for way in ways if found[way.keys["way"]]]
    if not measured:
        raise RunFailed(f"no run finished: {(failed or [f'{s.way}: {s.reason}' for s in skipped])[0]}")
    rows = rows_of(measured, found)
    notes = [f"skipped {one.way}: {one.reason}" for one in skipped] + [f"failed {line}" for line in failed]
    return {"rows": rows, "figures": figures(rows, config.until_return), "notes": notes + _remarks(config, rows)}


def _run(way: Way, seed: int, folder: Path) -> Path:
    return finished_run(["train", way.env], {**_QUIET, **way.settings, "seed": seed}, folder / way.folder(seed))


def _line(name: str, seed: int, values: Values) -> str:
    what = {"yes": "solved", "no": "not solved"}.get(values.get("solved", ""), "trained")
    parts = [f"{values['episodes']:,} episodes"] if "episodes" in values else []
    parts += [f"{values['seconds']:.1f} s"] if "seconds" in values else []
    parts += [f"{values['steps_per_s']:,.0f} steps/s"] if "steps_per_s" in values else []
    return f"{name}, seed {seed}: {what}" + (f", {', '.join(parts)}" if parts else "")


def _remarks(config: GridConfig, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Notes that a reader needs to understand the table."""
    if config.until_return is None:
        return ["no --until-return: every run spent its budget, so times compare equal work and not equal results"]
    lines = [f"the goal: a mean of {config.until_return:g} over the last 100 training episodes"]
    if any("no" in row["values"].get("solved", ()) for row in rows):
        lines.append(
            "episodes, env steps and seconds are means over the runs that reached the goal; `solved` counts them"
        )
    return lines


RUNNERS: dict[str, Callable[[Mapping[str, Any], Path, Tell], dict[str, Any]]] = {"grid": grid, "grids": grids}
