"""How long does a run take to start? Two checkouts in turns, with a warm and with an empty cache.

    python benchmarks/start.py BEFORE AFTER             # folders of source checkouts; on an idle machine, ten minutes
    python benchmarks/start.py BEFORE AFTER --solve     # also: seconds until LunarLander-v3 is solved, set-up included

Prints the median and the range of `setup_s` (process start to first environment step), of the CPU seconds of a whole short run with
its evaluation and report, and of the seconds after the last step; then the ratio AFTER / BEFORE of the medians. CPU seconds can be
compared on a busy machine too, the others cannot. Each checkout has a cache of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROUNDS = 5
SHORT = ["--steps", "8192", "--eval-episodes", "16"]
FIELDS = ("setup_s", "cpu_s", "after_s")


def run(checkout: Path, cache: Path, words: list[str]) -> dict[str, float]:
    """One `shoal train LunarLander-v3` of a checkout."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    variables |= {"PYTHONPATH": str(checkout / "src"), "SHOAL_CACHE": str(cache)}
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shoal", "train", "LunarLander-v3", "--quiet", "--json", *words]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [*command, "--out", f"{folder}/run"], env=variables, cwd=folder, stdout=subprocess.PIPE, check=True
        )
        took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    told = json.loads(done.stdout.splitlines()[-1])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    solved = told["solved_at_s"]
    return {
        "setup_s": told["setup_s"],
        "cpu_s": cpu,
        "after_s": took - told["setup_s"] - told["wall_s"],
        "solve_s": told["setup_s"] + (told["wall_s"] if solved is None else solved),
    }


def compare(title: str, found: dict[str, list[dict[str, float]]], fields: tuple[str, ...]) -> None:
    for field in fields:
        medians = []
        for name, runs in found.items():
            values = [measured[field] for measured in runs]
            medians.append(statistics.median(values))
            print(f"{title:6} {field:8} {name:7} {medians[-1]:7.2f}   ({min(values):.2f} to {max(values):.2f})")
        print(f"{title:6} {field:8} ratio   {medians[1] / medians[0]:7.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--solve", action="store_true", help="train until it is solved, a seed a round")
    words = parser.parse_args()
    checkouts = {"before": words.before.resolve(), "after": words.after.resolve()}
    with TemporaryDirectory() as scratch:
        caches = {name: Path(scratch) / name for name in checkouts}
        for name, checkout in checkouts.items():  # byte code, and the system's own cache of files
            run(checkout, caches[name], SHORT)
        for title in ("cold", "warm"):
            found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
            for _ in range(words.rounds):
                for name, checkout in checkouts.items():
                    if title == "cold":
                        shutil.rmtree(caches[name])
                    found[name].append(run(checkout, caches[name], SHORT))
            compare(title, found, FIELDS)
        if words.solve:
            found = {name: [] for name in checkouts}
            for seed in range(words.rounds):
                for name, checkout in checkouts.items():
                    options = ["--until-return", "200", "--seed", str(seed), "--eval-episodes", "0", "--no-report"]
                    found[name].append(run(checkout, caches[name], options))
            compare("warm", found, ("solve_s",))


if __name__ == "__main__":
    main()
