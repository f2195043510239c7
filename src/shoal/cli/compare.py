"""`shoal compare`: a grid of trainings, one after another, compared in one table with figures."""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from shoal.cli.flags import one_positional, split
from shoal.cli.series_progress import series_progress
from shoal.core.errors import BadInput

SWITCHES = ("plan", "json", "quiet", "help")
OWN = ("algo", "topology", "consistency", "actors", "until-return", "steps", "seeds", "out")
LISTS = ("net.hidden", "net.conv", "sinks")  # settings that are lists themselves: commas belong to them

USAGE = """usage: shoal compare ENV [--algo A,B] [--topology X,Y] [--consistency C,D] [--actors 1,2,4] [--until-return R]
                     [--seeds N] [--steps N] [--out FOLDER] [--set NAME=V1,V2 ...]

Trains every combination on ENV, one run after another, each in a process of its own, and writes one table (table.md, table.csv,
runs.csv), its figures and report.html: episodes to solve, seconds per episode, total time, speed-up, throughput, lag, waiting for
the lock, samples against sync; with 95 % intervals over the seeds. Combinations that do not fit are skipped, with the reason.
The same command continues an interrupted one: finished runs are found by their folder and settings.

  --algo A,B          algorithms (ppo)
  --topology X,Y      topologies; by default each algorithm's usual one, or shared_params if --consistency is given
  --consistency C,D   consistencies, for topologies that have a choice; the others run once
  --actors 1,2,4      numbers of actors; by default one per core
  --until-return R    a run ends when the mean of its last 100 episodes reaches R
  --steps N           a run ends after N environment steps at the latest
  --seeds N           runs of each combination (3)
  --set NAME=V1,V2    any setting of shoal train, with one or more values; values of list settings are separated by semicolons
  --out FOLDER        where to write and to continue; by default a folder in runs/ that belongs to this very grid
  --plan              show what would run, and do not run it
  --quiet             no progress
  --json              one JSON object as the last line of standard output
"""


def run(words: list[str]) -> int:
    plain, sets = _take_sets(words)
    parsed = split(plain, SWITCHES)
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    env = one_positional(parsed, "environment (shoal envs lists them)")
    # An option that is not listed here may be a setting of training, with one or more values like the rest.
    sets |= {name: _values(name, text) for name, text in parsed.options.items() if name not in OWN}

    from shoal.core.config import build
    from shoal.studies.grid import GridConfig, ways_of

    own = {name: text for name, text in parsed.options.items() if name in OWN and name != "out"}
    config = build(GridConfig, {"env": env, **own, "settings": sets})
    ways, skipped = ways_of(config)
    if "plan" in parsed.switches:
        for way in ways:
            print(way.keys["way"])
        for one in skipped:
            print(f"skipped {one.way}: {one.reason}")
        print(f"{len(ways)} combinations x {config.seeds} seeds = {len(ways) * config.seeds} runs")
        return 0
    folder = _folder(parsed.options.get("out"), config)
    return _compare(config, folder, quiet="quiet" in parsed.switches, wants_json="json" in parsed.switches)


def _compare(config: Any, folder: Path, *, quiet: bool, wants_json: bool) -> int:
    from shoal.observe.comparison import markdown, write_comparison
    from shoal.run.files import one_line
    from shoal.run.folder import describe_machine
    from shoal.studies.compare import compare
    from shoal.studies.measured import table_of, write_csv

    began = time.monotonic()
    try:
        with series_progress("compare", quiet=quiet) as shown:
            found = compare(config, folder / "runs", shown.tell, shown.say)
    except KeyboardInterrupt:
        print(f"shoal: stopped; the same command continues in {folder}", file=sys.stderr)
        return 130
    document = {
        "name": "compare",
        "title": f"{config.env}: {', '.join(dict.fromkeys(row['keys']['series'] for row in found['rows']))}",
        "source": _goal(config),
        "tables": [table_of(found["rows"])],
        "goals": [],
        "size": "",
        "settings": {f.name: getattr(config, f.name) for f in fields(config)},
        "seeds": config.seeds,
        "took_s": time.monotonic() - began,
        "machine": describe_machine(),
        "reference": {},
        "deviations": [],
        **found,
    }
    report = write_comparison(folder, document)
    write_csv(folder, found["rows"])
    print(markdown(document), file=sys.stderr if wants_json else sys.stdout)
    print(f"report: {report}", file=sys.stderr)
    if wants_json:
        rows = [{"keys": row["keys"], "values": row["values"]} for row in found["rows"]]
        print(one_line({"rows": rows, "notes": found["notes"], "out": str(folder)}), flush=True)
    return 0


def _goal(config: Any) -> str:
    until = f"until a mean return of {config.until_return:g}" if config.until_return is not None else "for its budget"
    budget = f" or {config.steps:,} environment steps" if config.steps else ""
    return f"Each combination is trained {until}{budget}, one run at a time."


def _folder(out: str | None, config: Any) -> Path:
    """`out`, or the folder in `runs/` that belongs to this grid. Raises `BadInput` if it holds something else."""
    if out is None:
        text = repr(sorted((f.name, repr(getattr(config, f.name))) for f in fields(config)))
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", config.env)
        folder = Path("runs") / f"compare-{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    else:
        folder = Path(out)
    strange = [p.name for p in folder.iterdir() if p.name in ("config.json", "spec.toml")] if folder.is_dir() else []
    if strange or (folder.exists() and not folder.is_dir()):
        raise BadInput(
            f"--out {str(folder)!r} is {'a run folder' if strange else 'a file'}; name a new one, or a comparison"
        )
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write the folder {str(folder)!r}: {error.strerror}") from None
    return folder


def _take_sets(words: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """(the words without `--set NAME=VALUES ...`, {name: values} of those)."""
    plain: list[str] = []
    sets: dict[str, tuple[str, ...]] = {}
    taking = False
    for word in words:
        if word == "--set" or word.startswith("--set="):
            taking = True
            if word == "--set":
                continue
            word = word.removeprefix("--set=")
        elif taking and (word.startswith("--") or "=" not in word):
            taking = False
        if not taking:
            plain.append(word)
            continue
        name, _, text = word.partition("=")
        if name in sets:
            raise BadInput(f"--set {name} is given twice")
        sets[name] = _values(name, text)
    if taking and not sets:
        raise BadInput("--set needs NAME=VALUE")
    return plain, sets


def _values(name: str, text: str) -> tuple[str, ...]:
    mark = ";" if ";" in text or name.replace("-", "_") in LISTS else ","
    values = tuple(value.strip() for value in text.split(mark) if value.strip())
    if not values:
        raise BadInput(f"--set {name}={text}: it has no value")
    return values
