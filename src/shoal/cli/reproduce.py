"""`shoal reproduce`: a published experiment again, our numbers beside the published ones."""

from __future__ import annotations

import csv
import importlib
import json
import re
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.cli.flags import one_positional, split, whole_number
from shoal.cli.series_progress import series_progress
from shoal.core.errors import BadInput, nearest

SWITCHES = ("quick", "list", "json", "quiet", "help")
OPTIONS = ("seeds", "out")
# Who runs experiments: the first word of a spec's `runner = "room:name"`. Each module has RUNNERS, by name.
ROOMS = {
    "compare": "shoal.studies.compare",
    "horizons": "shoal.studies.horizons",
    "optimize": "shoal.optimize.experiments",
}
SPEC_ENTRIES = {"title", "source", "runner", "all", "full", "quick", "tables", "goals"}

USAGE = """usage: shoal reproduce NAME [--quick] [--seeds N] [--out FOLDER] [--quiet] [--json]
       shoal reproduce --list

Runs a published experiment again, and writes our numbers beside the published ones: results.json, table.md, pictures
and report.html. An experiment is a folder in experiments/ of a source checkout.

  --list          the experiments
  --quick         a small size that shows that everything runs (CI); the full size takes minutes
  --seeds N       runs of each, instead of the spec's number
  --out FOLDER    where to write (runs/reproduce-NAME-...)
  --quiet         no progress
  --json          one JSON object as the last line of standard output
"""


def run(words: list[str]) -> int:
    parsed = split(words, SWITCHES, OPTIONS)
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    root = experiments_folder()
    if "list" in parsed.switches:
        for name in names(root):
            print(f"{name:<18} {read_spec(root / name)['title']}")
        return 0
    name = one_positional(parsed, "experiment (shoal reproduce --list shows them)")
    if name not in names(root):
        raise BadInput(f"unknown experiment {name!r}.{nearest(name, names(root))} There are: {', '.join(names(root))}.")
    size = "quick" if "quick" in parsed.switches else "full"
    spec = read_spec(root / name)
    chosen = {**spec.get("all", {}), **spec[size]}
    if "seeds" in parsed.options:
        chosen["seeds"] = whole_number(parsed, "seeds", 1)
    runner = find_runner(spec["runner"], name)
    reference = read_reference(root / name / "reference.csv")
    deviations = read_deviations(root / name / "README.md")

    from shoal.observe.comparison import goals, markdown, write_comparison
    from shoal.run.folder import RunFolder, describe_machine

    folder = RunFolder.create(parsed.options.get("out"), "reproduce", name, size).path
    began = time.monotonic()
    with series_progress(name, quiet="quiet" in parsed.switches) as shown:
        found = runner(chosen, folder / "runs", shown.tell)
    document = {
        "name": name,
        **{entry: spec[entry] for entry in ("title", "source", "tables")},
        "goals": spec.get("goals", []),
        "size": size,
        "settings": chosen,
        "seeds": chosen.get("seeds", 1),
        "took_s": time.monotonic() - began,
        "machine": describe_machine(),
        "reference": reference,
        "deviations": deviations,
        **found,
    }
    report = write_comparison(folder, document)
    wants_json = "json" in parsed.switches
    print(markdown(document), file=sys.stderr if wants_json else sys.stdout)
    print(f"report: {report}", file=sys.stderr)
    if wants_json:
        reached = [goal._asdict() for goal in goals(document)]
        short = {key: document[key] for key in ("name", "size", "seeds", "took_s", "rows", "notes")}
        print(json.dumps({**short, "goals": reached, "out": str(folder)}), flush=True)
    return 0


def experiments_folder() -> Path:
    """`experiments/` of the source checkout that this code runs from, or that the user stands in."""
    here = Path(__file__).resolve().parents[3]
    for place in (here, Path.cwd(), *Path.cwd().parents):
        if any((place / "experiments").glob("*/spec.toml")):
            return place / "experiments"
    raise BadInput(f"no experiments/ above {str(Path.cwd())!r}: shoal reproduce needs a source checkout of Shoal")


def names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("*/spec.toml"))


def read_spec(folder: Path) -> dict[str, Any]:
    """A spec.toml, whole: what every experiment must say is there, and nothing else."""
    path = folder / "spec.toml"
    try:
        spec = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"cannot read {str(path)!r}: {error}") from None
    missing = [entry for entry in ("title", "source", "runner", "full", "quick", "tables") if entry not in spec]
    strange = sorted(set(spec) - SPEC_ENTRIES)
    if missing or strange:
        what = f"lacks {missing[0]!r}" if missing else f"has an unknown entry {strange[0]!r}"
        raise BadInput(f"{str(path)!r} {what}")
    return spec


def find_runner(where: str, name: str) -> Any:
    room, _, runner = where.partition(":")
    if room not in ROOMS:
        raise BadInput(f"{name}: runner {where!r} names no room; there are: {', '.join(ROOMS)}")
    runners: Mapping[str, Any] = importlib.import_module(ROOMS[room]).RUNNERS
    if runner not in runners:
        raise BadInput(f"{name}: {room} has no runner {runner!r}; it has: {', '.join(runners)}")
    return runners[runner]


def read_reference(path: Path) -> dict[str, dict[str, Any]]:
    """{row: {column: number or word}}; empty fields are left out."""
    try:
        lines = list(csv.DictReader(path.read_text().splitlines()))
    except OSError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error.strerror}") from None
    return {
        line.pop("row"): {column: _value(text) for column, text in line.items() if text not in (None, "")}
        for line in lines
    }


def read_deviations(path: Path) -> list[str]:
    """The points under `## Deviations` of an experiment's README."""
    try:
        text = path.read_text()
    except OSError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error.strerror}") from None
    section = text.partition("## Deviations\n")[2].partition("\n## ")[0]
    return [" ".join(point.split()) for point in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
