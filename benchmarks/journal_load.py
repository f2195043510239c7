"""HyperTrick under load: many processes report to one journal; how long does a report and its decision take?

    python benchmarks/journal_load.py                       # 32 workers, a report every 0.5 s, for a minute
    python benchmarks/journal_load.py --kill 8              # and 8 of them are killed half-way; their trials must not be lost
    python benchmarks/journal_load.py --optuna-lock         # with Optuna's own lock, to compare

Prints one JSON line: reports, errors, median, p99 and maximum of report + decide in ms, the longest time in which no process
reported, replay mismatches, and trials that are lost (neither finished nor left running by a killed worker). Needs an idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from shoal.tuning import HyperTrickPruner, open_journal

NAME, PHASES, TRIALS = "load", 10, 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two reports of a worker")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kill", type=int, default=0, help="workers to kill -9 half-way")
    parser.add_argument("--optuna-lock", action="store_true")
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    told = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if told.worker is not None:
        work(told)
        return
    with tempfile.TemporaryDirectory(prefix="journal-load-") as folder:
        told.folder = Path(folder)
        print(json.dumps(drive(told)))


def open_study(told: argparse.Namespace, create: bool) -> tuple[optuna.Study, HyperTrickPruner]:
    path = str(told.folder / "journal")
    storage = JournalStorage(JournalFileBackend(path)) if told.optuna_lock else open_journal(path)
    pruner = HyperTrickPruner(trials=TRIALS, phases=PHASES, eviction=0.25, storage=storage)
    make = optuna.create_study if create else optuna.load_study
    extra = {"direction": "maximize"} if create else {}
    return make(study_name=NAME, storage=storage, pruner=pruner, **extra), pruner  # type: ignore[operator]


def drive(told: argparse.Namespace) -> dict[str, float]:
    study, pruner = open_study(told, create=True)
    words = [
        sys.executable,
        __file__,
        "--folder",
        str(told.folder),
        "--every",
        str(told.every),
        "--seconds",
        str(told.seconds),
    ]
    words += ["--optuna-lock"] if told.optuna_lock else []
    workers = [subprocess.Popen([*words, "--worker", str(number)]) for number in range(told.workers)]
    killed = workers[: told.kill]
    if killed:
        while len(list(told.folder.glob("*.times"))) < told.workers:
            time.sleep(0.1)
        time.sleep(told.seconds / 2)
        for worker in killed:
            os.kill(worker.pid, signal.SIGKILL)
    codes = [worker.wait() for worker in workers]
    rows = [line.split() for file in told.folder.glob("*.times") for line in file.read_text().splitlines()]
    whole = [row for row in rows if len(row) == 2]  # a killed worker may have left half a line
    ends = sorted(float(at) for at, _ in whole)
    took = sorted(float(ms) for _, ms in whole)
    states = [trial.state for trial in study.get_trials(deepcopy=False)]
    return {
        "workers": told.workers,
        "reports": len(took),
        "errors": sum(code != 0 for code in codes[told.kill :]),
        "median_ms": took[len(took) // 2],
        "p99_ms": took[int(0.99 * len(took))],
        "max_ms": took[-1],
        "longest_silence_s": max((b - a for a, b in itertools.pairwise(ends)), default=0.0),
        "mismatches": len(pruner.replay(study).mismatches),
        "running": states.count(TrialState.RUNNING),
        "lost": max(0, states.count(TrialState.RUNNING) - told.kill),
    }


def work(told: argparse.Namespace) -> None:
    study, _ = open_study(told, create=False)
    draw = random.Random(told.worker)
    end = time.monotonic() + told.seconds
    with (told.folder / f"{told.worker}.times").open("w", buffering=1) as times:
        time.sleep(draw.random() * told.every)
        while time.monotonic() < end:
            trial = study.ask()
            for phase in range(PHASES):
                began = time.monotonic()
                trial.report(draw.random(), phase)
                prune = trial.should_prune()
                times.write(f"{time.time()} {1e3 * (time.monotonic() - began):.3f}\n")
                if prune:
                    break
                time.sleep(max(0.0, told.every - (time.monotonic() - began)))
            if prune:
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, 0.0)


if __name__ == "__main__":
    main()
