"""HyperTrickPruner in plain Optuna studies: order, retries, processes, replay."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.trial import TrialState

from shoal.core.errors import BadInput, RunFailed
from shoal.tuning import HyperTrickPruner, open_journal
from shoal.tuning.hypertrick import Report

optuna.logging.set_verbosity(optuna.logging.WARNING)


def pruner(storage: BaseStorage | None = None, trials: int = 16, phases: int = 4) -> HyperTrickPruner:
    return HyperTrickPruner(trials=trials, phases=phases, eviction=0.25, storage=storage)


def objective(trial: optuna.Trial) -> float:
    """Knows nothing of RL."""
    x = trial.suggest_float("x", 0, 1)
    for phase in range(4):
        trial.report(x, phase)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("jobs", [1, 4])
def test_it_works_in_a_plain_study(direction: str, jobs: int) -> None:
    rule = pruner(trials=40)
    study = optuna.create_study(direction=direction, pruner=rule, sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=40, n_jobs=jobs)
    ends = [trial.state for trial in study.trials]
    assert 5 < ends.count(TrialState.PRUNED) < 40 and ends.count(TrialState.COMPLETE) == 40 - ends.count(
        TrialState.PRUNED
    )
    pruned = [t.params["x"] for t in study.trials if t.state == TrialState.PRUNED]
    whole = [t.params["x"] for t in study.trials if t.state == TrialState.COMPLETE]
    worse = sum(pruned) / len(pruned) < sum(whole) / len(whole)
    assert worse == (direction == "maximize")
    told = rule.replay(study)
    assert told.mismatches == [] and len(told.decisions) == sum(len(t.intermediate_values) for t in study.trials)
    assert len(study.trials) == 40  # the ledger is another study


def tell(study: optuna.Study, trial: optuna.Trial, *values: float) -> list[bool]:
    said = []
    for phase, value in enumerate(values):
        trial.report(value, phase)
        said.append(trial.should_prune())
    return said


def test_the_order_of_arrival_decides() -> None:
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        study = optuna.create_study(direction="maximize", pruner=pruner(trials=4))
        asked = [study.ask() for _ in range(4)]
        found = {number: tell(study, asked[number], float(number)) for number in order}
        # Two collect data; then a trial in the lower half so far goes.
        evicted = [number for number in range(4) if found[number] == [True]]
        assert evicted == ([] if order[0] == 0 else [0, 1])


def test_a_second_question_has_the_first_answer() -> None:
    study = optuna.create_study(direction="maximize", pruner=pruner(trials=2))
    good, bad = study.ask(), study.ask()
    assert tell(study, good, 1.0) == [False] and tell(study, bad, 0.0) == [True]
    assert [bad.should_prune(), good.should_prune()] == [True, False]
    assert study.pruner.reports(study) == [Report(0, 0, 1.0), Report(1, 0, 0.0)]  # type: ignore[attr-defined]


def test_nan_evicts_at_once_and_infinity_is_a_value() -> None:
    storage = InMemoryStorage()
    study = optuna.create_study(direction="minimize", storage=storage, pruner=pruner(storage))
    assert tell(study, study.ask(), math.nan) == [True]
    assert tell(study, study.ask(), math.inf) == [False]
    assert [str(r.value) for r in study.pruner.reports(study)] == ["nan", "inf"]  # type: ignore[attr-defined]


def test_a_retried_trial_keeps_its_first_report() -> None:
    rule = pruner(trials=2)
    study = optuna.create_study(direction="maximize", pruner=rule)
    assert tell(study, study.ask(), 1.0) == [False]
    lost = study.ask()
    assert tell(study, lost, 0.0) == [True]
    study.tell(lost, state=TrialState.FAIL)
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
    retry(study, study.trials[1])
    again = study.ask()
    assert again.number == 2
    assert tell(study, again, 9.0) == [True]  # as trial 1 was told
    study.tell(again, state=TrialState.PRUNED)
    assert len(rule.reports(study)) == 2 and rule.replay(study).mismatches == []


def test_replay_tells_what_went_another_way() -> None:
    rule = pruner(trials=2)
    study = optuna.create_study(direction="maximize", pruner=rule)
    good, bad = study.ask(), study.ask()
    tell(study, good, 1.0)
    assert tell(study, bad, 0.0, 0.0) == [True, False]  # the second question should not have been asked
    study.tell(good, state=TrialState.PRUNED)
    study.tell(bad, 0.0)
    assert rule.replay(study).mismatches == [
        "trial 0 was pruned after phase 0, but the rule lets it continue",
        "trial 1 was evicted in phase 0 and reported phase 1",
    ]


def test_a_ledger_in_memory_refuses_a_second_process(tmp_path: Path) -> None:
    storage = open_journal(tmp_path / "journal")
    study = optuna.create_study(study_name="s", direction="maximize", storage=storage, pruner=pruner())
    tell(study, study.ask(), 1.0)
    other = optuna.load_study(study_name="s", storage=open_journal(tmp_path / "journal"), pruner=pruner())
    with pytest.raises(RunFailed, match=r"reports from another process.*storage=\.\.\."):
        tell(other, other.ask(), 1.0)


def test_a_resumed_study_goes_on_with_its_ledger(tmp_path: Path) -> None:
    def opened() -> optuna.Study:
        storage = open_journal(tmp_path / "journal")
        return optuna.create_study(
            study_name="s", direction="maximize", storage=storage, pruner=pruner(storage, trials=2), load_if_exists=True
        )

    assert tell(opened(), opened().ask(), 1.0) == [False]
    study = opened()
    assert tell(study, study.ask(), 0.0) == [True]
    assert study.pruner.replay(study).mismatches == []  # type: ignore[attr-defined]


WORKER = """
import random, sys, warnings
import optuna
from shoal.tuning import HyperTrickPruner, open_journal
optuna.logging.set_verbosity(optuna.logging.WARNING)
storage = open_journal(sys.argv[1])
pruner = HyperTrickPruner(trials=24, phases=3, eviction=0.25, storage=storage)
study = optuna.load_study(study_name="s", storage=storage, pruner=pruner)
def objective(trial):
    draw = random.Random(trial.number)
    for phase in range(3):
        trial.report(draw.random(), phase)
        if trial.should_prune():
            raise optuna.TrialPruned
    return 0.0
study.optimize(objective, n_trials=6)
"""


def test_processes_that_share_a_journal_decide_as_its_replay(tmp_path: Path) -> None:
    storage = open_journal(tmp_path / "journal")
    rule = HyperTrickPruner(trials=24, phases=3, eviction=0.25, storage=storage)
    study = optuna.create_study(study_name="s", direction="maximize", storage=storage, pruner=rule)
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path / "journal")]) for _ in range(4)]
    assert [worker.wait() for worker in workers] == [0] * 4
    told = rule.replay(study)
    assert told.mismatches == [] and len(study.trials) == 24
    assert any(d.evicted for d in told.decisions)


def test_bad_use_is_refused() -> None:
    with pytest.raises(BadInput, match="eviction is 2: expected"):
        HyperTrickPruner(trials=4, phases=2, eviction=2)
    study = optuna.create_study(pruner=pruner(phases=2))
    trial = study.ask()
    assert trial.should_prune() is False  # nothing reported yet
    trial.report(0.0, 2)
    with pytest.raises(BadInput, match="trial 0 reports phase 2: phases run from 0 to 1"):
        trial.should_prune()
    assert study.pruner.reports(study) == []  # type: ignore[attr-defined]
