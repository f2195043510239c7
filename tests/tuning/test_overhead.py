"""What a study itself costs: a thousand trials whose training takes no time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_runner import VALUES

from shoal.tuning.study import run_study
from shoal.tuning.trainings import Training


class Instant:
    """A training that has ended with its first line of metrics."""

    code, reason = None, ""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        steps, value = settings["steps"], float(settings["algo.learning_rate"])
        self._row = {"step": steps, "speed/env_steps": steps, "episode/count": 1, "episode/return": value}

    def rows(self) -> list[dict[str, Any]]:
        return [self._row]

    def stop(self) -> None:
        self.code = 0  # type: ignore[assignment]

    pause = kill = stop


class Instants:
    def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Training:
        return Instant(settings)

    def wait(self, trainings: Sequence[Training], seconds: float) -> None:
        pass


def test_a_run_that_has_ended_reports_its_phases_without_waiting(tmp_path: Path) -> None:
    """A fast run reaches all of its phases before the driver looks for the first time."""

    class Counted(Instants):
        waits = 0

        def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Training:
            made = Instant(settings)
            made.stop()
            return made

        def wait(self, trainings: Sequence[Training], seconds: float) -> None:
            self.waits += 1

    runs = Counted()
    values = {**VALUES, "scheduler": "none", "trials": 5, "phases": 4, "workers": 1}
    study = run_study(values, folder=tmp_path / "study", trainings=runs)
    assert study.done and all(len(trial.reports) == 4 for trial in study.trials)
    assert runs.waits == 0


@pytest.mark.slow
def test_the_cost_of_a_trial_does_not_grow_with_their_number(tmp_path: Path) -> None:
    """Its seconds depend on the machine; that a thousand trials take about four times as long as 250 does not."""

    def cost(trials: int) -> float:
        values = {**VALUES, "scheduler": "none", "trials": trials, "phases": 1, "workers": 8}
        began = time.process_time()
        study = run_study(values, folder=tmp_path / f"study-{trials}", trainings=Instants())
        assert study.done and len(study.trials) == trials
        return time.process_time() - began

    cost(10)  # imports
    assert cost(1000) < 2 * 4 * cost(250)
