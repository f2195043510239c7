"""A study's book in its storage: orphans of a crash, another storage, the dashboard's shell, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from fake_runs import FakeRuns
from optuna.trial import TrialState
from test_runner import VALUES, score

from shoal.core.errors import BadInput
from shoal.observe.study_report import write_study_report
from shoal.tuning.book import Book, open_storage
from shoal.tuning.config import make_config, prepare
from shoal.tuning.dashboard import read_only, serve
from shoal.tuning.document import document_of, importances
from shoal.tuning.samplers import make_sampler
from shoal.tuning.spaces import parse_space
from shoal.tuning.study import Study, run_study, space_words
from shoal.tuning.timeline import clock

SPACE = parse_space(["x=0.0..1.0"])


def test_a_configuration_that_no_task_came_of_is_closed(tmp_path: Path) -> None:
    book = Book.new(open_storage(tmp_path, None), "study", SPACE)
    asked = [book.ask(make_sampler("random", SPACE, seed=0, trial=0)) for _ in range(2)]
    assert [number for _, number in asked] == [0, 1] and asked[0][0] == asked[1][0]
    Book.known(open_storage(tmp_path, None), "study", SPACE)
    trials = optuna.load_study(study_name="study", storage=open_storage(tmp_path, None)).trials
    assert [trial.state for trial in trials] == [TrialState.FAIL] * 2


def test_optuna_sees_the_whole_study(tmp_path: Path) -> None:
    study = run_study({**VALUES, "scheduler": "asha"}, folder=tmp_path / "study", trainings=FakeRuns(score))
    seen = optuna.load_study(study_name="study", storage=open_storage(study.path, None))
    assert len(seen.trials) == 8
    for trial in study.trials:
        assert trial.optuna is not None
        mirror = seen.trials[trial.optuna]
        assert mirror.params == trial.settings
        assert mirror.intermediate_values == {report.unit - 1: report.value for report in trial.reports}
        assert mirror.state == (TrialState.COMPLETE if trial.state == "complete" else TrialState.PRUNED)
    assert seen.best_value == max(trial.value for trial in study.trials if trial.state == "complete")


def test_another_storage_keeps_the_same(tmp_path: Path) -> None:
    values = {**VALUES, "trials": 2, "phases": 2, "storage": f"sqlite:///{tmp_path}/studies.db"}
    study = run_study(values, folder=tmp_path / "one", trainings=FakeRuns(score))
    assert Study.open(study.path).summary() == study.summary() and not (study.path / "study.journal").exists()
    with pytest.raises(BadInput, match="the storage already has a study 'one'"):
        run_study(values, folder=tmp_path / "deep" / "one", trainings=FakeRuns(score))
    assert not (tmp_path / "deep").exists()


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    def second(event: Any, study: Study) -> None:
        with pytest.raises(BadInput, match="is in use by process"):
            run_study({**VALUES, "trials": 1}, folder=tmp_path / "study", trainings=FakeRuns(score))

    assert run_study({**VALUES, "trials": 1}, folder=tmp_path / "study", trainings=FakeRuns(score), tell=second).done


def test_the_report_is_one_page(tmp_path: Path) -> None:
    values = {**VALUES, "confirm": "top2x2", "seeds_per_trial": 2}
    study = run_study(values, folder=tmp_path / "study", trainings=FakeRuns(score, {2: -9}))
    document = document_of(study)
    assert set(document["importance"]) == {"learning_rate", "gamma"}
    assert sum(document["importance"].values()) == pytest.approx(1)
    assert document["importance"]["learning_rate"] > 0.5, "the score depends on it alone"
    page = write_study_report(study.path, document).read_text()
    for title in (
        "Which worker trained which trial",
        "Scores over time",
        "Parameters against score",
        "Confirmed winners",
    ):
        assert title in page
    assert page.count("<svg") == 5 and "src=" not in page
    pieces = study.pieces
    assert any(piece.verdict == "lost" for piece in pieces) and all(p.start <= p.stop for p in pieces)
    times = clock(study.course.events)
    assert times == sorted(times) and times[0] == 0


def test_few_trials_have_no_importances(tmp_path: Path) -> None:
    study = run_study({**VALUES, "trials": 2}, folder=tmp_path / "study", trainings=FakeRuns(score))
    assert importances(study) == {}


def test_spaces_in_python() -> None:
    found = space_words({"net.hidden": [(64, 64), (128,)], "gamma": [0.9, 0.99], "learning-rate": "log(1e-5,1e-2)"})
    assert found == {"net.hidden": "64,64;128", "gamma": "0.9,0.99", "learning_rate": "log(1e-5,1e-2)"}
    plan = prepare(make_config({**VALUES, "space": found}))
    assert plan.settings({"net.hidden": "64,64", "gamma": 0.9}, 3)["algo.gamma"] == 0.9
    with pytest.raises(BadInput, match="expected a mapping"):
        space_words("gamma=.9")


@pytest.mark.parametrize(
    ("method", "host", "status"),
    [
        ("GET", "127.0.0.1:8080", "200 OK"),
        ("HEAD", "localhost:8080", "200 OK"),
        ("DELETE", "127.0.0.1:8080", "405 Method Not Allowed"),
        ("POST", "localhost:8080", "405 Method Not Allowed"),
        ("GET", "evil.example:8080", "403 Forbidden"),
        ("GET", "127.0.0.1:9", "403 Forbidden"),
        ("GET", "", "403 Forbidden"),
    ],
)
def test_the_dashboard_only_reads_and_answers_to_this_machine(method: str, host: str, status: str) -> None:
    reached, said = [], []

    def app(environ: dict[str, Any], start: Any) -> list[bytes]:
        reached.append(environ["REQUEST_METHOD"])
        start("200 OK", [])
        return [b"studies"]

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        said.append((status, dict(headers)))

    read_only(app, 8080)({"REQUEST_METHOD": method, "HTTP_HOST": host}, start)
    assert said[0][0] == status and bool(reached) == (status == "200 OK")
    if reached:
        assert said[0][1]["X-Frame-Options"] == "DENY"


def test_a_dashboard_needs_a_port_and_a_study(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a study"):
        serve(tmp_path, 8080, lambda line: None)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(BadInput, match="--port is 70000: expected 1 to 65535"):
        serve(tmp_path, 70000, lambda line: None)
