"""`shoal reproduce`: repeats a published experiment and compares our numbers with the published ones."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.cli.flags import Words, one_positional, split, whole_number
from shoal.cli.series_progress import series_progress
from shoal.core.errors import BadInput, nearest
from shoal.studies.reproduce import experiments_folder, names, read_deviations, read_reference, read_spec

SWITCHES = ("quick", "missing", "list", "json", "quiet", "help")
OPTIONS = ("seeds", "out", "resume", "env", "algo", "problem")
BEGUN = "experiment.json"  # in the folder of an experiment: what it runs, from its start on
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
       shoal reproduce --resume FOLDER [--seeds N] [--quiet] [--json]
       shoal reproduce --list

Repeats a published experiment, and writes our numbers beside the published ones: results.json, table.md, figures and
report.html. An experiment is a folder in experiments/ of a source checkout.

  --list          the experiments
  --quick         a small size that shows that everything runs (CI); the full size takes minutes
  --seeds N       runs of each, instead of the spec's number
  --env, --algo   zoo: only these environments and algorithms, separated by commas; other rows of docs/zoo.md stay
  --missing       zoo: only agents without a row of as many seeds by today's settings in docs/zoo.md, so that an interrupted
                  run goes on
  --problem NAME  hypertrick-vs-hyperband: only these of its problems, separated by commas
  --out FOLDER    where to write (runs/reproduce-NAME-...)
  --resume FOLDER continue an interrupted experiment, or one that now gets more seeds: its finished trainings are not repeated
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
    earlier = _earlier(parsed) if "resume" in parsed.options else None
    name = earlier["name"] if earlier else one_positional(parsed, "experiment (shoal reproduce --list shows them)")
    if name not in names(root):
        raise BadInput(f"unknown experiment {name!r}.{nearest(name, names(root))} There are: {', '.join(names(root))}.")
    size = earlier["size"] if earlier else "quick" if "quick" in parsed.switches else "full"
    spec = read_spec(root / name)
    chosen = {**spec.get("all", {}), **spec[size]}
    if "problem" in parsed.options:
        chosen["problems"] = _problems(parsed.options["problem"], chosen, name)
    chosen |= _part(parsed.options, "missing" in parsed.switches, name)
    if earlier:
        chosen = _continued(parsed.options["resume"], earlier, chosen)
    if "seeds" in parsed.options:
        chosen["seeds"] = whole_number(parsed, "seeds", 1)
    runner = find_runner(spec["runner"], name)
    reference = read_reference(root / name / "reference.csv")
    deviations = read_deviations(root / name / "README.md")

    from shoal.observe.comparison import goals, markdown, write_comparison
    from shoal.run.files import one_line
    from shoal.run.folder import RunFolder, describe_machine

    if earlier:
        made = RunFolder(Path(parsed.options["resume"]))
    else:
        made = RunFolder.create(parsed.options.get("out"), "reproduce", name, size)
    folder = made.path
    made.write_json(folder / BEGUN, {"name": name, "size": size, "settings": chosen})
    began = time.monotonic()
    with series_progress(name, quiet="quiet" in parsed.switches) as shown:
        try:
            found = runner(chosen, folder / "runs", shown.tell)
        except BadInput:
            if not earlier:
                (folder / BEGUN).unlink()
                made.remove_if_empty()
            raise
    document = {
        "name": name,
        **{entry: spec[entry] for entry in ("title", "source", "tables")},
        "goals": spec.get("goals", []),
        "size": size,
        "settings": chosen,
        "seeds": chosen.get("seeds", 1),
        "took_s": None if earlier else time.monotonic() - began,  # a resumed one does not know its first part
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


def _earlier(parsed: Words) -> dict[str, Any]:
    """What the folder of `--resume` runs: the name of an experiment, its size and its settings."""
    given: list[str] = [option for option in ("out", "env", "algo", "problem") if option in parsed.options]
    given += [switch for switch in ("quick", "missing") if switch in parsed.switches]
    if given or parsed.positional:
        what = f"--{given[0]}" if given else repr(parsed.positional[0])
        raise BadInput(f"--resume continues an experiment as it began, with other --seeds at most: leave out {what}")

    from shoal.run.folder import read_json

    path = Path(parsed.options["resume"]) / BEGUN
    if not path.is_file():
        raise BadInput(f"{parsed.options['resume']!r} is not the folder of an experiment: it has no {BEGUN}")
    found = read_json(path)
    if set(found) != {"name", "size", "settings"}:
        raise BadInput(f"{str(path)!r} must have name, size and settings")
    return found


def _continued(folder: str, earlier: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an earlier experiment, unless its spec has other ones by now."""
    began = dict(earlier["settings"])
    picked = ("seeds", "problems", "only_envs", "only_algos", "missing")  # by options of the command
    changed = sorted(
        key for key in {*began, *chosen} if key not in picked and _as_json(began.get(key)) != _as_json(chosen.get(key))
    )
    if changed:
        raise BadInput(
            f"cannot continue {folder!r}: {changed[0]} of {earlier['name']} has changed since; start it again"
        )
    return began


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


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
