"""A study's driver: every scheduler to its end, losses, failures, stops and resumptions, replayed from the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_runs import FakeRuns, lineage_of

from shoal.core.errors import BadInput, RunFailed
from shoal.observe.study_report import cards
from shoal.tuning.document import document_of
from shoal.tuning.events import Event, Lost, Reported, Tasked
from shoal.tuning.study import Study, resume_study, run_study

VALUES: dict[str, Any] = {
    "env": "CartPole-v1",
    "space": {"learning_rate": "log(1e-4,1e-1)", "gamma": ".9,.99"},
    "settings": {"algo": "a2c", "runtime": "inline", "backend": "jax", "actors": 1, "envs": 2},
    "trials": 8,
    "phases": 4,
    "phase": "1000steps",
    "seed": 6,
}


def score(settings: Mapping[str, Any], step: int) -> float:
    """The nearer the rate to 0.01 the better, and more with time."""
    distance = abs(math.log10(float(settings.get("algo.learning_rate", 0.1))) + 2)  # the default is 0.1 here
    return step / 1000 * (3 - distance) + int(settings["seed"]) / 100


class Stop(Exception):
    """Ends a driver in the middle, as a kill would."""


def study_of(tmp_path: Path, runs: FakeRuns | None = None, **changed: Any) -> Study:
    return run_study({**VALUES, **changed}, folder=tmp_path / "study", trainings=runs or FakeRuns(score))


@pytest.mark.parametrize("scheduler", ["hypertrick", "sh", "hyperband", "asha", "pbt", "none"])
def test_every_scheduler_comes_to_its_end_and_replays(tmp_path: Path, scheduler: str) -> None:
    runs = FakeRuns(score)
    study = study_of(tmp_path, runs, scheduler=scheduler, workers=3)
    assert study.done and len(study.trials) == 8
    assert {trial.state for trial in study.trials} <= {"stopped", "complete", "paused"}
    assert any(trial.state == "complete" and trial.unit == 4 for trial in study.trials)
    assert all(run.code is not None for run in runs.runs), "no run is left behind"
    found = study.replay()
    assert found.mismatches == [] and found.decisions >= 16
    again = Study.open(study.path)
    assert again.summary() == study.summary(), "the ledger holds all of it"
    best = study.best
    assert best.value == max(trial.value for trial in study.trials if trial.unit == best.unit)
    paused = [event.trial for event in study.course.events if isinstance(event, Reported) and event.verdict == "pause"]
    resumed = [folder for folder, _, go_on in runs.started if go_on]
    assert bool(resumed) == (scheduler not in ("hypertrick", "none"))
    assert bool(paused) >= (scheduler in ("sh", "hyperband", "asha"))
    assert (study.alpha == 1) == (scheduler in ("none", "pbt"))


def test_halving_preempts_on_as_many_workers_as_in_the_slides_figure(tmp_path: Path) -> None:
    """16 trials on 6 workers: 16, 8, 4 and 2 phases, each after a barrier; every promotion resumes a checkpoint."""
    runs = FakeRuns(score)
    study = study_of(tmp_path, runs, scheduler="sh", trials=16, workers=6)
    pieces = study.pieces
    assert [sum(piece.end == unit for piece in pieces) for unit in (1, 2, 3, 4)] == [16, 8, 4, 2]
    assert study.summary()["switches"] == 14 == sum(go_on for _, _, go_on in runs.started)
    assert {piece.slot for piece in pieces} == set(range(6)) and study.alpha == 30 / 64
    for unit in (1, 2, 3):
        assert max(p.stop for p in pieces if p.end == unit) <= min(p.start for p in pieces if p.end == unit + 1)


def test_reports_of_the_same_moment_count_in_an_order_drawn_for_each_phase(tmp_path: Path) -> None:
    """All 16 trials reach every phase together, as the lanes of a population do."""

    def order(name: str, seed: int) -> list[list[int]]:
        changed: dict[str, Any] = {"scheduler": "none", "trials": 16, "workers": 16, "seed": seed}
        study = study_of(tmp_path / name, **changed)
        reports = [event for event in study.course.events if isinstance(event, Reported)]
        assert study.replay().mismatches == []
        return [[event.trial for event in reports if event.unit == unit] for unit in (1, 2, 3, 4)]

    phases = order("one", 6)
    assert all(sorted(trials) == list(range(16)) for trials in phases)
    assert len({tuple(trials) for trials in phases}) == 4, "a new order in each phase"
    assert len({trial for trials in phases for trial in trials[:4]}) > 8, "other trials come first each time"
    assert order("again", 6) == phases != order("other", 7)


def test_equal_trials_for_every_scheduler(tmp_path: Path) -> None:
    tried = [
        [trial.settings for trial in study_of(tmp_path / name, scheduler=name).trials] for name in ("hypertrick", "sh")
    ]
    assert tried[0] == tried[1]


def test_pbt_copies_a_checkpoint_and_varies_its_settings(tmp_path: Path) -> None:
    runs = FakeRuns(score)
    study = study_of(tmp_path, runs, scheduler="pbt", workers=2)
    copied = [trial for trial in study.trials if trial.copies]
    assert copied
    for trial in copied:
        unit, source = trial.copies[-1]
        folder = study.path / "trials" / f"{trial.number:03d}" / f"phase-{unit}-from-{source:03d}" / "seed-6"
        lineage = lineage_of(folder)
        assert (lineage["source"], lineage["unit"], lineage["trial"]) == (source, unit, trial.number)
        assert lineage["done"] > 0
        [settings] = [settings for path, settings, go_on in runs.started if path == folder and go_on][:1]
        assert settings["algo.learning_rate"] == trial.settings["learning_rate"]
        assert settings["steps"] == lineage["done"] + (4 - unit) * 1000


def test_several_seeds_are_one_score_with_its_spread(tmp_path: Path) -> None:
    study = study_of(tmp_path, seeds_per_trial=3, trials=2)
    trial = study.trials[0]
    assert trial.reports[-1].scores == pytest.approx([trial.value - 0.01, trial.value, trial.value + 0.01])
    assert trial.spread == pytest.approx(0.01)
    assert sorted(path.name for path in (study.path / "trials" / "000").iterdir()) == ["seed-6", "seed-7", "seed-8"]


def test_a_lost_worker_costs_nothing(tmp_path: Path) -> None:
    study = study_of(tmp_path, FakeRuns(score, {0: -9, 3: 137}), scheduler="none")
    lost = [event for event in study.course.events if isinstance(event, Lost)]
    assert [event.why for event in lost] == ["killed", "killed"]
    assert study.alpha == 1 and not any(math.isnan(trial.value) for trial in study.trials)
    assert study.replay().mismatches == []


def test_a_trial_that_is_lost_again_and_again_has_failed(tmp_path: Path) -> None:
    study = study_of(tmp_path, FakeRuns(score, dict.fromkeys(range(4), -9)), trials=1, workers=1)
    assert "lost 4 times" in study.trials[0].reports[0].why and math.isnan(study.trials[0].value)
    with pytest.raises(RunFailed, match="no trial"):
        assert study.best


def test_a_run_that_fails_is_nan_and_evicted(tmp_path: Path) -> None:
    study = study_of(tmp_path, FakeRuns(score, {0: 1}))
    assert study.trials[0].state == "stopped" and study.trials[0].reports[0].why == "killed"
    assert len(study.trials[0].reports) == 1 and study.best.number != 0


def test_a_silent_worker_loses_its_lease(tmp_path: Path) -> None:
    class Silent(FakeRuns):
        def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Any:
            made = super().start(folder, settings, go_on=go_on)
            if len(self.started) == 1:
                made.rows = list  # type: ignore[method-assign]
            return made

    study = study_of(tmp_path, Silent(score), trials=2, lease=0.05, workers=1)
    [lost] = [event for event in study.course.events if isinstance(event, Lost)]
    assert lost.why == "no metrics for 0.05 s" and study.done


@pytest.mark.parametrize("scheduler", ["hypertrick", "sh", "pbt"])
@pytest.mark.parametrize("after", [3, 12])
def test_a_driver_that_dies_anywhere_goes_on_with_the_same_trials(tmp_path: Path, scheduler: str, after: int) -> None:
    seen = 0

    def die(event: Event, study: Study) -> None:
        nonlocal seen
        seen += 1
        if seen == after:
            raise Stop

    values = {**VALUES, "scheduler": scheduler, "workers": 2}
    with pytest.raises(Stop):
        run_study(values, folder=tmp_path / "study", trainings=FakeRuns(score), tell=die)
    study = resume_study(tmp_path / "study", trainings=FakeRuns(score))
    assert study.done and study.replay().mismatches == []
    assert [trial.settings for trial in study_of(tmp_path / "whole", scheduler="none").trials][: len(study.trials)] == [
        next(e for e in study.course.events if isinstance(e, Tasked) and e.trial == trial.number).settings
        for trial in study.trials
    ]
    assert len({trial.optuna for trial in study.trials}) == 8


def test_winners_are_confirmed_on_fresh_seeds(tmp_path: Path) -> None:
    study = study_of(tmp_path, confirm="top2x6", trials=6)
    assert [len(one.scores) for one in study.confirmed] == [6, 5], "the one clearly behind is left out after five"
    assert study.confirmed[1].left_out and study.best.number == study.confirmed[0].trial
    first = study.confirmed[0]
    assert first.mean == pytest.approx(first.tuning + 10 + 2.5 / 100)  # seeds 1006 to 1011 score higher here
    assert study.optimism is not None and study.optimism.mean == pytest.approx(-10.025)
    ends = study.optimism.ci
    assert ends is not None and ends[0] < study.optimism.mean < ends[1]
    told = document_of(study)
    assert told["optimism"]["mean"] == study.optimism.mean
    # A trial that only the fresh seeds put first says nothing about the bias of the search's best score.
    swapped = {**told, "confirmed": told["confirmed"][::-1]}
    assert {what: value for what, value, _ in cards(swapped)}["optimism"] == f"{study.optimism.mean:.1f}"
    assert {path.name for path in (study.path / "confirm").rglob("seed-*")} == {f"seed-{n}" for n in range(1006, 1012)}


def test_the_same_call_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert study_of(tmp_path, FakeRuns(score)).summary() == study.summary()
    before = {path: path.stat().st_mtime_ns for path in study.path.rglob("*")}
    with pytest.raises(BadInput, match="another space"):
        study_of(tmp_path, space={"learning_rate": "log(1e-4,1)"})
    with pytest.raises(BadInput, match="another phases"):
        study_of(tmp_path, phases=5)
    assert {path: path.stat().st_mtime_ns for path in study.path.rglob("*")} == before


def test_a_changed_ledger_does_not_replay(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    at = next(i for i, e in enumerate(study.course.events) if isinstance(e, Reported) and e.verdict == "stop")
    changed = study.course.events[at]
    assert isinstance(changed, Reported)
    study.course.events[at] = Reported(
        changed.at, changed.trial, changed.slot, changed.unit, 1e9, [1e9], changed.verdict, changed.end
    )
    assert len(study.replay().mismatches) >= 1


def test_a_sampler_that_learns(tmp_path: Path) -> None:
    study = study_of(tmp_path, sampler="tpe", trials=14, phases=1, scheduler="none", workers=1)
    assert len({trial.settings["learning_rate"] for trial in study.trials}) == 14


def test_a_grid_tries_every_combination_once(tmp_path: Path) -> None:
    space = {"gamma": ".9,.99", "unroll": "int(4,8,4)"}
    study = study_of(tmp_path, FakeRuns(lambda s, step: 1.0), sampler="grid", space=space, trials=4)
    assert [tuple(trial.settings.values()) for trial in study.trials] == [(0.9, 4), (0.9, 8), (0.99, 4), (0.99, 8)]


def test_a_frame_has_a_row_a_trial(tmp_path: Path) -> None:
    frame = study_of(tmp_path, confirm="top1x2").frame()
    assert len(frame) == 8 and {"trial", "value", "learning_rate", "gamma", "test"} <= set(frame.columns)
    assert frame["test"].notna().sum() == 1
