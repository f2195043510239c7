"""The confirmed winner beside the environment's default settings, on the same fresh seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_runs import FakeRuns
from test_runner import VALUES, Stop, score

from shoal.cli.tune_progress import line_of
from shoal.observe.study_report import write_study_report
from shoal.run.folder import read_json
from shoal.tuning import events
from shoal.tuning.document import document_of
from shoal.tuning.events import BASELINE, Event
from shoal.tuning.phases import Tally
from shoal.tuning.study import Study, resume_study, run_study


def best_by_default(settings: Mapping[str, Any], step: int) -> float:
    """No searched learning rate is as good as the default one."""
    return score({"algo.learning_rate": 0.01, **settings}, step) - ("algo.learning_rate" in settings)


def study_of(tmp_path: Path, runs: FakeRuns | None = None, goal: float | None = 11.5, **changed: Any) -> Study:
    """Fresh seeds score about 10 more here, and the default settings reach 11.5 after 800 steps."""
    shared = VALUES["settings"] if goal is None else {**VALUES["settings"], "until_return": goal}
    values = {**VALUES, "settings": shared, "confirm": "top2x3", **changed}
    return run_study(values, folder=tmp_path / "study", trainings=runs or FakeRuns(score))


def test_a_winner_that_solves_sooner_is_ahead(tmp_path: Path) -> None:
    runs = FakeRuns(score)
    study = study_of(tmp_path, runs)
    default, winner = study.baseline, study.solved(study.best.number)
    assert default is not None and (default.seeds, default.solved, default.steps, default.seconds) == (3, 3, 800, 0.8)
    assert winner["solved"] == 3 and winner["steps"] < 800
    assert study.ahead_of_baseline is True
    assert study.verdict == (
        f"the winner is ahead of the default settings: it reaches a return of 11.5 on 3 of 3 seeds, after a median of"
        f" {winner['steps']:.0f} steps and {winner['seconds']:.1f} s; the default settings on 3 of 3 seeds, after a median of 800"
        " steps and 0.8 s"
    )
    raced = [settings for folder, settings, _ in runs.started if folder.parent.name == "default"]
    assert [settings["seed"] for settings in raced] == list(study.plan.test_seeds), "the winner's seeds"
    assert all("algo.learning_rate" not in own and "algo.gamma" not in own for own in raced)
    assert {own["steps"] for own in raced} == {4000}, "and its budget"
    assert all(one.trial >= 0 for one in study.confirmed) and study.best.number >= 0, "it is no candidate"
    assert study.replay().mismatches == [] and Study.open(study.path).summary() == study.summary()


def test_the_summary_and_the_report_say_so(tmp_path: Path) -> None:
    study = study_of(tmp_path, FakeRuns(best_by_default))
    assert study.ahead_of_baseline is False
    summary = read_json(study.path / "summary.json")
    assert summary["ahead_of_baseline"] is False and summary["baseline"]["steps"] == 500 and summary["goal"] == 11.5
    assert summary["confirmed"][0]["steps"] > 500
    json.dumps(summary, allow_nan=False)
    document = document_of(study)
    page = write_study_report(tmp_path, document).read_text()
    assert document["verdict"] == study.verdict and "the winner is not ahead of the default settings: it" in page
    assert "<td>default settings</td>" in page
    [told] = [line_of(event, study) for event in study.course.events if isinstance(event, events.Tested)][-1:]
    assert told.startswith("default settings on fresh seed 1008: ") and told.endswith(
        "solved after 500 steps and 0.5 s"
    )


def test_where_neither_solves_the_scores_decide(tmp_path: Path) -> None:
    study = study_of(tmp_path, goal=None)
    assert study.plan.goal == 475, "Gymnasium's threshold"
    assert study.baseline is not None and study.baseline.solved == 0 and study.baseline.plain()["steps"] is None
    assert study.ahead_of_baseline is True and "neither reaches a return of 475" in study.verdict
    assert study.best.value > 0 and f"{study.confirmed[0].mean:.1f} [" in study.verdict
    behind = study_of(tmp_path / "behind", FakeRuns(best_by_default), goal=None)
    assert behind.ahead_of_baseline is False and "not ahead" in behind.verdict


def test_default_settings_that_fail_are_behind(tmp_path: Path) -> None:
    def broken(settings: Mapping[str, Any], step: int) -> float:
        return score(settings, step) if "algo.learning_rate" in settings else math.nan

    study = study_of(tmp_path, FakeRuns(broken))
    assert study.baseline is not None and study.baseline.failed == 3
    assert study.ahead_of_baseline is True
    assert study.verdict.endswith("; the default settings on 0 of 3 seeds")
    json.dumps(study.summary(), allow_nan=False)


@pytest.mark.parametrize("changed", [{"baseline": "false"}, {"confirm": ""}])
def test_without_it_there_is_no_comparison(tmp_path: Path, changed: dict[str, Any]) -> None:
    study = study_of(tmp_path, **changed)
    assert BASELINE not in study.course.tests and not (study.path / "confirm" / "default").exists()
    assert study.baseline is None and study.ahead_of_baseline is None and study.verdict == ""


def test_a_driver_that_dies_in_the_race_goes_on(tmp_path: Path) -> None:
    def die(event: Event, study: Study) -> None:
        if isinstance(event, events.Tested) and event.trial == BASELINE:
            raise Stop

    values = {**VALUES, "confirm": "top1x3"}
    with pytest.raises(Stop):
        run_study(values, folder=tmp_path / "study", trainings=FakeRuns(score), tell=die)
    half = Study.open(tmp_path / "study")
    assert half.baseline is None and half.ahead_of_baseline is None, "not before its last seed"
    study = resume_study(tmp_path / "study", trainings=FakeRuns(score))
    tested = [
        event.seed for event in study.course.events if isinstance(event, events.Tested) and event.trial == BASELINE
    ]
    assert sorted(tested) == [1006, 1007, 1008] and study.baseline is not None


def test_solved_is_the_first_full_window_at_the_goal() -> None:
    tally = Tally()
    for step, (count, mean) in enumerate([(60, 9.0), (60, 5.0), (60, 9.0), (60, 9.0)], start=1):
        tally.add(
            [{"step": step, "speed/env_steps": step, "speed/seconds": 2.0 * step}
             | {"episode/count": count, "episode/return": mean}]
        )  # fmt: skip
    assert tally.solved(8.0) == (4.0, 8.0), "60 episodes are no full window"
    assert tally.solved(7.0) == (2.0, 4.0) and tally.solved(8.0, 3) is None and tally.solved(9.5) is None
