"""Results of runs side by side: values of each run, rows of a table with intervals, figures and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.run.files import write_atomically
from shoal.run.folder import read_json
from shoal.run.sinks import read_metrics
from shoal.run.timeline import series, timeline
from shoal.studies.grid import Way
from shoal.studies.statistics import interval

Values = dict[str, Any]

# The measured values, in the order of the table: {name: (title, the figure's hint or None for no figure)}.
COLUMNS: dict[str, tuple[str, str | None]] = {
    "solved": ("solved", None),
    "episodes": ("episodes", "Training episodes until the goal was reached, of all actors together. Fewer is better."),
    "s_per_episode": ("s/episode", "Seconds of training for each episode, of all actors together. Less is better."),
    "seconds": ("seconds", "Seconds from the first environment step until the goal was reached. Less is better."),
    "minutes": ("minutes", None),
    "speedup": ("speed-up", "Speed relative to the smallest number of actors. More is better."),
    "env_steps": ("env steps", None),
    "efficiency": (
        "samples against sync",
        "Environment steps that sync needed, divided by those needed here: below 1, lag has cost experience.",
    ),
    "steps_per_s": ("steps/s", "Environment steps per second while training. More is better."),
    "lag": ("lag", "Age of the weights that acted, in versions, on average."),
    "lag_max": ("lag, most", None),
    "lock_ms": ("lock, ms", "Milliseconds that a worker waited for the lock per unroll, on average."),
    "model_error": ("model error", "Error of the world model on held-out transitions, at the end."),
    "return_mean": ("return", None),
    "eval_mean": ("greedy return", None),
    "setup_s": ("set-up, s", None),
}
_TITLES = {
    "episodes": "Episodes to solve",
    "s_per_episode": "Seconds per episode",
    "seconds": "Total time",
    "speedup": "Speed-up",
    "efficiency": "Sample efficiency against sync",
    "steps_per_s": "Throughput",
    "lag": "Policy lag",
    "lock_ms": "Waiting for the lock",
    "model_error": "Error of the world model",
}


def measure(run: Path, until_return: float | None) -> Values:
    """The values of one finished run. Values that count until the goal are left out if it was not reached."""
    summary = read_json(run / "summary.json")
    rows = timeline(read_metrics(run / "metrics.jsonl"))
    solved = summary["solved_at_s"] is not None
    values: Values = {"seed": summary["seed"], "run": str(run)}
    if until_return is not None:
        values["solved"] = "yes" if solved else "no"
    if solved or until_return is None:
        values |= {name: summary[name] for name in ("episodes", "env_steps")}
        values |= {"seconds": summary["wall_s"], "minutes": summary["wall_s"] / 60}
    if summary["episodes"]:
        values["s_per_episode"] = summary["wall_s"] / summary["episodes"]
    values |= {"lag": summary["lag_mean"], "lag_max": summary["lag_max"]}
    values |= {name: summary[name] for name in ("steps_per_s", "return_mean", "eval_mean", "setup_s")}
    _, locked = series(rows, "time/lock")
    if len(locked):
        values["lock_ms"] = 1e3 * float(locked.sum()) * summary["actors"] / max(1, summary["updates"])  # per unroll
    _, errors = series(rows, "model/error")
    if len(errors):
        values["model_error"] = float(errors[-1])
    return {name: value for name, value in values.items() if value is not None}


def rows_of(ways: Sequence[Way], found: Mapping[str, Sequence[Values]]) -> list[dict[str, Any]]:
    """One row per combination, with one value per run; ratios to other rows are a mean with its interval."""
    rows: list[dict[str, Any]] = []
    for way in ways:
        runs = found[way.keys["way"]]
        values: Values = {c: [run[c] for run in runs if c in run] for c in COLUMNS if any(c in run for run in runs)}
        rows.append({"keys": dict(way.keys), "values": values, "runs": list(runs)})
    for row in rows:
        alike = [r for r in rows if r["keys"]["series"] == row["keys"]["series"]]
        if len(alike) > 1:
            _put(row, "speedup", min(alike, key=lambda r: int(r["keys"]["actors"])), "seconds")
        synced = [r for r in rows if r["keys"]["topology"] == "sync" and _settings(r) == _settings(row)]
        if synced and row["keys"]["topology"] != "sync":
            _put(row, "efficiency", synced[0], "env_steps")
    return rows


def _settings(row: Mapping[str, Any]) -> dict[str, str]:
    """Everything that varies beside the topology."""
    return {
        axis: word for axis, word in row["keys"].items() if axis not in ("topology", "consistency", "way", "series")
    }


def _put(row: dict[str, Any], name: str, base: Mapping[str, Any], of: str) -> None:
    top, bottom = base["values"].get(of), row["values"].get(of)
    if top and bottom:
        row["values"][name] = {"mean": 1.0, "ci": None} if row is base else ratio(top, bottom)


def ratio(top: Sequence[float], bottom: Sequence[float]) -> dict[str, Any]:
    """The ratio of two means, with a 95 % bootstrap interval in which both are resampled."""
    a, b = np.asarray(top, float), np.asarray(bottom, float)
    mean = float(a.mean() / b.mean())
    if min(len(a), len(b)) < 2:
        return {"mean": mean, "ci": None}
    rng = np.random.default_rng(0)
    again = rng.choice(a, (2000, len(a))).mean(1) / rng.choice(b, (2000, len(b))).mean(1)
    return {"mean": mean, "ci": [float(end) for end in np.quantile(again, [0.025, 0.975])]}


def summary_of(value: Any) -> tuple[float, float | None, float | None] | None:
    """(mean, low, high) of one cell; None if it holds no numbers."""
    if isinstance(value, Mapping):
        ends = value["ci"] or (None, None)
        return float(value["mean"]), ends[0], ends[1]
    numbers = [float(v) for v in value or () if not isinstance(v, str) and np.isfinite(v)]
    if not numbers:
        return None
    low, high = interval(numbers) or (None, None)
    return float(np.mean(numbers)), low, high


def figures(rows: Sequence[Mapping[str, Any]], until_return: float | None) -> list[dict[str, Any]]:
    """One figure for each measured value, over the number of actors."""
    made = []
    for column, (title, hint) in COLUMNS.items():
        lines: dict[str, list[dict[str, Any]]] = {}
        for row in rows if hint else ():
            summary = summary_of(row["values"].get(column))
            if summary is not None:
                mean, low, high = summary
                point = {"actors": int(row["keys"]["actors"]), "mean": mean, "low": low, "high": high}
                lines.setdefault(row["keys"]["series"], []).append(point)
        if not any(lines.values()):
            continue
        text = hint if until_return is not None else str(hint).replace("until the goal was reached", "in the budget")
        made.append(
            {
                "kind": "actors",
                "name": column,
                "title": _TITLES[column] if until_return is not None or column != "episodes" else "Episodes",
                "hint": f"{text} Bars: 95 % intervals over the seeds.",
                "y": title,
                "lines": [{"name": name, "points": points} for name, points in lines.items()],
            }
        )
    return made


def table_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The table of a comparison, without empty columns."""
    shown = {
        c: title for c, (title, _) in COLUMNS.items() if c != "minutes" and any(c in row["values"] for row in rows)
    }
    return {"title": "Side by side", "key": "way", "columns": shown}


def write_csv(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `table.csv`, one line per combination with mean, low and high of each column, and `runs.csv`, one line per run."""
    names = [c for c in COLUMNS if any(c in row["values"] for row in rows)]
    keys = list(dict.fromkeys(key for row in rows for key in row["keys"]))
    lines: list[list[Any]] = [[*keys, "runs", *(f"{c}{end}" for c in names for end in ("", "_low", "_high"))]]
    runs: list[list[Any]] = [[*keys, "seed", *names, "run"]]
    for row in rows:
        values, labels = row["values"], [row["keys"].get(key, "") for key in keys]
        cells: list[Any] = []
        for c in names:
            if c == "solved":
                cells += [values.get(c, []).count("yes"), "", ""]
            else:
                cells += ["" if v is None else v for v in summary_of(values.get(c)) or (None, None, None)]
        lines.append([*labels, len(row["runs"]), *cells])
        runs += [[*labels, run["seed"], *(run.get(c, "") for c in names), run["run"]] for run in row["runs"]]
    for name, table in (("table.csv", lines), ("runs.csv", runs)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(table)
        write_atomically(folder / name, text.getvalue().encode())
