"""`shoal reproduce`: repeats a published experiment and compares our numbers with the published ones."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping
from typing import Any

from shoal.cli.flags import one_positional, split, whole_number
from shoal.cli.series_progress import series_progress
from shoal.core.errors import BadInput, nearest
from shoal.studies.reproduce import experiments_folder, names, read_deviations, read_reference, read_spec

SWITCHES = ("quick", "missing", "list", "json", "quiet", "help")
OPTIONS = ("seeds", "out", "env", "algo", "problem")
# Modules that run experiments, by the first word of a spec's `runner = "room:name"`. Each has RUNNERS, by name.
ROOMS = {
    "compare": "shoal.studies.compare",
    "federation": "shoal.federation.experiments",
    "horizons": "shoal.studies.horizons",
    "learners": "shoal.studies.learners",
    "optimize": "shoal.optimize.experiments",
    "tuning": "shoal.tuning.experiments",
    "zoo": "shoal.studies.zoo",
}

USAGE = """usage: shoal reproduce NAME [--quick] [--seeds N] [--out FOLDER] [--quiet] [--json]
       shoal reproduce zoo [--env ENV,...] [--algo ALGO,...] [--missing] [...]
       shoal reproduce --list

Repeats a published experiment, and writes our numbers beside the published ones: results.json, table.md, figures and
report.html. An experiment is a folder in experiments/ of a source checkout.

  --list          the experiments
  --quick         a small size that shows that everything runs (CI); the full size takes minutes
  --seeds N       runs of each, instead of the spec's number
  --env, --algo   zoo: only these environments and algorithms, separated by commas; other rows of docs/zoo.md stay
  --missing       zoo: only agents that have no row in docs/zoo.md yet, so that an interrupted run goes on
  --problem NAME  hypertrick-vs-hyperband: only these of its problems, separated by commas
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
    chosen |= _part(parsed.options, "missing" in parsed.switches, name)
    if "problem" in parsed.options:
        chosen["problems"] = _problems(parsed.options["problem"], chosen, name)
    runner = find_runner(spec["runner"], name)
    reference = read_reference(root / name / "reference.csv")
    deviations = read_deviations(root / name / "README.md")

    from shoal.observe.comparison import goals, markdown, write_comparison
    from shoal.run.files import one_line
    from shoal.run.folder import RunFolder, describe_machine

    made = RunFolder.create(parsed.options.get("out"), "reproduce", name, size)
    folder = made.path
    began = time.monotonic()
    with series_progress(name, quiet="quiet" in parsed.switches) as shown:
        try:
            found = runner(chosen, folder / "runs", shown.tell)
        except BadInput:
            made.remove_if_empty()
            raise
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
        print(one_line({**short, "goals": reached, "out": str(folder)}), flush=True)
    return 0


def _part(options: Mapping[str, str], missing: bool, name: str) -> dict[str, Any]:
    """The part of the zoo to run."""
    given = [option for option in ("env", "algo") if option in options] + ["missing"] * missing
    if given and name != "zoo":
        raise BadInput(f"--{given[0]} chooses a part of the zoo; {name} has none")
    chosen: dict[str, Any] = {"missing": True} if missing else {}
    if "env" in options or "algo" in options:
        for what in ("env", "algo"):
            chosen[f"only_{what}s"] = [text for text in options.get(what, "").split(",") if text]
    return chosen


def _problems(text: str, size: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The chosen problems of an experiment that has several."""
    known: dict[str, Any] = size.get("problems", {})
    if not known:
        raise BadInput(f"--problem chooses problems of an experiment; {name} has none")
    for each in (asked := [word for word in text.split(",") if word]):
        if each not in known:
            raise BadInput(f"{name} has no problem {each!r}.{nearest(each, known)} There are: {', '.join(known)}.")
    return {each: known[each] for each in asked} or known


def find_runner(where: str, name: str) -> Any:
    room, _, runner = where.partition(":")
    if room not in ROOMS:
        raise BadInput(f"{name}: runner {where!r} names no room; there are: {', '.join(ROOMS)}")
    runners: Mapping[str, Any] = importlib.import_module(ROOMS[room]).RUNNERS
    if runner not in runners:
        raise BadInput(f"{name}: {room} has no runner {runner!r}; it has: {', '.join(runners)}")
    return runners[runner]
