"""A study's driver where something goes wrong: copies that come late, runs that hang or die while they end, failed winners."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fake_runs import FakeRuns, lineage_of
from test_runner import VALUES, score, study_of

from shoal.core.errors import BadInput
from shoal.run.checkpoints import Checkpoints
from shoal.run.sinks import read_metrics
from shoal.tuning.events import Lost, Reported
from shoal.tuning.phases import Phase, Tally
from shoal.tuning.scheduler import Decision, Task
from shoal.tuning.schedulers import SCHEDULERS
from shoal.tuning.study import Study, resume_study, run_study
from shoal.tuning.trainings import SeedRun


class Late:
    """Trial 2 copies trial 0 and pauses; trial 0 trains on and copies trial 1 before trial 2 has its turn."""

    trials, units, copies = 3, 3, True

    def __init__(self) -> None:
        self._tasks = [Task(n, 0, 1) for n in range(3)] + [Task(0, 1, 2), Task(2, 1, 2), Task(0, 2, 3)]

    def next(self) -> Task | None:
        return self._tasks.pop(0) if self._tasks else None

    def report(self, trial: int, unit: int, value: float) -> Decision:
        source = {(2, 1): 0, (0, 2): 1}.get((trial, unit))
        return Decision(trial, unit, "complete" if unit == 3 else "pause", unit, source=source)


def test_a_copy_is_of_the_checkpoint_that_was_decided_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULERS, "late", lambda budget: Late())
    study = study_of(tmp_path, scheduler="late", trials=3, phases=3, workers=1)
    first = study.path / "trials" / "002" / "phase-1-from-000" / "seed-6"
    assert lineage_of(first)["source_run"] == str(study.path / "trials" / "000" / "seed-6")
    assert lineage_of(first)["done"] == 1000, "what trial 0 had done when it was copied, not when the copy was started"
    second = lineage_of(study.path / "trials" / "000" / "phase-2-from-001" / "seed-6")
    assert (second["source"], second["done"]) == (1, 1000)
    assert study.done and study.replay().mismatches == []


class Hanging(FakeRuns):
    """The first run does not end when it is asked to, and says nothing more."""

    def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Any:
        made = super().start(folder, settings, go_on=go_on)
        if len(self.started) == 1:

            def hang() -> None:
                made.rows = list  # type: ignore[method-assign]

            made.pause = made.stop = hang  # type: ignore[method-assign]
        return made


@pytest.mark.parametrize("scheduler", ["sh", "pbt"])
def test_a_run_that_hangs_while_it_ends_is_killed(tmp_path: Path, scheduler: str) -> None:
    runs = Hanging(score)
    study = study_of(tmp_path, runs, scheduler=scheduler, trials=5, phases=2, lease=0.05, workers=1)
    assert study.done and runs.runs[0].code == -9
    assert study.replay().mismatches == [] and not any(math.isnan(trial.value) for trial in study.trials)


def test_a_run_that_dies_while_it_saves_has_no_report(tmp_path: Path) -> None:
    class Dying(FakeRuns):
        def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Any:
            made = super().start(folder, settings, go_on=go_on)
            if len(self.started) == 1:
                made.pause = made.kill  # type: ignore[method-assign]
            return made

    study = study_of(tmp_path, Dying(score), scheduler="pbt", trials=5, phases=2, workers=1)
    [lost] = [event for event in study.course.events if isinstance(event, Lost)]
    assert lost.trial == 0 and lost.why == "killed"
    assert study.done and study.alpha == 1, "each trial has a checkpoint that others can copy"


def test_metrics_after_the_last_checkpoint_do_not_count_twice(tmp_path: Path) -> None:
    folder = tmp_path / "seed-0"
    Checkpoints(folder / "checkpoints").save(200, {"state/params/w": np.zeros(1)})
    rows = [
        {"step": step, "speed/env_steps": step, "episode/count": 10, "episode/return": 1.0}
        for step in (100, 200, 300, 400)
    ]
    (folder / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    runs = FakeRuns(score)
    run = SeedRun(runs, folder, {"steps": 1000, "seed": 0, "algo.learning_rate": 0.01}, Phase(100, "episodes"))
    assert run.tally.done("episodes") == 20
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [100, 200], "the next resumption reads it"


def test_a_return_that_is_not_finite_is_no_score() -> None:
    tally = Tally()
    tally.add([{"step": 100, "speed/env_steps": 100, "episode/count": 2, "episode/return": None}])
    assert math.isnan(tally.score()) and tally.done("episodes") == 2
    tally.add([{"step": 200, "speed/env_steps": 200, "episode/count": 100, "episode/return": 3.0}])
    assert tally.score() == 3.0


def test_a_winner_that_fails_on_fresh_seeds_comes_after_one_that_does_not(tmp_path: Path) -> None:
    def brittle(settings: Mapping[str, Any], step: int) -> float:
        best = float(settings.get("algo.learning_rate", 0)) == pytest.approx(first.settings["learning_rate"])
        return math.nan if best and int(settings["seed"]) in (1006, 1008) else score(settings, step)

    first = study_of(tmp_path / "plain", trials=6, scheduler="none").best
    study = study_of(tmp_path, FakeRuns(brittle), trials=6, scheduler="none", confirm="top2x4")
    better, worse = study.confirmed
    assert (worse.trial, worse.failed, len(worse.scores)) == (first.number, 2, 2) and worse.mean > better.mean
    assert better.failed == 0 and study.best.number == better.trial
    assert study.summary()["confirmed"][1]["failed"] == 2


def test_a_report_of_a_trial_that_was_lost_too_often_ends_others_on_the_timeline(tmp_path: Path) -> None:
    runs = FakeRuns(score, dict.fromkeys((2, 3, 4, 5), -9))
    study = study_of(tmp_path, runs, scheduler="sh", trials=3, phases=2, workers=1)
    assert "lost 4 times" in study.trials[2].reports[0].why
    [worse] = [trial.number for trial in study.trials[:2] if trial.state == "stopped"]
    assert [piece.verdict for piece in study.pieces if piece.trial == worse] == ["stop"]


def test_the_ledger_of_another_study_is_left_alone(tmp_path: Path) -> None:
    values = {**VALUES, "trials": 2, "phases": 1, "storage": f"sqlite:///{tmp_path}/studies.db"}
    run_study(values, folder=tmp_path / "one-ledger", trainings=FakeRuns(score))
    with pytest.raises(BadInput, match="already has a study 'one-ledger'"):
        run_study(values, folder=tmp_path / "one", trainings=FakeRuns(score))
    assert not (tmp_path / "one").exists()
    run_study(values, folder=tmp_path / "two", trainings=FakeRuns(score))
    assert Study.open(tmp_path / "one-ledger").done, "refused before anything was made"


def test_messages_hide_a_password(tmp_path: Path) -> None:
    study = study_of(tmp_path, trials=1, phases=1)
    with pytest.raises(BadInput, match="another storage") as refused:
        study_of(tmp_path, trials=1, phases=1, storage="postgresql://me:secret@localhost/x")
    assert "secret" not in str(refused.value) and "me:***@" in str(refused.value)
    assert study.done


def test_a_driver_that_dies_before_the_copy_makes_it_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    def die(event: Any, study: Study) -> None:
        if isinstance(event, Reported) and event.source is not None:
            raise Stop

    monkeypatch.setitem(SCHEDULERS, "late", lambda budget: Late())
    values = {**VALUES, "scheduler": "late", "trials": 3, "phases": 3, "workers": 1}
    with pytest.raises(Stop):
        run_study(values, folder=tmp_path / "study", trainings=FakeRuns(score), tell=die)
    assert not (tmp_path / "study" / "trials" / "002" / "phase-1-from-000").exists()
    study = resume_study(tmp_path / "study", trainings=FakeRuns(score))
    assert study.done and lineage_of(study.path / "trials" / "002" / "phase-1-from-000" / "seed-6")["source"] == 0
