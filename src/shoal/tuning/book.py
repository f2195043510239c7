"""A study in its storage: the ledger, and an Optuna study for samplers and dashboards. Only the driver writes.

Every event is first stored as one finished trial of the study NAME-ledger, whose trial numbers are a total order. If the Optuna
study lags behind after a crash, it is completed when the book is opened again.
"""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from shoal.core.errors import BadInput, RunFailed
from shoal.tuning.distributions import distributions
from shoal.tuning.events import Closed, Course, Event, Reported, Trial, Warmed, decode, encode
from shoal.tuning.spaces import Domain
from shoal.tuning.storage import open_journal

JOURNAL = "study.journal"
CONNECT = 10  # seconds that a database server has to answer
SYNC_EVERY = 1.0  # seconds of events that a power cut may lose
_EVENT = "event"
_EARLIER = "earlier trial"  # attribute of trials that a warm start added


def open_storage(folder: Path, url: str | None) -> BaseStorage:
    """Open the journal in `folder`, or the database at `url`. `BadInput` if it cannot be reached."""
    if url is None:
        return open_journal(folder / JOURNAL, sync_every=SYNC_EVERY)
    shown = without_password(url)
    if "://" not in url:
        raise BadInput(f"--storage is {shown!r}: expected a URL, such as postgresql://user@host/studies")
    engine: dict[str, Any] = {"pool_pre_ping": True}
    if re.match(r"postgres(ql)?(\+\w+)?://", url):
        url = re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
        engine["connect_args"] = {"connect_timeout": CONNECT}
    try:
        with _quietly():
            return optuna.storages.RDBStorage(url, engine_kwargs=engine)
    except ImportError:
        raise BadInput(
            f"--storage {shown!r} needs a driver that is not installed; PostgreSQL's comes with: pip install 'shoal[tune]'"
        ) from None
    except Exception as error:  # database drivers, the network and SQLAlchemy each have their own errors
        raise BadInput(f"cannot reach the storage {shown!r}: {_first_line(error)}") from None


@contextlib.contextmanager
def opened_storage(folder: Path, url: str | None) -> Iterator[BaseStorage]:
    """Like `open_storage`; at the end, connections to a database are closed."""
    storage = open_storage(folder, url)
    try:
        yield storage
    finally:
        if isinstance(storage, optuna.storages.RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


def without_password(url: str) -> str:
    """The URL for messages: its password is replaced by ***."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


@contextlib.contextmanager
def storage_failures() -> Iterator[None]:
    """Turn the errors of a storage that was reached before into `StorageLost`."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, optuna.exceptions.StorageInternalError)
        if not known and not type(error).__module__.startswith("sqlalchemy."):  # SQLAlchemy is only used for databases
            raise
        raise StorageLost(_first_line(error.__cause__ or error)) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class StorageLost(RunFailed):
    """The storage stopped answering in the middle of a study. What it has acknowledged is safe."""


class Book:
    """The stored study. Its driver opens it with `new` or, to continue, with `known`; readers use `read`."""

    def __init__(self, study: Study, ledger: Study, space: Mapping[str, Domain]) -> None:
        self._study, self._ledger = study, ledger
        self._distributions = distributions(space)
        self._asked: dict[int, optuna.Trial] = {}  # by Optuna's number
        entries = ledger.get_trials(deepcopy=False)
        try:
            self.course = Course(decode(entry.user_attrs[_EVENT]) for entry in entries)
        except (msgspec.ValidationError, KeyError) as error:
            raise BadInput(f"the ledger of study {study.study_name!r} cannot be read: {error}") from None

    @classmethod
    def new(cls, storage: BaseStorage, name: str, space: Mapping[str, Domain]) -> Book:
        """Create a study. `BadInput` if the storage has one of this name."""
        with _quietly():
            ledger = f"{name}-ledger"
            for taken in sorted({name, ledger} & {study.study_name for study in storage.get_all_studies()}):
                raise BadInput(f"the storage already has a study {taken!r}: name another folder with --study")
            try:
                study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
                return cls(study, optuna.create_study(study_name=ledger, storage=storage), space)
            except optuna.exceptions.DuplicatedStudyError:  # another driver was a moment earlier
                raise BadInput(f"the storage already has a study {name!r}: name another folder with --study") from None

    @classmethod
    def read(cls, storage: BaseStorage, name: str, space: Mapping[str, Domain]) -> Book:
        with _quietly():
            try:
                study = optuna.load_study(study_name=name, storage=storage)
                return cls(study, optuna.load_study(study_name=f"{name}-ledger", storage=storage), space)
            except KeyError:
                raise BadInput(f"the storage has no study {name!r}") from None

    @classmethod
    def known(cls, storage: BaseStorage, name: str, space: Mapping[str, Domain]) -> Book:
        """Open a study to continue it; the Optuna study is completed from the ledger."""
        book = cls.read(storage, name, space)
        book._catch_up()
        return book

    def warm_up(self, event: Warmed, trials: Sequence[Trial]) -> None:
        """Start from the results of an earlier study; its `trials` inform the sampler."""
        for trial in trials:
            complete = trial.state == "complete"
            self._study.add_trial(
                optuna.create_trial(
                    state=TrialState.COMPLETE if complete else TrialState.PRUNED,
                    value=trial.value if complete else None,
                    params=dict(trial.settings),
                    distributions=self._distributions,
                    intermediate_values={trial.unit - 1: trial.value},
                    user_attrs={_EARLIER: f"{event.source}: trial {trial.number}"},
                )
            )
        self.enter(event)

    @property
    def earlier(self) -> list[FrozenTrial]:
        """The trials that a warm start added."""
        return [trial for trial in self._study.get_trials(deepcopy=False) if _EARLIER in trial.user_attrs]

    def ask(self, sampler: BaseSampler) -> tuple[dict[str, Any], int]:
        """Sample a configuration: (settings, number in the Optuna study)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._study.sampler = sampler
            asked = self._study.ask(self._distributions)
        self._asked[asked.number] = asked
        return dict(asked.params), asked.number

    def enter(self, event: Event) -> None:
        """Append an event to the ledger, then update everything derived from it."""
        self._ledger.add_trial(optuna.create_trial(value=0.0, user_attrs={_EVENT: encode(event)}))
        self.course.add(event)
        if isinstance(event, Reported):
            trial = self.course.trials[event.trial]
            if trial.optuna is not None:
                self._mirror(trial, self._asked[trial.optuna], event)
            for other in event.stopped:
                self._tell(self.course.trials[other])
            self._tell(trial)
        elif isinstance(event, Closed) and event.why == "done":
            for trial in self.course.trials.values():
                self._tell(trial, over=True)

    def _mirror(self, trial: Trial, asked: optuna.Trial, event: Reported) -> None:
        asked.report(event.value, event.unit - 1)
        if event.settings is not None:
            asked.set_user_attr("settings", event.settings)

    def _tell(self, trial: Trial, *, over: bool = False) -> None:
        """Tell Optuna the result of a trial that has ended."""
        if trial.optuna not in self._asked or not (over or trial.state in ("stopped", "complete")):
            return
        assert trial.optuna is not None
        del self._asked[trial.optuna]
        if trial.state == "complete" and not math.isnan(trial.value):
            self._study.tell(trial.optuna, trial.value)
        elif math.isnan(trial.value):
            self._study.tell(trial.optuna, state=TrialState.FAIL)
        else:
            self._study.tell(trial.optuna, state=TrialState.PRUNED)

    def _catch_up(self) -> None:
        known = {trial.optuna: trial for trial in self.course.trials.values()}
        for frozen in self._study.get_trials(deepcopy=False):
            if frozen.state.is_finished():
                continue
            trial = known.get(frozen.number)
            if trial is None:  # the driver died before the trial began
                self._study.tell(frozen.number, state=TrialState.FAIL)
                continue
            asked = self._asked[frozen.number] = optuna.Trial(self._study, frozen._trial_id)
            for event in trial.reports:
                if event.unit - 1 not in frozen.intermediate_values:
                    self._mirror(trial, asked, event)
            self._tell(trial)


class _quietly:
    """Silence Optuna's message about every study that it creates."""

    def __enter__(self) -> None:
        self._before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(max(self._before, optuna.logging.WARNING))

    def __exit__(self, *error: object) -> None:
        optuna.logging.set_verbosity(self._before)
