"""HyperTrick under load: many processes report to one journal; how long does a report and its decision take?

    python benchmarks/journal_load.py                       # 32 workers, a report every 0.5 s, for a minute
    python benchmarks/journal_load.py --kill 8              # 8 of them are killed half-way; their trials go back to a queue
    python benchmarks/journal_load.py --kill-holder         # three times, a process that holds the journal's lock is killed
    python benchmarks/journal_load.py --optuna-lock         # with Optuna's own lock, to compare

The workers are processes of a plain Optuna study with `HyperTrickPruner`, each of which writes to the journal. `shoal tune` is not
part of it: its driver is the only writer of a study. This driver keeps a lease: a running trial that has not reported for
LEASE seconds goes to the queue, and the next free worker finishes it.

Prints one JSON line. `reports`, `median_ms`, `p99_ms`, `max_ms`: `trial.report` and `trial.should_prune` together, in all workers
that were not killed, from the moment when all are ready. `longest_silence_s`: the longest time between two reports of any worker.
`stall_s`: the longest time from the death of a holder to the next report. `errors`: workers that ended with an error. `requeued`:
trials that went to the queue. `lost`: trials that are neither complete nor pruned in the end. `mismatches`: decisions that a replay
of the ledger does not repeat. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from shoal.tuning import HyperTrickPruner, open_journal
from shoal.tuning.storage import JournalLock

NAME, PHASES = "load", 10
TRIALS = 32  # of the rule, which evicts after half as many reports of a phase; more trials follow by the same rule
LEASE = 4.0  # seconds without a report
LOOK = 0.5  # seconds between two checks of the driver
HOLDERS = 3  # lock holders that are killed
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two reports of a worker")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kill", type=int, default=0, help="workers to kill -9 half-way")
    parser.add_argument("--kill-holder", action="store_true", help="kill processes that hold the journal's lock")
    parser.add_argument("--optuna-lock", action="store_true")
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    told = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if told.hold:
        hold(told)
    elif told.worker is not None:
        work(told)
    else:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        with tempfile.TemporaryDirectory(prefix="journal-load-") as folder:
            told.folder = Path(folder)
            print(json.dumps(Driver(told).run()))


def open_study(told: argparse.Namespace, create: bool) -> tuple[optuna.Study, HyperTrickPruner]:
    path = str(told.folder / "journal")
    storage = JournalStorage(JournalFileBackend(path)) if told.optuna_lock else open_journal(path)
    pruner = HyperTrickPruner(trials=TRIALS, phases=PHASES, eviction=0.25, storage=storage)
    make = optuna.create_study if create else optuna.load_study
    extra = {"direction": "maximize"} if create else {}
    return make(study_name=NAME, storage=storage, pruner=pruner, **extra), pruner  # type: ignore[operator]


class Driver:
    """Starts the workers, kills what it was told to kill, and keeps the leases. It ends its processes with itself."""

    def __init__(self, told: argparse.Namespace) -> None:
        self.told = told
        self.study, self.pruner = open_study(told, create=True)
        self.queue = told.folder / "queue"
        self.queue.mkdir()
        self.children: list[subprocess.Popen[str]] = []
        self.killed: set[int] = set()  # workers
        self.deaths: list[float] = []  # of lock holders
        self.requeued: set[int] = set()
        self._seen: dict[int, tuple[int, float]] = {}  # {running trial: (reports, when the last one was noticed)}

    def run(self) -> dict[str, Any]:
        told = self.told
        try:
            workers = [self._start("--worker", str(number)) for number in range(told.workers)]
            holders = [self._start("--hold", pipes=True) for _ in range(HOLDERS if told.kill_holder else 0)]
            self._until_ready(workers)
            (told.folder / "go").touch()
            self._drive(workers, holders)
            self._finish_the_rest()
        finally:
            for child in self.children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        return self._result(workers)

    def _start(self, *words: str, pipes: bool = False) -> subprocess.Popen[str]:
        told = self.told
        same = ["--folder", str(told.folder), "--every", str(told.every), "--seconds", str(told.seconds)]
        same += ["--optuna-lock"] if told.optuna_lock else []
        pipe = subprocess.PIPE if pipes else None
        made = subprocess.Popen([sys.executable, __file__, *same, *words], stdin=pipe, stdout=pipe, text=True)
        self.children.append(made)
        return made

    def _until_ready(self, workers: list[subprocess.Popen[str]]) -> None:
        while len(list(self.told.folder.glob("*.times"))) < len(workers):
            if any(worker.poll() is not None for worker in workers):
                raise SystemExit("a worker ended before it began")
            time.sleep(0.1)

    def _drive(self, workers: list[subprocess.Popen[str]], holders: list[subprocess.Popen[str]]) -> None:
        began = time.monotonic()
        waiting = [began + self.told.seconds * (at + 1) / (len(holders) + 1) for at in range(len(holders))]
        while any(worker.poll() is None for worker in workers):
            now = time.monotonic()
            if self.told.kill and not self.killed and now - began > self.told.seconds / 2:
                for number in range(self.told.kill):
                    workers[number].kill()
                    self.killed.add(number)
            if waiting and now > waiting[0]:
                waiting.pop(0)
                self._kill_holder(holders.pop(0))
            self._look(now)
            time.sleep(LOOK)

    def _kill_holder(self, holder: subprocess.Popen[str]) -> None:
        assert holder.stdin is not None and holder.stdout is not None
        holder.stdin.write("now\n")
        holder.stdin.flush()
        holder.stdout.readline()  # it holds the lock
        time.sleep(0.2)  # others wait for it
        self.deaths.append(time.time())
        holder.kill()

    def _look(self, now: float) -> None:
        """Put trials whose lease has ended into the queue."""
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state in ENDED:
                self._seen.pop(trial.number, None)
                continue
            reports, at = self._seen.get(trial.number, (-1, now))
            if len(trial.intermediate_values) != reports:
                self._seen[trial.number] = (len(trial.intermediate_values), now)
            elif now - at > LEASE and trial.number not in self.requeued:
                self.requeued.add(trial.number)
                (self.queue / str(trial.number)).touch()

    def _finish_the_rest(self) -> None:
        """Trials whose lease ends after the last worker has left."""
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state not in ENDED:
                self.requeued.add(trial.number)
                for _ in train(self.study, known(self.study, trial.number), random.Random(trial.number)):
                    pass

    def _result(self, workers: list[subprocess.Popen[str]]) -> dict[str, Any]:
        told = self.told
        alive = [number for number in range(told.workers) if number not in self.killed]
        rows = [line.split() for number in alive for line in (told.folder / f"{number}.times").read_text().splitlines()]
        ends, took = sorted(float(at) for at, _ in rows), sorted(float(ms) for _, ms in rows)
        states = [trial.state for trial in self.study.get_trials(deepcopy=False)]
        stalls = [min((end - death for end in ends if end > death), default=float("inf")) for death in self.deaths]
        return {
            "workers": told.workers,
            "killed": len(self.killed),
            "reports": len(took),
            "errors": sum(workers[number].returncode != 0 for number in alive),
            "median_ms": took[len(took) // 2],
            "p99_ms": took[int(0.99 * len(took))],
            "max_ms": took[-1],
            "longest_silence_s": max((b - a for a, b in itertools.pairwise(ends)), default=0.0),
            "stall_s": max(stalls, default=None),
            "mismatches": len(self.pruner.replay(self.study).mismatches),
            "trials": len(states),
            "requeued": len(self.requeued),
            "lost": sum(state not in ENDED for state in states),
        }


def known(study: optuna.Study, number: int) -> optuna.Trial:
    """A trial that another process began."""
    return optuna.Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)


def train(study: optuna.Study, trial: optuna.Trial, draw: random.Random) -> Any:
    """Report the remaining phases and tell the result. Yields the milliseconds of each report with its decision."""
    done = sorted(study.get_trials(deepcopy=False)[trial.number].intermediate_values)
    prune = bool(done) and trial.should_prune()  # its worker may have died between a report and the decision
    for phase in range(done[-1] + 1 if done else 0, PHASES):
        if prune:
            break
        began = time.monotonic()
        trial.report(draw.random(), phase)
        prune = trial.should_prune()
        yield 1e3 * (time.monotonic() - began)
    if prune:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, 0.0)


def work(told: argparse.Namespace) -> None:
    study, _ = open_study(told, create=False)
    draw, queue = random.Random(told.worker), told.folder / "queue"
    with (told.folder / f"{told.worker}.times").open("w", buffering=1) as times:
        while not (told.folder / "go").exists():
            time.sleep(0.05)
        end = time.monotonic() + told.seconds
        time.sleep(draw.random() * told.every)
        while time.monotonic() < end:
            taken = take(queue)
            trial = study.ask() if taken is None else known(study, taken)
            for took in train(study, trial, draw):
                times.write(f"{time.time()} {took:.3f}\n")
                time.sleep(max(0.0, told.every - took / 1e3))


def take(queue: Path) -> int | None:
    """A trial from the queue, for this worker alone."""
    for entry in sorted(queue.iterdir()):
        try:
            entry.unlink()
        except FileNotFoundError:  # another worker was faster
            continue
        return int(entry.name)
    return None


def hold(told: argparse.Namespace) -> None:
    """Take the journal's lock on request, and keep it until killed."""
    sys.stdin.readline()
    path = str(told.folder / "journal")
    if told.optuna_lock:
        from optuna.storages.journal import JournalFileSymlinkLock

        JournalFileSymlinkLock(path).acquire()
    else:
        JournalLock(path).acquire()
    print("held", flush=True)
    while True:
        time.sleep(1.0)


if __name__ == "__main__":
    main()
