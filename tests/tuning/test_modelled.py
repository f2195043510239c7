"""The model beside a study that was run: fitted times, completed values, and walls that agree where the model holds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from fake_runs import FakeRuns

from shoal.observe.comparison_figures import draw
from shoal.tuning import study as studies
from shoal.tuning.config import Plan, make_config, prepare
from shoal.tuning.document import document_of
from shoal.tuning.events import Course, Event, Lost, Opened, Reported, Started, Tasked
from shoal.tuning.modelled import fitted, modelled, reported, search_pieces
from shoal.tuning.simulate import Trials, draw_trials, simulate
from shoal.tuning.study import run_study
from shoal.tuning.versus import versus

STUDY: dict[str, Any] = {
    "env": "CartPole-v1",
    "settings": {"algo": "a2c", "runtime": "fused"},
    "space": {"learning_rate": "log(1e-5,1e-2)"},
    "phase": "1000steps",
}
START, END = 3.0, 0.5


def plan_of(**changed: Any) -> Plan:
    return prepare(make_config({**STUDY, "trials": 8, "phases": 3, "workers": 2, **changed}))


def acted(plan: Plan, trials: Trials) -> Course:
    """The ledger of a study that took exactly as long as a simulation with these costs."""
    made = simulate(plan.scheduler(), trials, nodes=plan.config.workers, start=START, end=END)
    rule, stamped = plan.scheduler(), list[tuple[float, int, Event]]()
    for at, piece in enumerate(made.pieces):
        if piece.loading:
            stamped.append((piece.start, 2 * at, Started(100 + piece.start, piece.trial, piece.node)))
        verdict = rule.report(piece.trial, piece.end, piece.value)
        report = Reported(
            *(100 + piece.stop, piece.trial, piece.node, piece.end, piece.value, [piece.value]),
            *(verdict.verdict, verdict.end, list(verdict.stopped)),
        )
        stamped.append((piece.stop, 2 * at + 1, report))
    tasks = [Tasked(100.0, n, 0, 1, {"learning_rate": 1e-3}) for n in range(plan.config.trials)]
    return Course([Opened(100.0, 1, "here"), *tasks, *(event for _, _, event in sorted(stamped, key=lambda e: e[:2]))])


@pytest.mark.parametrize("scheduler", ["hypertrick", "none", "asha"])
def test_a_study_that_keeps_to_the_model_is_predicted_exactly(scheduler: str) -> None:
    plan = plan_of(scheduler=scheduler)
    trials = draw_trials(8, 3, sigma=0.6, seed=3)
    course = acted(plan, trials)
    found = modelled(plan, course)
    assert found is not None
    assert found.measured == pytest.approx(max(piece.stop for piece in search_pieces(course)))
    assert found.ratio == pytest.approx(1.0, abs=1e-6)
    assert found.times.end == pytest.approx(END)
    if scheduler == "none":  # its trials continue in place, which tells the start from the training
        assert found.times.units == pytest.approx(trials.times, abs=1e-6)
        assert found.times.start == pytest.approx(START, abs=1e-6)


def test_pieces_that_vary_are_fitted_by_one_time_per_trial() -> None:
    plan = plan_of(scheduler="none", trials=1, workers=1)
    events: list[Event] = [Opened(0.0, 1, "here"), Tasked(0.0, 0, 0, 1, {}), Started(0.0, 0, 0)]
    for unit, at, verdict in ((1, 5.0, "continue"), (2, 6.0, "continue"), (3, 9.0, "complete")):
        events.append(Reported(at, 0, 0, unit, 1.0, [1.0], verdict, unit + 1))  # type: ignore[arg-type]
    times = fitted(search_pieces(Course(events)), plan.config.trials)
    assert times.units == pytest.approx([2.0]) and times.start == pytest.approx(3.0) and times.end == 0.0


def test_missing_reports_come_from_other_studies_or_the_unit_before() -> None:
    def course(*reports: tuple[int, int, float]) -> Course:
        events: list[Event] = [Tasked(0.0, n, 0, 1, {}) for n in range(2)]
        events += [Reported(0.0, trial, 0, unit, value, [value], "continue", 9) for trial, unit, value in reports]
        return Course(events)

    values = reported([course((0, 1, 1.0), (1, 1, 5.0)), course((0, 1, 9.0), (0, 2, 2.0))], 2, 3)
    assert values.tolist() == [[1.0, 2.0, 2.0], [5.0, 5.0, 5.0]]
    assert math.isnan(reported([course()], 2, 1)[0, 0])


def test_the_model_does_not_apply_to_a_population_or_to_lost_workers() -> None:
    plan = plan_of(scheduler="none")
    course = acted(plan, draw_trials(8, 3, sigma=0.0))
    assert modelled(plan_of(scheduler="none", population=True), course) is None
    lost = Course([*course.events[:-1], Lost(200.0, 7, course.events[-1].slot, "killed")])  # type: ignore[union-attr]
    assert modelled(plan, lost) is None


def test_the_report_draws_the_simulated_schedule_below_the_measured_one(tmp_path: Path) -> None:
    values = {**STUDY, "trials": 4, "phases": 2, "phase": "200steps", "scheduler": "sh"}
    study = run_study(values, folder=tmp_path / "s", trainings=FakeRuns(lambda settings, step: float(step)))
    panels = document_of(study)["gantt"]["panels"]
    assert [panel["title"].split(":")[0] for panel in panels] == [
        "measured",
        "simulated with this study's phase times, search only",
    ]
    assert [len(panel["pieces"]) for panel in panels] == [6, 6]


def test_a_comparison_shows_both_schedules_of_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_study(values: dict[str, Any], folder: Path) -> Any:
        return run_study(values, folder=folder, trainings=FakeRuns(lambda settings, step: float(step)))

    monkeypatch.setattr(studies, "run_study", fake_study)
    problem = {**STUDY, "trials": 4, "phases": 2, "phase": "200steps"}
    size = {
        "problems": {"Fake": {**problem, "methods": ["hypertrick", "sh"]}},
        "methods": ["none"],
        "confirm": "top1x2",
        "workers": 2,
        "seeds": 2,
    }
    found = versus(size, tmp_path, lambda done, total, what: None)
    rows = {row["keys"]["method"]: row["values"] for row in found["rows"] if "method" in row["keys"]}
    assert [len(values["simulated"]) for values in rows.values()] == [2, 2]
    assert sorted(rows) == ["Fake, hypertrick", "Fake, sh"] and not list(tmp_path.rglob("confirm/default"))
    [figure] = found["figures"]
    titles = [panel["title"].partition(":")[0] for panel in figure["panels"]]
    assert titles == ["hypertrick, measured", "hypertrick, simulated", "sh, measured", "sh, simulated"]
    assert all(piece["verdict"] != "tested" for panel in figure["panels"] for piece in panel["pieces"])
    assert len(draw(figure, {}).axes) == 4
