"""`shoal tune simulate`: schedulers on n nodes, compared without training."""

from __future__ import annotations

import sys
import time
from typing import Any

from shoal.cli.flags import Words, split
from shoal.core.errors import BadInput

SWITCHES = ("json", "quiet", "help")
OPTIONS = (
    "nodes", "trials", "phases", "sigma", "methods", "eviction", "eta", "checkpoint", "metric", "repeats", "seed", "out",
)  # fmt: skip

USAGE = """usage: shoal tune simulate [--nodes N] [--trials N] [--phases N] [--sigma S] [--methods A,B] [--out FOLDER] [--json]

Simulates schedulers on N nodes without training: wall time, units trained, completion rate alpha, context switches, idle time,
time to the best score, and how often the trial with the best final score is trained to the end. All methods get the same trials.

  --nodes N          workers, each with one trial at a time (6)
  --trials N         number of configurations (16)
  --phases N         units of a full training; a unit takes time 1 on average (4)
  --sigma S          spread of the trials' speeds: the standard deviation of their logarithm (0.6)
  --methods A,B      some of hypertrick, sh, hyperband, asha, pbt, random (all)
  --eviction R,S     HyperTrick's eviction rates; each gets its own row (0.25,0.5)
  --eta N            sh, hyperband and asha keep one in N trials (2)
  --checkpoint T     time to save a checkpoint, and to load one (0)
  --metric NAME      constant: ranks never change; exchangeable: a fresh draw each phase; slow: constant, good trials are slow;
                     walk: curves cross (constant)
  --repeats N        simulated studies of each method (100)
  --seed S           seed of the trials (0)
  --out FOLDER       write gantt.png, table.md, results.json and report.html there
  --quiet            no progress
  --json             one JSON object as the last line of standard output
"""


def run(words: list[str]) -> int:
    parsed = split(words, SWITCHES, OPTIONS)
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    if parsed.positional:
        raise BadInput(f"shoal tune simulate takes only options, not {parsed.positional[0]!r}")
    return _simulate(parsed)


def _simulate(parsed: Words) -> int:
    from shoal.cli.series_progress import series_progress
    from shoal.core.config import as_dict, build
    from shoal.observe.comparison import markdown, write_comparison
    from shoal.run.files import one_line
    from shoal.run.folder import RunFolder, describe_machine
    from shoal.tuning.schedules import COLUMNS, SimulateConfig, gantt, measure, methods_of

    config = build(SimulateConfig, {name: text for name, text in parsed.options.items() if name != "out"})
    methods_of(config)
    folder = RunFolder.create(parsed.options["out"], "tune", "simulate", "").path if "out" in parsed.options else None
    began = time.monotonic()
    with series_progress("simulate", quiet="quiet" in parsed.switches) as shown:
        measured = measure(config, shown.tell)
    rows: list[dict[str, Any]] = [{"keys": {"method": one.method.label}, "values": one.values()} for one in measured]
    document = {
        "name": "simulate",
        "title": f"{config.trials} trials of {config.phases} phases on {config.nodes} nodes",
        "source": f"Simulated: sigma {config.sigma:g}, {config.metric} metric, a checkpoint costs {config.checkpoint:g}.",
        "tables": [{"title": "Schedulers", "key": "method", "columns": COLUMNS}],
        "goals": [],
        "size": "",
        "settings": as_dict(config),
        "seeds": config.repeats,
        "took_s": time.monotonic() - began,
        "machine": describe_machine(),
        "reference": {},
        "deviations": [],
        "rows": rows,
        "figures": [gantt(measured, "gantt", "Which node trains which trial")],
        "notes": [
            "wall time, time to best: in units of an average trial",
            "alpha: trained units as a share of the units of all trials trained to the end",
            "keeps the winner: how often the trial with the best final score is trained to the end",
            "pbt: only its schedule is simulated, not what trials gain from copying others",
        ],
    }
    wants_json = "json" in parsed.switches
    print(markdown(document), file=sys.stderr if wants_json else sys.stdout)
    if folder is not None:
        print(f"report: {write_comparison(folder, document)}", file=sys.stderr)
    if wants_json:
        out = {"out": str(folder)} if folder is not None else {}
        print(one_line({"settings": document["settings"], "rows": rows, **out}), flush=True)
    return 0
