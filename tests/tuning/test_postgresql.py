"""Studies in PostgreSQL: run, resumed, read and replayed, with a server that goes away in between."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from fake_runs import FakeRuns
from postgresql import Server, private_server
from test_runner import VALUES, score

from shoal.core.errors import BadInput, RunFailed
from shoal.tuning.book import opened_storage
from shoal.tuning.events import Reported
from shoal.tuning.pruner import HyperTrickPruner
from shoal.tuning.study import Study, resume_study, run_study

REPORTERS = """
import sys
import optuna
from pathlib import Path
from shoal.tuning.book import open_storage
from shoal.tuning.pruner import HyperTrickPruner

optuna.logging.set_verbosity(optuna.logging.ERROR)
storage = open_storage(Path(), sys.argv[1])
pruner = HyperTrickPruner(trials=12, phases=3, eviction=0.5, storage=storage)
study = optuna.load_study(study_name="shared", storage=storage, pruner=pruner)


def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    for phase in range(3):
        trial.report(x, phase)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x


study.optimize(objective, n_trials=6)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with private_server() as found:
        yield found


def values(server: Server, **changed: Any) -> dict[str, Any]:
    return {**VALUES, "trials": 4, "phases": 3, "storage": server.url, **changed}


def test_a_study_in_a_database_is_the_same_study(tmp_path: Path, server: Server) -> None:
    runs = FakeRuns(score, {1: 1})
    study = run_study(values(server, sampler="tpe", confirm="top1x2"), folder=tmp_path / "db", trainings=runs)
    assert study.done and study.replay().mismatches == []
    assert any(math.isnan(trial.value) for trial in study.trials), "NaN is kept"
    assert Study.open(study.path).summary() == study.summary()
    assert not (study.path / "study.journal").exists()
    with opened_storage(tmp_path, server.url) as storage:
        seen = optuna.load_study(study_name="db", storage=storage).trials
    assert [seen[trial.optuna or 0].params for trial in study.trials] == [t.settings for t in study.trials]
    with pytest.raises(BadInput, match="the storage already has a study 'db'"):
        run_study(values(server), folder=tmp_path / "deep" / "db", trainings=FakeRuns(score))
    assert not (tmp_path / "deep").exists()


def test_a_server_that_goes_away_costs_nothing(tmp_path: Path, server: Server) -> None:
    reports = 0

    def away(event: Any, study: Study) -> None:
        nonlocal reports
        reports += isinstance(event, Reported)
        if isinstance(event, Reported) and reports == 4:
            server.stop()

    runs = FakeRuns(score)
    try:
        with pytest.raises(
            RunFailed, match=r"the storage failed: .*; the trials are checkpointed, continue with: shoal tune"
        ):
            run_study(values(server, scheduler="sh"), folder=tmp_path / "gone", trainings=runs, tell=away)
        assert all(run.code == 0 for run in runs.runs), "every run has a checkpoint"
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "gone").rglob("*")}
        for attempt in (resume_study, Study.open):
            with pytest.raises(BadInput, match="cannot reach the storage") as refused:
                attempt(tmp_path / "gone")
            assert "\n" not in str(refused.value)
        after = {path: path.stat().st_mtime_ns for path in (tmp_path / "gone").rglob("*") if path.name != "run.lock"}
        assert {path: before[path] for path in after} == after, "the study is untouched"
    finally:
        server.start()
    study = resume_study(tmp_path / "gone", trainings=FakeRuns(score))
    assert study.done and study.replay().mismatches == []
    assert sum(isinstance(event, Reported) for event in study.course.events) == 4 + 2 + 1


def test_processes_agree_on_the_order_of_reports(server: Server) -> None:
    with opened_storage(Path(), server.url) as storage:
        optuna.create_study(study_name="shared", storage=storage, direction="maximize")
        begun = [
            subprocess.Popen(
                [sys.executable, "-c", REPORTERS, server.url],
                stderr=subprocess.PIPE,
                text=True,
                env={"PYTHONPATH": ":".join(sys.path)},
            )
            for _ in range(2)
        ]
        for process in begun:
            _, err = process.communicate(timeout=280)
            assert process.returncode == 0, err
        pruner = HyperTrickPruner(trials=12, phases=3, eviction=0.5, storage=storage)
        study = optuna.load_study(study_name="shared", storage=storage, pruner=pruner)
        assert len(study.trials) == 12 and pruner.replay(study).mismatches == []


def test_the_command_refuses_what_it_cannot_reach(tmp_path: Path, server: Server) -> None:
    words = ["tune", "CartPole-v1", "--space", "gamma=.9,.99", "--study", str(tmp_path / "study"), "--json"]
    url = "postgresql://me:secret@127.0.0.1:1/studies"
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words, "--storage", url],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert "cannot reach the storage 'postgresql://me:***@127.0.0.1:1/studies'" in done.stderr
    assert "secret" not in done.stderr and list(tmp_path.iterdir()) == []


def test_a_real_study_from_the_command_line(tmp_path: Path, server: Server) -> None:
    words = ["tune", "CartPole-v1", "--algo", "a2c", "--population", "--workers", "4", "--trials", "4", "--phases", "2"]
    words += ["--phase", "512steps", "--envs", "4", "--net.hidden", "8", "--space", "learning_rate=log(1e-4,1e-1)"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words, "--storage", server.url, "--study", "real", "--json", "--quiet"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] and (tmp_path / "real" / "report.html").exists()
    assert Study.open(tmp_path / "real").replay().mismatches == []
