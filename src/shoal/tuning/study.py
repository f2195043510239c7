"""A study in its folder: create, run, stop, continue and read it.

study.json       its settings, with versions and hardware
study.journal    ledger and Optuna study (unless --storage names a database)
trials/003/seed-0/             the run of trial 3 with seed 0
trials/003/phase-2-from-007/   its runs since it copied trial 7 (pbt)
confirm/003/seed-1000/         trial 3 again on a fresh seed
confirm/default/seed-1000/     the environment's default settings on the same seed
summary.json, report.html
"""

from __future__ import annotations

import importlib
import math
import os
import shlex
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core import config as configs
from shoal.core.errors import BadInput, RunFailed
from shoal.process.lock import RunLock
from shoal.process.signals import StopRequest
from shoal.run.files import pretty, write_atomically
from shoal.run.folder import RunFolder, describe_machine, read_json
from shoal.studies.words import flags_of
from shoal.tuning.baseline import Raced, ahead_of_baseline, baseline, raced, verdict
from shoal.tuning.book import Book, StorageLost, opened_storage, storage_failures, without_password
from shoal.tuning.config import Plan, StudyConfig, make_config, prepare
from shoal.tuning.events import Closed, Course, Event, Opened, Trial
from shoal.tuning.population import Population
from shoal.tuning.race import Confirmed, confirmed
from shoal.tuning.replay import Replay, replay
from shoal.tuning.runner import Runner
from shoal.tuning.spaces import Choice, Domain, Real, Whole, written
from shoal.tuning.timeline import Piece, alpha_of, pieces_of, seconds_of, to_best_of
from shoal.tuning.trainings import Runs, Trainings
from shoal.tuning.warm import fresh_plan, warm_of

NOTE = b"stopping: checkpointing the running trials (again to exit now)\n"
OWN = tuple(f.name for f in fields(StudyConfig) if f.name not in ("env", "space", "settings"))


class Optimism(NamedTuple):
    """Bias of the best tuning score: tuning score minus test score."""

    mean: float
    ci: tuple[float, float] | None  # 95 %


class Study:
    """State and results of a study, read from its ledger."""

    def __init__(self, path: Path, plan: Plan, course: Course) -> None:
        self.path, self.plan, self.course = path, plan, course

    def __repr__(self) -> str:
        return f"Study({str(self.path)!r}, {len(self.trials)} of {self.plan.config.trials} trials)"

    @classmethod
    def open(cls, path: str | Path) -> Study:
        """Open the study in this folder, running or not. `BadInput` if there is none."""
        folder, plan, name = _known(path)
        with opened_storage(folder, plan.config.storage) as storage:
            return cls(folder, plan, Book.read(storage, name, plan.space).course)

    @property
    def done(self) -> bool:
        return self.course.done

    @property
    def trials(self) -> list[Trial]:
        """All trials by number, with `settings`, `value`, `spread`, `unit` (phases done), `state`, `reports`, `copies`."""
        return [self.course.trials[number] for number in sorted(self.course.trials)]

    @property
    def best(self) -> Trial:
        """The confirmed winner, or the best trial of the search if there was no confirmation."""
        proven = self.confirmed
        if proven:
            return self.course.trials[proven[0].trial]
        ranked = self.course.ranked()
        if not ranked:
            raise RunFailed("no trial of the study has a score")
        return ranked[0]

    @property
    def confirmed(self) -> list[Confirmed]:
        """Results of the best trials on fresh seeds, best first."""
        return confirmed(self.plan, self.course)

    @property
    def optimism(self) -> Optimism | None:
        """Tuning score minus test score of the search's best trial; None without confirmation."""
        ranked = self.course.ranked()
        for one in self.confirmed:
            if one.trial == ranked[0].number:
                return Optimism(one.optimism, one.optimism_ci)
        return None

    @property
    def baseline(self) -> Raced | None:
        """Results of the environment's default settings on the fresh seeds; None without confirmation."""
        return baseline(self.plan, self.course)

    @property
    def ahead_of_baseline(self) -> bool | None:
        """Whether the winner solves the task at least as soon as the default settings, on the fresh seeds."""
        return ahead_of_baseline(self.plan, self.course)

    @property
    def verdict(self) -> str:
        """The winner beside the default settings, in a sentence; empty without confirmation."""
        return verdict(self.plan, self.course)

    @property
    def alpha(self) -> float:
        """Completion rate: trained phases as a share of the phases of all trials trained to the end."""
        return alpha_of(self.plan, self.course)

    @property
    def pieces(self) -> list[Piece]:
        """Stretches of training: which worker trained which trial when."""
        return pieces_of(self.course)

    def solved(self, number: int) -> dict[str, Any]:
        """On how many fresh seeds this trial reached the goal, with the median steps and seconds to it."""
        found = raced(self.plan, self.course, number)
        plain = {} if found is None else found.plain()
        return {name: plain.get(name) for name in ("solved", "steps", "seconds")}

    def replay(self) -> Replay:
        """Repeat every decision from the ledger."""
        return replay(self.plan, self.course)

    def command(self, trial: Trial) -> str:
        """The command line that trains this configuration with the usual evaluation and report."""
        config = self.plan.config
        settings = {**self.plan.settings(trial.settings, config.seed)}
        for name in ("metrics_every", "sinks"):
            if name not in config.settings:
                del settings[name]
        del settings["eval_episodes"]
        return shlex.join(["shoal", "train", config.env, *flags_of(settings)])

    def frame(self) -> Any:
        """A pandas DataFrame with a row per trial. `BadInput` if pandas is not installed."""
        try:
            pandas: Any = importlib.import_module("pandas")
        except ImportError:
            raise BadInput("Study.frame needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """A row per trial: number, state, phases, value, spread, settings, and score on fresh seeds."""
        tested = {one.trial: one.mean for one in self.confirmed}
        return [
            {
                "trial": trial.number,
                "state": trial.state,
                "phases": trial.unit,
                "value": trial.value,
                "spread": trial.spread,
                **trial.settings,
                "test": tested.get(trial.number),
            }
            for trial in self.trials
        ]

    def summary(self) -> dict[str, Any]:
        """Content of `summary.json` and of the JSON line. NaN becomes null."""
        ranked = self.course.ranked()
        best = self.best if ranked else None
        optimism = self.optimism
        return {
            "study": str(self.path),
            "done": self.done,
            "trials": [{k: _plain(v) for k, v in row.items()} for row in self.rows()],
            "best": None
            if best is None
            else {
                "trial": best.number,
                "value": best.value,
                "spread": best.spread,
                "phases": best.unit,
                "settings": best.settings,
                "command": self.command(best),
            },
            "confirmed": [
                {**one._asdict(), "optimism": one.optimism, "optimism_ci": one.optimism_ci, **self.solved(one.trial)}
                for one in self.confirmed
            ],
            "optimism": None if optimism is None else optimism._asdict(),
            "goal": self.plan.goal,
            "baseline": None if self.baseline is None else self.baseline.plain(),
            "ahead_of_baseline": self.ahead_of_baseline,
            "verdict": self.verdict,
            "alpha": self.alpha,
            "wall_s": seconds_of(self.course),
            "to_best_s": to_best_of(self.course),
            "switches": sum(piece.resumed for piece in self.pieces),
        }


def space_words(space: Mapping[str, Any] | Sequence[str]) -> dict[str, str]:
    """{name: values as text} of `--space` entries, or of a mapping whose values are text, lists or domains."""
    if isinstance(space, str):
        raise BadInput(f"space is {space!r}: expected a mapping or a list of NAME=VALUES")
    if not isinstance(space, Mapping):
        pairs = [entry.partition("=") for entry in space]
        for (name, equals, _), entry in zip(pairs, space, strict=True):
            if not equals or not name.strip():
                raise BadInput(f"--space {entry!r}: expected NAME=VALUES, such as learning_rate=log(1e-5,1e-2)")
        names = [name.strip().replace("-", "_") for name, _, _ in pairs]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise BadInput(f"--space {space[at]!r}: {name!r} is given twice")
        return dict(zip(names, (text for _, _, text in pairs), strict=True))
    return {name.replace("-", "_"): _words(domain) for name, domain in space.items()}


def _words(domain: Domain | str | Sequence[Any]) -> str:
    if isinstance(domain, str):
        return domain
    if isinstance(domain, Real | Whole | Choice):
        return written(domain)
    words = [",".join(map(str, v)) if isinstance(v, list | tuple) else v for v in domain]
    text = written(Choice(tuple(words)))
    return text + ";" if ";" not in text and any(isinstance(v, list | tuple) for v in domain) else text


def run_study(
    values: Mapping[str, Any],
    *,
    folder: str | Path | None = None,
    trainings: Trainings | None = None,
    tell: Callable[[Event, Study], None] = lambda event, study: None,
    begun: Callable[[Study], None] = lambda study: None,
) -> Study:
    """Create and run a study with these values (`StudyConfig`), or continue the one in `folder` if it is the same.

    After `BadInput` nothing new is left behind.
    """
    plan = prepare(make_config(values))
    config = plan.config
    if folder is not None and (Path(folder) / "study.json").exists():
        found, known, name = _known(folder)
        if config.warm_start and config.test_seed is None:  # chosen when the study began
            plan = prepare(replace(config, test_seed=known.config.test_seed))
        _check_same(found, known.config, plan.config)
        return _go_on(found, plan, name, trainings, tell, begun)
    warm = None
    if config.warm_start:
        earlier = Study.open(config.warm_start)
        warm = warm_of(plan, earlier.plan, earlier.course)
        plan = fresh_plan(plan, warm[0].seeds)
    if config.storage is not None:
        with opened_storage(Path(), config.storage):
            pass  # check that it can be reached before a folder is created
    made = RunFolder.create(folder, config.env, "tune", config.scheduler.replace(":", "."))
    name = "study" if config.storage is None else made.path.name
    try:
        with storage_failures(), opened_storage(made.path, config.storage) as storage:
            book = Book.new(storage, name, plan.space)
            if warm is not None:
                book.warm_up(*warm)
        document = {"name": name, "config": configs.as_dict(plan.config), "machine": describe_machine()}
        write_atomically(made.path / "study.json", pretty(document))
    except (BadInput, StorageLost):
        made.discard()
        raise
    return _go_on(made.path, plan, name, trainings, tell, begun)


def resume_study(
    path: str | Path,
    *,
    trainings: Trainings | None = None,
    tell: Callable[[Event, Study], None] = lambda event, study: None,
    begun: Callable[[Study], None] = lambda study: None,
) -> Study:
    """Continue a study that was stopped, or whose driver died."""
    folder, plan, name = _known(path)
    return _go_on(folder, plan, name, trainings, tell, begun)


def _go_on(
    folder: Path,
    plan: Plan,
    name: str,
    trainings: Trainings | None,
    tell: Callable[[Event, Study], None],
    begun: Callable[[Study], None],
) -> Study:
    config = plan.config
    with RunLock(folder), StopRequest(NOTE) as stop, opened_storage(folder, config.storage) as storage:
        with storage_failures():
            book = Book.known(storage, name, plan.space)
        study = Study(folder, plan, book.course)
        if study.done:
            return study
        begun(study)
        runner = Runner(plan, book, folder, trainings or _trainings(plan), lambda event: tell(event, study))
        stop.on_abort(runner.kill)
        try:
            with storage_failures():
                book.enter(Opened(time.time(), os.getpid(), socket.gethostname()))
                done = runner.run(lambda: stop.requested)
                book.enter(Closed(time.time(), "done" if done else "stopped"))
        except StorageLost as error:
            runner.leave()
            again = shlex.join(["shoal", "tune", "--resume", str(folder)])
            raise RunFailed(
                f"the storage failed: {error}; the trials are checkpointed, continue with: {again}"
            ) from None
        except BaseException:
            runner.kill()
            raise
        write_atomically(folder / "summary.json", pretty(study.summary()))
    return study


def _trainings(plan: Plan) -> Trainings:
    config = plan.config
    return Population(config.env, plan.phase) if config.population else Runs(config.env, config.launchers)


def _known(path: str | Path) -> tuple[Path, Plan, str]:
    folder = Path(path)
    if not (folder / "study.json").is_file():
        raise BadInput(f"{str(path)!r} is not a study: it has no study.json")
    stored = read_json(folder / "study.json")
    try:
        plan = prepare(make_config(stored["config"]))
    except KeyError:
        raise BadInput(f"{str(folder / 'study.json')!r} has no config") from None
    return folder, plan, str(stored.get("name", "study"))


def _check_same(folder: Path, known: StudyConfig, config: StudyConfig) -> None:
    before, now = configs.as_dict(known), configs.as_dict(config)
    for name in before:
        if before[name] != now[name] and name not in ("workers", "launchers"):
            raise BadInput(
                f"{str(folder)!r} holds a study with another {name}: {_shown(before[name])} there, {_shown(now[name])} here;"
                " name another folder, or continue with --resume"
            )


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "none"
    return repr(without_password(value) if isinstance(value, str) else value)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
