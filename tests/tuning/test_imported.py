"""Samplers and schedulers of the user's own, by import path: found in the working folder, made once, resumed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from fake_runs import FakeRuns
from test_runner import VALUES, score

from shoal.core.errors import BadInput
from shoal.tuning.events import Tasked
from shoal.tuning.study import Study, resume_study, run_study

OWN = """
import optuna
from shoal.tuning.scheduler import Decision, Task


class Rung:
    '''Trains every trial for a phase, then the best one to the end.'''

    copies = False

    def __init__(self, budget):
        self.trials, self.units = budget.trials, budget.phases
        self._tasks, self._seen = [Task(n, 0, 1) for n in range(budget.trials)], {}

    def next(self):
        return self._tasks.pop(0) if self._tasks else None

    def report(self, trial, unit, value):
        if unit == self.units:
            return Decision(trial, unit, "complete", unit)
        self._seen.setdefault(trial, value)
        if len(self._seen) == self.trials:
            self._tasks.append(Task(max(self._seen, key=self._seen.get), 1, self.units))
        return Decision(trial, unit, "pause", unit)


class Seeded(optuna.samplers.RandomSampler):
    pass


def fixed():
    return optuna.samplers.RandomSampler(seed=1)


def broken():
    raise ValueError("no such thing")


nothing = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working folder, which the `shoal` command does not have on its path."""
    (tmp_path / "own_rules.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "own_rules", raising=False)
    return "own_rules"


def run(tmp_path: Path, **changed: Any) -> Study:
    return run_study({**VALUES, **changed}, folder=tmp_path / "study", trainings=FakeRuns(score))


def test_a_scheduler_of_ones_own(tmp_path: Path, module: str) -> None:
    study = run(tmp_path, scheduler=f"{module}:Rung", trials=5, phases=3)
    assert study.done and study.replay().mismatches == []
    assert sorted(trial.unit for trial in study.trials) == [1, 1, 1, 1, 3]
    [best] = [trial for trial in study.trials if trial.unit == 3]
    assert best.reports[0].value == max(trial.reports[0].value for trial in study.trials)
    assert Study.open(study.path).summary() == study.summary()


@pytest.mark.parametrize("name", ["Seeded", "fixed"])
def test_a_sampler_of_ones_own_draws_a_new_configuration_each_time(tmp_path: Path, module: str, name: str) -> None:
    study = run(tmp_path, sampler=f"{module}:{name}", trials=6, phases=1)
    assert len({trial.settings["learning_rate"] for trial in study.trials}) == 6
    again = run_study(
        {**VALUES, "sampler": f"{module}:{name}", "trials": 6, "phases": 1},
        folder=tmp_path / "again",
        trainings=FakeRuns(score),
    )
    assert [t.settings for t in again.trials] == [t.settings for t in study.trials], "both have a seed"


@pytest.mark.parametrize("name", ["Seeded", "fixed"])
def test_a_resumed_study_does_not_draw_its_first_configurations_again(tmp_path: Path, module: str, name: str) -> None:
    class Stop(Exception):
        pass

    def die(event: Any, study: Study) -> None:
        if isinstance(event, Tasked) and event.trial == 2:
            raise Stop

    values = {**VALUES, "sampler": f"{module}:{name}", "trials": 6, "phases": 1, "workers": 1}
    with pytest.raises(Stop):
        run_study(values, folder=tmp_path / "study", trainings=FakeRuns(score), tell=die)
    study = resume_study(tmp_path / "study", trainings=FakeRuns(score))
    assert len({trial.settings["learning_rate"] for trial in study.trials}) == 6


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"scheduler": "own_rules:Gone"}, "cannot make the scheduler 'own_rules:Gone'"),
        ({"scheduler": "own_rulez:Rung"}, "cannot make the scheduler 'own_rulez:Rung'"),
        ({"scheduler": "own_rules:fixed"}, "cannot make the scheduler 'own_rules:fixed'"),
        ({"sampler": "own_rules:broken"}, "cannot make the sampler 'own_rules:broken': no such thing"),
        ({"sampler": "own_rules:nothing"}, "cannot make the sampler 'own_rules:nothing'"),
        ({"sampler": "own_rules:Rung"}, "cannot make the sampler 'own_rules:Rung'"),
    ],
)
def test_what_is_none_is_refused(tmp_path: Path, module: str, changed: dict[str, str], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        run(tmp_path, **changed)
    assert not (tmp_path / "study").exists()
