"""A warm start: what an earlier study found is tried first, its trials inform the sampler, and spaces must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from fake_runs import FakeRuns
from test_runner import VALUES, score

from shoal.cli.tune_progress import heading
from shoal.core.errors import BadInput
from shoal.tuning.book import open_storage
from shoal.tuning.events import Tasked
from shoal.tuning.samplers import make_sampler
from shoal.tuning.spaces import parse_space, sample
from shoal.tuning.study import Study, resume_study, run_study


@pytest.fixture
def earlier(tmp_path: Path) -> Study:
    return run_study({**VALUES, "confirm": "top2x2"}, folder=tmp_path / "earlier", trainings=FakeRuns(score))


def warm(tmp_path: Path, earlier: Study, **changed: Any) -> Study:
    values = {**VALUES, "seed": 30, "warm_start": str(earlier.path), **changed}
    return run_study(values, folder=tmp_path / "later", trainings=FakeRuns(score))


def test_the_best_of_the_earlier_study_come_first(tmp_path: Path, earlier: Study) -> None:
    study = warm(tmp_path, earlier, trials=5, warm_trials=2)
    best = [earlier.course.trials[one.trial].settings for one in earlier.confirmed]
    assert [trial.settings for trial in study.trials[:2]] == best and best[0] == earlier.best.settings
    assert study.trials[2].settings == sample(study.plan.space, seed=30, trial=2), "the others are drawn as usual"
    assert study.course.warmed is not None and study.course.warmed.informing == 0, "random learns from no trial"
    assert study.replay().mismatches == []
    assert study.best.value >= earlier.course.ranked()[0].value - 1


def test_the_earlier_folder_is_needed_once(tmp_path: Path, earlier: Study) -> None:
    class Stop(Exception):
        pass

    def die(event: Any, study: Study) -> None:
        if isinstance(event, Tasked):
            raise Stop

    values = {**VALUES, "seed": 30, "warm_start": str(earlier.path), "sampler": "tpe"}
    with pytest.raises(Stop):
        run_study(values, folder=tmp_path / "later", trainings=FakeRuns(score), tell=die)
    earlier.path.rename(tmp_path / "gone")
    study = resume_study(tmp_path / "later", trainings=FakeRuns(score))
    assert study.done and study.trials[0].settings == earlier.best.settings and study.replay().mismatches == []


def test_earlier_trials_inform_tpe_where_scores_are_comparable(tmp_path: Path, earlier: Study) -> None:
    study = warm(tmp_path, earlier, sampler="tpe")
    seen = optuna.load_study(study_name="study", storage=open_storage(study.path, None)).trials
    brought = [trial for trial in seen if "earlier trial" in trial.user_attrs]
    scored = earlier.course.ranked()
    assert [trial.params for trial in brought] == [trial.settings for trial in scored]
    assert [trial.value for trial in brought if trial.value is not None] == [
        trial.value for trial in scored if trial.state == "complete"
    ]
    assert all(trial.optuna is not None and trial.optuna >= len(scored) for trial in study.trials)
    other = run_study(
        {**VALUES, "seed": 30, "warm_start": str(earlier.path), "sampler": "tpe", "phase": "500steps"},
        folder=tmp_path / "other",
        trainings=FakeRuns(score),
    )
    assert other.course.warmed is not None and other.course.warmed.informing == 0
    assert len(optuna.load_study(study_name="study", storage=open_storage(other.path, None)).trials) == 8


def test_cmaes_starts_where_the_earlier_study_was_best(tmp_path: Path) -> None:
    """All trials of the earlier study lie near 1e-2, so the first draws of the later one do."""
    space = parse_space(["learning_rate=log(1e-6,1e-1)", "lam=uniform(0,1)", "gamma=.9,.99"])
    values = {"learning_rate": 1e-2, "lam": 0.9, "gamma": 0.9}
    from shoal.tuning.distributions import distributions

    known = optuna.create_trial(value=1.0, params=values, distributions=distributions(space))
    study = optuna.create_study(direction="maximize")
    study.add_trial(known)
    drawn = []
    for trial in range(6):
        study.sampler = make_sampler("cmaes", space, seed=1, trial=trial, earlier=[known])
        drawn.append(study.ask(distributions(space)).params)
    assert all(1e-3 < one["learning_rate"] < 0.1 and one["lam"] > 0.6 for one in drawn[1:])


def test_a_space_that_does_not_agree_is_refused_by_name(tmp_path: Path, earlier: Study) -> None:
    space = {"learning_rate": "log(1e-4,1e-1)", "gamma": ".9,.99"}
    for changed, told in [
        ({**space, "gamma": ".9,.99,.999"}, "gamma is 0.9,0.99 there and 0.9,0.99,0.999 here"),
        ({"learning_rate": space["learning_rate"]}, "gamma varies in its study and not here"),
        ({**space, "lam": "uniform(0.9,1)"}, "lam varies here and not in its study"),
    ]:
        with pytest.raises(BadInput, match=told):
            warm(tmp_path, earlier, space=changed)
    with pytest.raises(BadInput, match="is not a study"):
        warm(tmp_path, earlier, warm_start=str(tmp_path / "nowhere"))
    grid = {"gamma": ".9,.99", "unroll": "4,8"}
    with pytest.raises(BadInput, match="does not go with --sampler grid"):
        warm(tmp_path, earlier, space=grid, sampler="grid", trials=4)
    assert not (tmp_path / "later").exists()


def test_a_study_without_scores_warms_nothing(tmp_path: Path) -> None:
    dead = run_study(
        {**VALUES, "trials": 1}, folder=tmp_path / "dead", trainings=FakeRuns(score, dict.fromkeys(range(9), 1))
    )
    with pytest.raises(BadInput, match="no trial of that study has a score"):
        warm(tmp_path, dead)


def test_winners_are_confirmed_on_seeds_that_no_earlier_study_has_used(tmp_path: Path, earlier: Study) -> None:
    """The earlier study has the same seed, so its first configurations were chosen on the default test seeds."""
    assert earlier.plan.test_seeds == (1006, 1007)
    study = warm(tmp_path, earlier, seed=6, confirm="top1x3")
    assert study.plan.test_seeds == (1008, 1009, 1010)
    assert "confirmed on seeds 1008 to 1010, unused by that study" in heading(study)
    assert all(set(seeds) == {1008, 1009, 1010} for seeds in study.course.tests.values())
    assert warm(tmp_path, earlier, seed=6, confirm="top1x3").summary() == study.summary(), "the same call continues"
    third = run_study(
        {**VALUES, "warm_start": str(study.path), "confirm": "top1x1"}, folder=tmp_path / "3", trainings=FakeRuns(score)
    )
    assert third.plan.test_seeds == (1011,), "nor on those of the study before"
    assert warm(tmp_path / "apart", earlier, confirm="top1x3").plan.test_seeds == (1030, 1031, 1032), "no overlap"


def test_test_seeds_of_the_earlier_study_are_refused(tmp_path: Path, earlier: Study) -> None:
    with pytest.raises(BadInput, match=r"test seed 1007 was used by .* choose --test-seed 1008 or above"):
        warm(tmp_path, earlier, seed=6, confirm="top1x2", test_seed=1007)
    with pytest.raises(BadInput, match="test seed 6 was used"):
        warm(tmp_path, earlier, seed=30, confirm="top1x1", test_seed=6)
    assert not (tmp_path / "later").exists()
    assert warm(tmp_path, earlier, seed=6, confirm="top1x2", test_seed=1008).plan.test_seeds == (1008, 1009)
