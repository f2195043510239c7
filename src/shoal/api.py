"""The Python interface: `train`, `load` and the `Run` that both return; `tune`, which searches for settings.

`Reply` and `RunHandle` drive runs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import launch
from shoal.acting.player import Policy
from shoal.core.errors import BadInput
from shoal.core.program import Driver
from shoal.core.program import Reply as Reply
from shoal.core.weights import params_hash
from shoal.experiment import Plan, join, merge, read_file, resolve
from shoal.launch.compose import make_algorithm
from shoal.launch.entry import evaluator_of, say
from shoal.launch.evaluation import EvaluationFailed, Evaluator, Way
from shoal.launch.saved import actor_of, check_same_spaces, state_of, under
from shoal.launch.training import Callback
from shoal.observe.video import record
from shoal.process.signals import StopRequest
from shoal.run.checkpoints import Checkpoints, Loaded
from shoal.run.folder import RunFolder, read_json, ways
from shoal.runtimes.threads import aside
from shoal.studies import statistics
from shoal.studies.handle import RunHandle as RunHandle
from shoal.studies.words import flattened

if TYPE_CHECKING:
    from shoal.tuning.study import Study

CLIP_SECONDS = 20.0  # of drawing for a report: if a frame takes a tenth of a second, the clip is short

log = logging.getLogger("shoal")


@dataclass(frozen=True)
class Evaluation:
    """Results of episodes with a fixed policy."""

    mean: float
    sd: float
    iqm: float
    ci: tuple[float, float] | None  # of the mean, 95 %
    episodes: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    greedy: bool
    faults: int  # of the environment; broken episodes were played again
    env_steps: int  # that the policy had been trained for


class TrainedPolicy:
    """A policy in the environment's own spaces: maps an observation to an action."""

    def __init__(self, plan: Plan, actor: Any) -> None:
        self._algorithm, self._actor = make_algorithm(plan), actor
        self._env = plan.source.single()
        self._env.close()  # only its converters are needed
        self.reset()

    def reset(self) -> None:
        """Begin a new episode with the next observation. Only recurrent policies have a state to reset."""
        self._greedy = Policy(self._algorithm, self._actor, 1, sample=False, seed=0)

    def __call__(self, obs: Any) -> Any:
        """The greedy action for one observation."""
        return self._env.own(self._greedy.alone(self._env.flat(obs)))


class Run:
    """A run folder: evaluate it, film it, report on it, or use its policy."""

    def __init__(self, folder: RunFolder, plan: Plan, summary: Mapping[str, Any], interrupted: bool = False) -> None:
        self.folder, self.plan, self.summary = folder, plan, dict(summary)
        self.interrupted = interrupted  # a stop was requested, perhaps after the last training step

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        return self.folder.path

    def _loaded(self) -> Loaded:
        return Checkpoints(self.folder.checkpoints, on_alert=log.warning).load(self.folder.checkpoint or "last")

    @functools.cached_property
    def _trained(self) -> tuple[Any, int]:
        """The acting part of the weights, and the environment steps that it was trained for."""
        loaded = self._loaded()
        check_same_spaces(self.plan, loaded.meta)
        return actor_of(make_algorithm(self.plan), under(loaded.arrays, "state/")), loaded.step

    @functools.cached_property
    def policy(self) -> TrainedPolicy:
        """`action = run.policy(obs)`, greedy."""
        return TrainedPolicy(self.plan, self._trained[0])

    @property
    def params_hash(self) -> str:
        """SHA-256 of the weights."""
        state = state_of(make_algorithm(self.plan), under(self._loaded().arrays, "state/"))
        return params_hash(state.params)

    def evaluate(
        self,
        episodes: int = 100,
        *,
        sample: bool = False,
        seed: int | None = None,
        on_episode: Callable[[float], None] = lambda ret: None,
    ) -> Evaluation:
        """Play whole episodes in Gymnasium's own environment, greedy or with sampled actions.

        Writes `evaluation.json`, unless the run was loaded from one of its checkpoint files: the file is about its last weights.
        """
        if episodes < 1:
            raise BadInput(f"--episodes is {episodes}: at least 1")
        with evaluator_of(self.plan, self.folder, record) as evaluator:
            return self._evaluate(evaluator, episodes, sample, seed, on_episode)

    def _evaluate(
        self, evaluator: Evaluator, episodes: int, sample: bool, seed: int | None, on_episode: Callable[[float], None]
    ) -> Evaluation:
        own = self.plan.settings.seed if seed is None else seed
        before = evaluator.faults
        played = evaluator.play(self._trained[0], episodes, sample=sample, seed=own, on_episode=on_episode)
        return self._evaluated(Way(sample, played, evaluator.faults - before))

    def _evaluated(self, way: Way) -> Evaluation:
        played, summary = way.played, statistics.summarise(way.played.returns)
        result = Evaluation(
            summary.mean,
            summary.sd,
            summary.iqm,
            summary.ci,
            len(played.returns),
            tuple(played.returns),
            tuple(played.lengths),
            not way.sample,
            way.faults,
            self._trained[1],
        )
        if self.folder.checkpoint is None:
            self._keep(result)
        return result

    def _keep(self, result: Evaluation) -> None:
        path = self.folder.evaluation_path
        others = ways(read_json(path)) if path.exists() else {}
        try:
            self.folder.write_json(path, {**others, "greedy" if result.greedy else "sampled": {**vars(result)}})
        except OSError as error:  # the result is still returned
            say(f"shoal: cannot write {path}: {error.strerror or error}")

    def film(self, path: str | Path | None = None, *, seed: int | None = None, max_steps: int = 1000) -> bytes:
        """One greedy episode as an mp4, also written to a file if `path` is given."""
        with evaluator_of(self.plan, self.folder, record) as evaluator:
            return self._film(evaluator, path, seed, max_steps, math.inf)

    def _film(
        self, evaluator: Evaluator, path: str | Path | None, seed: int | None, max_steps: int, seconds: float
    ) -> bytes:
        own = self.plan.settings.seed if seed is None else seed
        clip = evaluator.film(self._trained[0], seed=own, max_steps=max_steps, seconds=seconds)
        if path is not None:
            Path(path).write_bytes(clip)
        return clip

    def report(self, film: bool = True) -> Path:
        """Write `report.html`, with a clip of the agent if the environment can be drawn."""
        with evaluator_of(self.plan, self.folder, record) as evaluator:
            return self._report(evaluator if film else None)

    def _report(self, evaluator: Evaluator | None) -> Path:
        clip, missing = None, ""
        if evaluator is not None:
            evaluator.start()
        from shoal.observe.report import write_report  # brings matplotlib, which training does not need

        if evaluator is not None:
            try:
                clip = self._film(evaluator, self.folder.video_path, None, 1000, CLIP_SECONDS)
            except (BadInput, EvaluationFailed) as error:
                missing = str(error)
                log.log(logging.INFO if isinstance(error, BadInput) else logging.WARNING, "no clip: %s", error)
        evaluation = read_json(self.folder.evaluation_path) if self.folder.evaluation_path.exists() else None
        return write_report(self.folder, evaluation, clip, missing)


def train(
    env: Any = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    start_from: str | Path | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    driver: Driver | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    report: bool = True,
    started_at: float | None = None,
    begun: Callable[[Path], None] | None = None,
    **settings: Any,
) -> Run:
    """Train, evaluate, and leave a run folder.

    `env` is an id, an import path, an Env class or a callable that makes one. `settings` are those of `shoal train --help`:
    `steps=`, `until_return=`, `seed=`, ..., and on the axes a name or a dict, `algo="ppo"`, `algo={"name": "ppo", "clip": 0.3}`.
    `resume` continues a run in its folder, `start_from` begins a new one with another run's weights. Callbacks get each
    update's `Report`; one that returns True ends the training. `driver` gets it too and may answer with a `Reply`: weights to
    continue with, or a stop. `begun` gets the folder once it holds a checkpoint.
    """
    began = time.monotonic() if started_at is None else started_at
    layers: list[Mapping[str, Any]] = [config if isinstance(config, Mapping) else read_file(config) if config else {}]
    folder: RunFolder | None = None
    if resume is not None:
        if out is not None:
            raise BadInput("--out and --resume: a resumed run continues in its own folder")
        folder = RunFolder.open(resume)
        layers.insert(0, folder.read_config())
    loose = merge(*layers, {k: v for k, v in settings.items() if v is not None})
    join(loose)
    named = loose.pop("env", None)
    for key in ("machine", "spec"):
        loose.pop(key, None)
    if env is None and named is None:
        raise BadInput("no environment: give an id, an import path, or --resume RUN")
    plan = resolve(env if env is not None else named, loose, trained=start_from is not None)
    result = launch.run(
        plan,
        out=out,
        resume=folder,
        weights=_beginning(start_from) if start_from is not None else None,
        driver=driver,
        callbacks=callbacks,
        after=functools.partial(_look_back, report) if plan.settings.eval_episodes or report else None,
        record=record,
        quiet=quiet,
        started_at=began,
        begun=begun,
    )
    return Run(result.folder, plan, result.summary, result.interrupted)


def _look_back(report: bool, result: launch.Result, evaluator: Evaluator, stop: StopRequest) -> None:
    """Evaluate and write the report. Failures are reported; a request to stop skips the rest."""
    run, summary = Run(result.folder, result.plan, result.summary), result.summary
    settings, sampled = result.plan.settings, False
    with contextlib.suppress(KeyboardInterrupt), stop.interruptible():
        evaluator.start()
        if report:
            aside(_import_report)  # while the episodes are played
        if settings.eval_episodes:
            both = evaluator.play_both(
                run._trained[0], settings.eval_episodes, seed=settings.seed, on_episode=lambda ret: _heed(stop)
            )
            try:
                with contextlib.closing(both):
                    for way in both:
                        found, name = run._evaluated(way), "eval_sampled" if way.sample else "eval"
                        summary |= {f"{name}_mean": found.mean, f"{name}_sd": found.sd, "eval_episodes": found.episodes}
                        summary |= {} if way.sample else {"eval_iqm": found.iqm}
                        sampled = True  # the next ones
            except EvaluationFailed as error:
                say(f"shoal: trained, but not evaluated{' with sampled actions' * sampled}: {error}")
            finally:  # also after an interrupt between the two
                summary["eval_faults"] = evaluator.faults  # including those of checks during training
                run.folder.write_json(run.folder.summary_path, summary)
        if report:
            run._report(evaluator)


def _import_report() -> None:
    """Import the report with its plots, which takes a second; an error shows again when the report is written."""
    with contextlib.suppress(Exception):
        importlib.import_module("shoal.observe.report")


def _heed(stop: StopRequest) -> None:
    """Raise KeyboardInterrupt if a stop was requested: an interrupt inside a callback from native code is lost."""
    if stop.requested:
        raise KeyboardInterrupt


def load(path: str | Path, env: Any = None) -> Run:
    """Load a run from its folder (or from one of its checkpoint files).

    `env` is needed if the run's environment has no importable name: a lambda, or a class of another script.
    """
    folder = RunFolder.open(path)
    stored = folder.read_config()
    named = stored.pop("env", None)
    plan = resolve(named if env is None else env, {k: v for k, v in stored.items() if k not in ("machine", "spec")})
    summary = read_json(folder.summary_path) if folder.summary_path.exists() else {}
    return Run(folder, plan, summary)


def _beginning(path: str | Path) -> dict[str, Any]:
    """The leaves of a run's state that another run begins with: all but the optimiser's moments."""
    folder = RunFolder.open(path)
    loaded = Checkpoints(folder.checkpoints, on_alert=say).load(folder.checkpoint or "last")
    return {name: leaf for name, leaf in under(loaded.arrays, "state/").items() if not name.startswith("moments/")}


def tune(
    env: str,
    *,
    space: Mapping[str, Any] | Sequence[str],
    study: str | Path | None = None,
    quiet: bool = True,
    **options: Any,
) -> Study:
    """Search for settings of `env`, and leave a study folder with a report.

    `space` is {name: values}: words as in `--space`, a list, or a domain of `shoal.tuning.spaces`. `options` are those of
    `shoal tune --help` (`scheduler=`, `trials=`, `phases=`, `phase=`, `confirm=`, `workers=`, ...); all others are settings of
    every trial, as `shoal.train` takes them. `study` is the folder: the same call continues a study that was stopped.
    """
    from shoal.tuning.study import OWN, space_words

    settings = {name: value for name, value in options.items() if name not in OWN and value is not None}
    own = {name: value for name, value in options.items() if name in OWN}
    values = {"env": env, "space": space_words(space), "settings": flattened(settings), **own}

    def tell(event: Any, found: Study) -> None:
        if not quiet:
            say(str(event))

    return run_tuning(values, study, tell=tell)


def run_tuning(values: Mapping[str, Any], folder: str | Path | None, **callbacks: Any) -> Study:
    """`shoal tune ENV ...`: a study of these values, with its report."""
    from shoal.tuning.study import run_study

    found = run_study(values, folder=folder, **callbacks)
    report_tuning(found)
    return found


def resume_tuning(folder: str | Path, **callbacks: Any) -> Study:
    """`shoal tune --resume FOLDER`, with its report."""
    from shoal.tuning.study import resume_study

    found = resume_study(folder, **callbacks)
    report_tuning(found)
    return found


def report_tuning(study: Study) -> Path:
    """Write `report.html` of a study, finished or not."""
    from shoal.observe.study_report import write_study_report
    from shoal.tuning.document import document_of

    return write_study_report(study.path, document_of(study))
