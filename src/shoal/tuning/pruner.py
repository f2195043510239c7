"""HyperTrick for any Optuna study, using only Optuna's public API.

    study = optuna.create_study(direction="maximize", pruner=HyperTrickPruner(trials=100, phases=10, eviction=0.25))

with `trial.report(value, phase)` for phases 0, 1, ... and `trial.should_prune()` after each. HyperTrick decides by order of
arrival, which Optuna's intermediate values do not have. So every report is added to a second study, the ledger, as one finished
trial: its number is its place in a total order that is the same for all processes. A pruner that counted only the reports it
happens to see would evict too many trials when several report at once.
"""

from __future__ import annotations

import secrets
import warnings
from typing import NamedTuple

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from shoal.core.errors import RunFailed
from shoal.tuning.hypertrick import HyperTrick, Report, check_phase, decide, replay

_TRIAL = "trial"
_OWNER = "shoal:hypertrick-ledger"  # attribute of a study whose ledger is in one process


class HyperTrickPruner(optuna.pruners.BasePruner):
    """HyperTrick for `trials` configurations with at most `phases` reports each; `eviction` is the share stopped in each phase.

    `storage` holds the ledger: pass the study's own storage (an object or a URL). Without it the ledger is in memory, for a study
    of one process; a second process, or a resumed study, is then refused. A retried trial keeps its first reports.
    """

    def __init__(self, *, trials: int, phases: int, eviction: float, storage: str | BaseStorage | None = None) -> None:
        HyperTrick(trials=trials, phases=phases, eviction=eviction)  # raises for a bad setting
        self.trials, self.phases, self.eviction = trials, phases, eviction
        self._storage = storage
        self._token = secrets.token_hex(8)
        self._ledgers: dict[str, _Ledger] = {}

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        phase = trial.last_step
        if phase is None:
            return False
        number = _identity(trial)
        check_phase(number, phase, self.phases)
        prefix = self._ledger(study).enter(Report(number, phase, trial.intermediate_values[phase]))
        return decide(_higher_is_better(study, prefix), trials=self.trials, phases=self.phases, eviction=self.eviction)

    def reports(self, study: Study) -> list[Report]:
        """The ledger of `study` in order, with values as reported."""
        return self._ledger(study).read()

    def replay(self, study: Study) -> Replay:
        """Repeat every decision from the ledger, and compare with how the trials ended."""
        reports = self.reports(study)
        evicted = replay(
            _higher_is_better(study, reports), trials=self.trials, phases=self.phases, eviction=self.eviction
        )
        decisions = [Replayed(*both) for both in zip(reports, evicted, strict=True)]
        return Replay(decisions, _mismatches(study, decisions))

    def _ledger(self, study: Study) -> _Ledger:
        name = study.study_name
        if name not in self._ledgers:
            # If two threads get here at once, one ledger is kept; the other is still empty.
            self._ledgers.setdefault(name, _Ledger(f"{name}-hypertrick", self._storage))
        if self._storage is None:
            self._claim(study)
        return self._ledgers[name]

    def _claim(self, study: Study) -> None:
        """Refuse to decide from a ledger that holds only part of the reports."""
        owner = study.user_attrs.get(_OWNER)
        if owner is None:
            study.set_user_attr(_OWNER, self._token)
        elif owner != self._token:
            raise RunFailed(
                f"study {study.study_name!r} has reports from another process that this process's ledger lacks: "
                "give HyperTrickPruner the study's storage (storage=...)"
            )


class Replayed(NamedTuple):
    report: Report
    evicted: bool


class Replay(NamedTuple):
    decisions: list[Replayed]
    mismatches: list[str]  # a line for each trial that ended differently from the rule


class _Ledger:
    """An Optuna study whose trials are reports. Threads may share it: entries are only appended."""

    def __init__(self, name: str, storage: str | BaseStorage | None) -> None:
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))  # no message: the user did not create it
        try:
            self._study = optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
        finally:
            optuna.logging.set_verbosity(verbosity)
        self._seen: dict[int, Report] = {}  # {place in the order: report}
        self._phases: dict[int, dict[int, Report]] = {}  # the same by phase
        self._places: dict[tuple[int, int], int] = {}  # {(trial, phase): place of the first report}

    def enter(self, report: Report) -> list[Report]:
        """Reports of this phase up to this trial's first one, which is added if it is missing."""
        mine = (report.trial, report.phase)
        if mine not in self._places:
            self._catch_up()
        if mine not in self._places:
            values = {report.phase: report.value}
            self._study.add_trial(
                optuna.create_trial(value=0.0, user_attrs={_TRIAL: report.trial}, intermediate_values=values)
            )
            self._catch_up()
        end = self._places[mine]
        return [entry for at, entry in list(self._phases[report.phase].items()) if at <= end]

    def read(self) -> list[Report]:
        self._catch_up()
        return list(self._seen.values())

    def _catch_up(self) -> None:
        # Threads may run this concurrently: each sets the same entries in the same order.
        for entry in self._study.get_trials(deepcopy=False)[len(self._seen) :]:
            [(phase, value)] = entry.intermediate_values.items()
            report = Report(entry.user_attrs[_TRIAL], phase, value)
            self._phases.setdefault(phase, {})[entry.number] = report
            self._places.setdefault((report.trial, phase), entry.number)
            self._seen[entry.number] = report


def _higher_is_better(study: Study, reports: list[Report]) -> list[Report]:
    if study.direction == StudyDirection.MAXIMIZE:
        return reports
    return [report._replace(value=-report.value) for report in reports]


def _identity(trial: FrozenTrial) -> int:
    """Number of the original trial if this one is a retry."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        first = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
    return trial.number if first is None else first


def _mismatches(study: Study, decisions: list[Replayed]) -> list[str]:
    ends = {report.trial: report.phase for report, evicted in decisions if evicted}
    last: dict[int, int] = {}
    for report, _ in decisions:
        last[report.trial] = max(last.get(report.trial, 0), report.phase)
    lines = []
    # A retry follows the original, so the last attempt shows how the trial ended.
    for trial in {_identity(trial): trial for trial in study.get_trials(deepcopy=False)}.values():
        number = _identity(trial)
        if number not in last:
            continue
        end = ends.get(number)
        if end is not None and last[number] > end:
            lines.append(f"trial {number} was evicted in phase {end} and reported phase {last[number]}")
        elif end is not None and trial.state == TrialState.COMPLETE:
            lines.append(f"trial {number} was evicted in phase {end} and completed")
        elif end is None and trial.state == TrialState.PRUNED:
            lines.append(f"trial {number} was pruned after phase {last[number]}, but the rule lets it continue")
    return lines
