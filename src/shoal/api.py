"""What a user of the Python package calls: `train`, `load`, and the `Run` that both return."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.acting.player import Policy
from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Fault, Report
from shoal.core.weights import params_hash
from shoal.experiment import Plan, merge, read_file, resolve
from shoal.launch.checks import NICE
from shoal.launch.compose import make_algorithm
from shoal.launch.evaluation import EvaluationFailed, Evaluator
from shoal.launch.saved import actor_of, check_same_spaces, state_of, under, write_policy
from shoal.launch.training import Callback, Outcome, Training
from shoal.observe.video import record
from shoal.process.lock import RunLock
from shoal.process.signals import StopRequest
from shoal.run.checkpoints import Checkpoints, Loaded
from shoal.run.folder import RunFolder, read_json, ways
from shoal.runtimes.mpi import join
from shoal.runtimes.threads import aside
from shoal.studies import statistics

SOON = 30.0  # seconds of training for which an evaluation process is kept ready: it holds a third of a gigabyte
CLIP_SECONDS = 20.0  # of drawing for a report: where a picture takes a tenth of a second, the clip is short

log = logging.getLogger("shoal")


@dataclass(frozen=True)
class Evaluation:
    """What episodes of a fixed policy came to."""

    mean: float
    sd: float
    iqm: float
    ci: tuple[float, float] | None  # of the mean, 95 %
    episodes: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    greedy: bool
    faults: int  # of the environment; the episodes that it broke were played again


class TrainedPolicy:
    """Actions for observations, both as the environment's own spaces have them."""

    def __init__(self, plan: Plan, actor: Any) -> None:
        self._algorithm, self._actor = make_algorithm(plan), actor
        self._env = plan.source.single()
        self._env.close()  # its converters are what is needed
        self.reset()

    def reset(self) -> None:
        """Forget: the next observation begins an episode. Only recurrent policies remember anything."""
        self._greedy = Policy(self._algorithm, self._actor, 1, sample=False, seed=0)
        self._first = np.ones(1, bool)

    def __call__(self, obs: Any) -> Any:
        """The greedy action for one observation."""
        flat = np.asarray(self._env.flat(obs))[None]
        action = self._greedy(flat, self._first)[0]
        self._first = np.zeros(1, bool)
        return self._env.own(action)


class Run:
    """A run folder and what can be done with it."""

    def __init__(self, folder: RunFolder, plan: Plan, summary: Mapping[str, Any]) -> None:
        self.folder, self.plan, self.summary = folder, plan, dict(summary)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        return self.folder.path

    def _loaded(self) -> Loaded:
        alerts = Checkpoints(self.folder.checkpoints, on_alert=log.warning)
        return alerts.load(self.folder.checkpoint or "last")

    @functools.cached_property
    def _actor(self) -> Any:
        loaded = self._loaded()
        check_same_spaces(self.plan, loaded.meta)
        return actor_of(make_algorithm(self.plan), under(loaded.arrays, "state/"))

    @functools.cached_property
    def policy(self) -> TrainedPolicy:
        """`action = run.policy(obs)`, greedy."""
        return TrainedPolicy(self.plan, self._actor)

    @property
    def params_hash(self) -> str:
        """SHA-256 of the weights: equal if and only if every bit is."""
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
        """Whole episodes in Gymnasium's own environment: greedy, or with sampled actions. Kept as `evaluation.json`."""
        if episodes < 1:
            raise BadInput(f"--episodes is {episodes}: at least 1")
        with _evaluator(self.plan, self.folder) as evaluator:
            return self._evaluate(evaluator, episodes, sample, seed, on_episode)

    def _evaluate(
        self, evaluator: Evaluator, episodes: int, sample: bool, seed: int | None, on_episode: Callable[[float], None]
    ) -> Evaluation:
        own = self.plan.settings.seed if seed is None else seed
        before = evaluator.faults
        played = evaluator.play(self._actor, episodes, sample=sample, seed=own, on_episode=on_episode)
        summary = statistics.summarise(played.returns)
        result = Evaluation(
            summary.mean,
            summary.sd,
            summary.iqm,
            summary.ci,
            episodes,
            tuple(played.returns),
            tuple(played.lengths),
            not sample,
            evaluator.faults - before,
        )
        path = self.folder.evaluation_path
        others = ways(read_json(path)) if path.exists() else {}
        self.folder.write_json(path, {**others, "sampled" if sample else "greedy": {**vars(result)}})
        return result

    def film(self, path: str | Path | None = None, *, seed: int | None = None, max_steps: int = 1000) -> bytes:
        """One greedy episode as an mp4, and into a file if `path` is given."""
        with _evaluator(self.plan, self.folder) as evaluator:
            return self._film(evaluator, path, seed, max_steps, math.inf)

    def _film(
        self, evaluator: Evaluator, path: str | Path | None, seed: int | None, max_steps: int, seconds: float
    ) -> bytes:
        own = self.plan.settings.seed if seed is None else seed
        clip = evaluator.film(self._actor, seed=own, max_steps=max_steps, seconds=seconds)
        if path is not None:
            Path(path).write_bytes(clip)
        return clip

    def report(self, film: bool = True) -> Path:
        """Write `report.html`, with a clip of the agent where the environment can be drawn."""
        with _evaluator(self.plan, self.folder) as evaluator:
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
    `resume` goes on with a run in its folder, `start_from` begins a new one with another's weights. Callbacks get each
    update's `Report`; one that returns True ends the training. `begun` gets the folder once a checkpoint is in it.
    """
    began = time.monotonic() if started_at is None else started_at
    layers: list[Mapping[str, Any]] = [config if isinstance(config, Mapping) else read_file(config) if config else {}]
    loaded: Loaded | None = None
    folder: RunFolder | None = None
    if resume is not None:
        if out is not None:
            raise BadInput("--out and --resume: a resumed run goes on in its own folder")
        folder = RunFolder.open(resume)
        layers.insert(0, folder.read_config())
    loose = merge(*layers, {k: v for k, v in settings.items() if v is not None})
    if loose.get("runtime", {}).get("name") == "mpi":
        join()  # only rank 0 comes back; the others serve its runs and end with it
    named = loose.pop("env", None)
    for key in ("machine", "spec"):
        loose.pop(key, None)
    if env is None and named is None:
        raise BadInput("no environment: give an id, an import path, or --resume RUN")
    plan = resolve(env if env is not None else named, loose)
    say = _whisper if quiet else _say
    weights = under(_weights_of(start_from).arrays, "state/") if start_from is not None else None
    new = folder is None
    if folder is None:
        folder = RunFolder.create(out, plan.source.name, plan.settings.algo, str(plan.settings.topology))
    try:
        with RunLock(folder.path, _say), StopRequest() as stop, _evaluator(plan, folder) as evaluator:
            aside(stop.listener())
            stop.on_abort(evaluator.kill)
            if not new:
                loaded = Checkpoints(folder.checkpoints, on_alert=_say).load(folder.checkpoint or "last")
                check_same_spaces(plan, loaded.meta)
            try:
                if plan.settings.eval_episodes or report:
                    evaluator.start(gently=plan.settings.until_eval is None)  # ready when training ends, perhaps soon
                    callbacks = (*callbacks, _released(evaluator, plan))
                training = Training(
                    plan,
                    folder,
                    loaded=loaded,
                    weights=weights,
                    callbacks=callbacks,
                    evaluator=evaluator,
                    quiet=quiet,
                    say=_say,
                    begun=begun,
                )
                folder.write_config(plan.as_dict())
                for note in plan.notes:
                    say(note)
                outcome = training.run(stop)
            except OSError as error:
                raise RunFailed(
                    f"cannot write the run folder {str(folder.path)!r}: {error.strerror or error}"
                ) from error
            run = Run(folder, plan, _summary(plan, folder, outcome, began, evaluator.faults))
            try:
                if outcome.state is not None:
                    write_policy(folder.policy_path, plan, outcome.state, training.blueprint.algorithm)
                folder.write_json(folder.summary_path, run.summary)
                if not outcome.stopped:
                    _look_back(run, evaluator, stop, report)
            except OSError as error:
                raise RunFailed(
                    f"trained, but cannot write the run folder {str(folder.path)!r}: {error.strerror or error}"
                ) from error
    except BadInput:
        if new and not folder.checkpoints.exists():
            folder.discard()
        raise
    return run


def _evaluator(plan: Plan, folder: RunFolder) -> Evaluator:
    """Plays and films this run's policies; what goes wrong there is logged in the run folder."""

    def on_fault(fault: Fault) -> None:
        folder.log(f"{fault.role} {fault.kind}\n{fault.detail}")

    nice = NICE if plan.settings.until_eval is not None else 0
    return Evaluator(plan, record=record, on_fault=on_fault, say=_say, nice=nice)


def _released(evaluator: Evaluator, plan: Plan) -> Callback:
    """Ends the evaluation process in the course of a longer training, which needs its memory more than the start it saves."""

    def callback(report: Report) -> None:
        if report.ended_at - report.began_at > SOON and plan.settings.until_eval is None:
            evaluator.close()

    return callback


def _look_back(run: Run, evaluator: Evaluator, stop: StopRequest, report: bool) -> None:
    """Evaluation and report. What they lack is said; a request to stop leaves out what is not done yet."""
    episodes = run.plan.settings.eval_episodes
    if not episodes and not report:
        return
    with contextlib.suppress(KeyboardInterrupt), stop.interruptible():
        evaluator.start()
        if report:
            importlib.import_module("shoal.observe.report")  # while the process starts
        if episodes:
            try:
                for sample, way in ((False, "eval"), (True, "eval_sampled")):
                    found = run._evaluate(evaluator, episodes, sample, None, lambda ret: _heed(stop))
                    run.summary |= {f"{way}_mean": found.mean, f"{way}_sd": found.sd, "eval_episodes": episodes}
                    run.summary |= {} if sample else {"eval_iqm": found.iqm}
            except EvaluationFailed as error:
                _say(f"shoal: trained, but not evaluated{' with sampled actions' * sample}: {error}")
            run.summary["eval_faults"] = evaluator.faults  # the checks' on the way included
            run.folder.write_json(run.folder.summary_path, run.summary)
        if report:
            run._report(evaluator)


def _heed(stop: StopRequest) -> None:
    """An interrupt that came inside of a callback from native code was lost there: the request itself still stands."""
    if stop.requested:
        raise KeyboardInterrupt


def load(path: str | Path, env: Any = None) -> Run:
    """A run from its folder (or from one of its checkpoint files).

    `env` is asked for where the run's environment has no name to find it by: a lambda, a class of another script.
    """
    folder = RunFolder.open(path)
    stored = folder.read_config()
    named = stored.pop("env", None)
    plan = resolve(named if env is None else env, {k: v for k, v in stored.items() if k not in ("machine", "spec")})
    summary = read_json(folder.summary_path) if folder.summary_path.exists() else {}
    return Run(folder, plan, summary)


def _weights_of(path: str | Path) -> Loaded:
    folder = RunFolder.open(path)
    return Checkpoints(folder.checkpoints, on_alert=_say).load(folder.checkpoint or "last")


def _summary(plan: Plan, folder: RunFolder, outcome: Outcome, began: float, faults: int) -> dict[str, Any]:
    settings = plan.settings
    # The step after an episode's end only resets: nothing is learnt from it.
    learnt = outcome.env_steps - (0 if plan.source.fresh else outcome.episodes)
    return {
        "env": plan.source.name,
        "algo": settings.algo,
        "topology": settings.topology,
        "runtime": settings.runtime,
        "actors": settings.actors,
        "envs": settings.envs,
        "learners": settings.learners,
        "seed": settings.seed,
        "env_steps": outcome.env_steps,
        "updates": outcome.version,
        "episodes": outcome.episodes,
        "setup_s": None if outcome.began_at is None else outcome.began_at - began,
        "wall_s": outcome.wall_s,
        "learnt_steps": learnt,
        "steps_per_s": learnt / outcome.wall_s if outcome.wall_s else None,
        "return_mean": outcome.return_mean,
        "solved_at_s": outcome.solved_at_s,
        "lag_mean": outcome.lag_sum / outcome.reports if outcome.reports else None,
        "lag_max": outcome.lag_max if outcome.reports else None,
        "lags": {str(lag): count for lag, count in sorted(outcome.histogram.items())},
        "eval_mean": None,
        "eval_sd": None,
        "eval_iqm": None,
        "eval_sampled_mean": None,
        "eval_sampled_sd": None,
        "eval_episodes": None,
        "eval_faults": faults,
        "eval_checks": [check._asdict() for check in outcome.checks],
        "faults": outcome.faults,
        "bad_updates": outcome.bad_updates,
        "stopped": outcome.stopped,
        "params_sha256": None if outcome.state is None else params_hash(outcome.state.params),
        "run": str(folder.path),
    }


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _whisper(message: str) -> None:
    return None
