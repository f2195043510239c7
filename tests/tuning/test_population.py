"""Lanes of a population against the same runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import FakeRuns

import shoal
from shoal.cli.tune_progress import heading
from shoal.core.errors import BadInput
from shoal.run.checkpoints import Checkpoints
from shoal.run.folder import read_json
from shoal.tuning.lanes import Lane
from shoal.tuning.phases import Phase
from shoal.tuning.population import Population, check_space, fused_plan, with_buckets
from shoal.tuning.spaces import Choice, Real, Whole
from shoal.tuning.study import run_study

SHARED: dict[str, Any] = {"algo": "a2c", "algo.unroll": 8, "envs": 4, "net.hidden": (8,)}
UPDATE = 8 * 4
TRIED = [
    {"algo.learning_rate": 1e-3, "algo.gamma": 0.9, "algo.lam": 0.8, "algo.entropy": 0.0},
    {"algo.learning_rate": 1e-2, "algo.gamma": 0.99, "algo.lam": 0.95, "algo.entropy": 0.01},
    {"algo.learning_rate": 3e-2, "algo.gamma": 0.999, "algo.lam": 1.0, "algo.entropy": 0.02},
]


def weights(folder: Path) -> dict[str, np.ndarray]:
    arrays = Checkpoints(folder / "checkpoints").load("last").arrays
    return {name: array for name, array in arrays.items() if name.startswith("state/params/")}


PPO = {**SHARED, "algo": "ppo", "algo.batch_size": 16, "algo.epochs": 2}


@pytest.mark.parametrize("shared", [SHARED, pytest.param(PPO, marks=pytest.mark.slow)], ids=["a2c", "ppo"])
def test_a_lane_learns_what_the_run_alone_learns(tmp_path: Path, shared: dict[str, Any]) -> None:
    population = Population("CartPole-v1", Phase(UPDATE, "steps"))
    settings = [{**shared, "runtime": "fused", "steps": UPDATE, "seed": i, **tried} for i, tried in enumerate(TRIED)]
    lanes = [population.start(tmp_path / f"lane-{i}", own, go_on=False) for i, own in enumerate(settings)]
    population.wait(lanes, 0.0)
    assert [lane.code for lane in lanes] == [0, 0, 0], "their budget is one update"
    for i in (1, 2) if shared is PPO else (1,):
        shoal.train("CartPole-v1", out=tmp_path / f"run-{i}", quiet=True, report=False, eval_episodes=0, **settings[i])
        lane, run = weights(tmp_path / f"lane-{i}"), weights(tmp_path / f"run-{i}")
        assert lane.keys() == run.keys() and len(run) > 3
        for name, array in run.items():
            np.testing.assert_allclose(lane[name], array, atol=1e-5, rtol=0)
    different = weights(tmp_path / "lane-0"), weights(tmp_path / "lane-1")
    assert any((different[0][name] != different[1][name]).any() for name in different[0])


def test_trials_are_sorted_by_shape_into_programs(tmp_path: Path) -> None:
    population = Population("CartPole-v1", Phase(UPDATE, "steps"))
    shapes: list[dict[str, Any]] = [{}, {"algo.unroll": 4, "steps": UPDATE // 2}, {"algo.learning_rate": 3e-2}]
    settings = [{**SHARED, "runtime": "fused", "steps": UPDATE, "seed": i, **own} for i, own in enumerate(shapes)]
    lanes = [population.start(tmp_path / f"lane-{i}", own, go_on=False) for i, own in enumerate(settings)]
    assert all(isinstance(lane, Lane) for lane in lanes)
    programs = [lane.program for lane in lanes if isinstance(lane, Lane)]
    assert programs[0] is programs[2] and programs[0] is not programs[1]
    population.wait(lanes, 0.0)
    assert [lane.code for lane in lanes] == [0, 0, 0], "each has one update"
    shoal.train("CartPole-v1", out=tmp_path / "run", quiet=True, report=False, eval_episodes=0, **settings[1])
    lane, run = weights(tmp_path / "lane-1"), weights(tmp_path / "run")
    assert lane.keys() == run.keys()
    for name, array in run.items():
        np.testing.assert_allclose(lane[name], array, atol=1e-5, rtol=0)


def test_a_configuration_that_is_refused_ends_at_once(tmp_path: Path) -> None:
    population = Population("CartPole-v1", Phase(UPDATE, "steps"))
    own = {**SHARED, "runtime": "fused", "steps": UPDATE, "seed": 0, "algo.unroll": 0}
    refused = population.start(tmp_path / "lane", own, go_on=False)
    assert refused.code == 2 and "unroll" in refused.reason
    population.wait([refused], 0.0)


def test_a_lane_has_the_schedule_of_the_run_alone(tmp_path: Path) -> None:
    shared = {**SHARED, "schedule_steps": 4 * UPDATE}
    population = Population("CartPole-v1", Phase(UPDATE, "steps"))
    settings = {**shared, "runtime": "fused", "steps": 8 * UPDATE, "seed": 0}
    lane = population.start(tmp_path / "lane", settings, go_on=False)
    assert isinstance(lane, Lane)
    np.testing.assert_allclose(lane.inputs()[1][:6], [0, 0.25, 0.5, 0.75, 1, 1])


@pytest.mark.slow
def test_a_study_of_lanes_pauses_and_goes_on(tmp_path: Path) -> None:
    values = {
        "env": "CartPole-v1",
        "space": {"learning_rate": "log(1e-4,1e-1)", "unroll": "4,8"},
        "settings": {name: value for name, value in SHARED.items() if name != "algo.unroll"},
        "population": True,
        "trials": 4,
        "phases": 2,
        "phase": f"{4 * UPDATE}steps",
        "workers": 4,
        "seed": 3,
    }
    study = run_study({**values, "scheduler": "sh"}, folder=tmp_path / "study")
    assert study.done and study.replay().mismatches == []
    assert sorted(trial.unit for trial in study.trials) == [1, 1, 2, 2]
    folder = tmp_path / "study" / "trials" / f"{study.best.number:03d}" / "seed-3"
    assert read_json(folder / "summary.json")["env_steps"] == 8 * UPDATE
    assert {trial.settings["unroll"] for trial in study.trials} == {4, 8}, "programs of two shapes"
    run = shoal.train(resume=folder, steps=10 * UPDATE, quiet=True, report=False, eval_episodes=0)
    assert run.summary["env_steps"] == 10 * UPDATE, "a lane's folder is a run's"


def test_ranges_of_whole_numbers_take_a_few_values(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "env": "CartPole-v1",
        "settings": {"algo": "a2c", "envs": 4},
        "space": {"learning_rate": "log(1e-4,1e-1)", "unroll": "logint(2,100)", "net.hidden": "5;7;9"},
        "scheduler": "none",
        "population": True,
        "trials": 60,
        "phases": 1,
        "phase": "100steps",
        "workers": 60,
    }
    runs = FakeRuns(lambda settings, step: float(settings["algo.learning_rate"]))
    study = run_study(values, folder=tmp_path / "study", trainings=runs)
    shapes = {trial.settings["unroll"] for trial in study.trials}
    assert shapes == {2, 3, 6, 11, 19, 33, 57, 100}, "recorded as they were trained"
    assert {settings["algo.unroll"] for _, settings, _ in runs.started} == shapes
    assert {trial.settings["net.hidden"] for trial in study.trials} == {5, 7, 9}, "lists stay exact"
    assert len({trial.settings["learning_rate"] for trial in study.trials}) == 60
    assert "unroll is one of 2,3,6,11,19,33,57,100, each with a program of its own" in heading(study)
    assert "net.hidden" not in heading(study) and study.replay().mismatches == []
    both = with_buckets({"unroll": Whole(2, 100, True), "envs": Whole(1, 64)})
    assert both == {"unroll": Choice((2, 14, 100)), "envs": Choice((1, 8, 64))}, "nine programs"


def test_what_cannot_be_a_lane_is_refused() -> None:
    check_space({"learning_rate": Real(1e-4, 1e-2, log=True), "unroll": Whole(2, 8), "net.hidden": Choice(("8", "16"))})
    with pytest.raises(BadInput, match=r"value_weight=uniform\(0.1,1.*a list of values, or vary learning_rate, gamma"):
        check_space({"value_weight": Real(0.1, 1.0)})
    with pytest.raises(BadInput, match="--population needs --runtime fused, not 'threads'"):
        fused_plan("CartPole-v1", {"runtime": "threads"})
    with pytest.raises(BadInput, match="no replay"):
        fused_plan("CartPole-v1", {"algo": "dqn"})
    with pytest.raises(BadInput, match="JAX"):
        fused_plan("LunarLander-v3", {})


def test_a_lane_counts_the_faults_of_its_environments(tmp_path: Path) -> None:
    population = Population("nan_lane:SometimesNan", Phase(UPDATE, "steps"))
    own = {**SHARED, "runtime": "fused", "steps": 2 * UPDATE, "seed": 0}
    patient, strict = (
        population.start(tmp_path / str(most), {**own, "max_faults": most}, go_on=False) for most in (9, 0)
    )
    while patient.code is None:
        population.wait([patient, strict], 0.0)
    assert patient.code == 0 and strict.code == 1 and "more than --max-faults 0: env_nan: " in strict.reason
    assert "env_nan" in (tmp_path / "9" / "faults.log").read_text()
    assert sum(row.get("fault/env_nan", 0) for row in patient.rows()) >= 1
    run = shoal.train(resume=tmp_path / "9", steps=2 * UPDATE, quiet=True, report=False, eval_episodes=0)
    assert run.summary["faults"] >= 1, "a resumed run continues the count"


@pytest.mark.slow
def test_a_lane_that_is_not_finite_fails(tmp_path: Path) -> None:
    population = Population("CartPole-v1", Phase(8 * UPDATE, "steps"))
    own = {**SHARED, "max_bad_updates": 2, "steps": 8 * UPDATE, "seed": 0, "algo.learning_rate": 1e38}
    lane = population.start(tmp_path / "lane", own, go_on=False)
    assert isinstance(lane, Lane)
    population.wait([lane], 0.0)
    assert lane.code == 1 and "not finite" in lane.reason
