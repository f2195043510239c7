"""The time that a study adds to its trials.

    python benchmarks/tune_overhead.py instant [--trials 1000]   # a random study whose trainings take no time
    python benchmarks/tune_overhead.py runs [--trials 10]        # real runs in a study, beside the same runs without one

Each prints one JSON line. `instant`: seconds of the whole study, on eight workers. `runs`: seconds of a study with one worker, of
a study of two trials, and of the first one's runs started one after another through the run handle that the study uses. A trial's
overhead is what each further trial takes beyond its run; the report at the end of a study counts once, in `study_s`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.studies.handle import RunHandle
from shoal.tuning.study import Study, run_study
from shoal.tuning.trainings import Training

SAME: dict[str, Any] = {
    "env": "CartPole-v1",
    "space": {"learning_rate": "log(1e-4,1e-2)", "gamma": ".9,.99"},
    "scheduler": "none",
    "seed": 1,
}
FUSED = {"algo": "a2c", "runtime": "fused", "envs": 16}
FEW = 2  # trials of the small study


class Instant:
    """A training that has ended with its first line of metrics."""

    reason = ""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        steps, value = settings["steps"], float(settings["algo.learning_rate"])
        self.code: int | None = None
        self._row = {"step": steps, "speed/env_steps": steps, "episode/count": 1, "episode/return": value}

    def rows(self) -> list[dict[str, Any]]:
        return [self._row]

    def stop(self) -> None:
        self.code = 0

    pause = kill = stop


class Instants:
    """Starts instant trainings."""

    def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Training:
        return Instant(settings)

    def wait(self, trainings: Sequence[Training], seconds: float) -> None:
        pass


def instant(trials: int, folder: Path) -> dict[str, Any]:
    """A study of instant trainings, with its ledger and its Optuna study in a journal on disk."""
    values = {**SAME, "settings": {**FUSED, "runtime": "inline"}, "trials": trials, "workers": 8}
    began = time.monotonic()
    study = run_study({**values, "phases": 1, "phase": "1000steps"}, folder=folder / "study", trainings=Instants())
    took = time.monotonic() - began
    return {"trials": _finished(study, trials), "seconds": took, "ms_per_trial": 1e3 * took / trials}


def runs(trials: int, folder: Path) -> dict[str, Any]:
    """The same runs in studies and without one. A study of one trial, which is not counted, fills the cache of compiled code."""
    values = {**SAME, "settings": FUSED, "trials": trials, "workers": 1, "phases": 4, "phase": "10000steps"}
    run_study({**values, "trials": 1, "seed": 3}, folder=folder / "warm")
    began = time.monotonic()
    run_study({**values, "trials": FEW, "seed": 2}, folder=folder / "few")
    few = time.monotonic() - began
    began = time.monotonic()
    study = run_study(values, folder=folder / "study")
    in_study = time.monotonic() - began
    began = time.monotonic()
    for trial in study.trials:
        settings = dict(study.plan.settings(trial.settings, study.plan.tune_seeds[0]))
        settings["algo.learning_rate"] *= (
            1.001  # a rate is part of the compiled code: each run compiles, as in the study
        )
        RunHandle.start(SAME["env"], out=folder / "alone" / str(trial.number), **settings).wait()
    alone = time.monotonic() - began
    each = (in_study - few) / (trials - FEW) - alone / trials
    return {"trials": _finished(study, trials), "study_s": in_study, "few_s": few, "runs_s": alone, "overhead_s": each}


def _finished(study: Study, trials: int) -> int:
    assert study.done and all(trial.state == "complete" for trial in study.trials)
    assert len(study.trials) == trials
    return trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("instant", "runs"))
    parser.add_argument("--trials", type=int, default=None)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tune-overhead-") as folder:
        os.environ["SHOAL_CACHE"] = f"{folder}/cache"  # or runs of an earlier measurement would not compile
        made = (
            instant(told.trials or 1000, Path(folder))
            if told.what == "instant"
            else runs(told.trials or 10, Path(folder))
        )
    print(json.dumps(made))


if __name__ == "__main__":
    main()
