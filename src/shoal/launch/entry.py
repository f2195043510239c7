"""One run, from a plan to the files in its folder: the entry point of everything that trains."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState
from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Driver, Ended, Fault, Report
from shoal.core.weights import params_hash
from shoal.experiment import Plan
from shoal.launch.checks import NICE
from shoal.launch.evaluation import Evaluator
from shoal.launch.outcome import Outcome
from shoal.launch.saved import check_same_spaces, write_policy
from shoal.launch.stage import Record
from shoal.launch.training import Callback, Training
from shoal.process.lock import RunLock
from shoal.process.signals import StopRequest
from shoal.run.checkpoints import Checkpoints
from shoal.run.folder import RunFolder
from shoal.runtimes.threads import aside

SOON = 30.0  # seconds of training for which an evaluation process is kept ready: it holds a third of a gigabyte


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    plan: Plan
    folder: RunFolder
    algorithm: Algorithm
    outcome: Outcome
    summary: dict[str, Any]  # the contents of `summary.json`
    interrupted: bool = False  # a stop was requested, perhaps after the last training step

    @property
    def ended(self) -> Ended:
        """Why the run ended: budget, solved, stopped, paused or pruned."""
        return self.outcome.ended

    @property
    def state(self) -> LearnerState | None:
        """The learner's last state, as in the last checkpoint."""
        state: LearnerState | None = self.outcome.state
        return state


After = Callable[[Result, Evaluator, StopRequest], None]


def run(
    plan: Plan,
    *,
    out: RunFolder | str | Path | None = None,
    resume: RunFolder | str | Path | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    ahead: float = 0.0,
    driver: Driver | None = None,
    callbacks: Sequence[Callback] = (),
    after: After | None = None,
    record: Record | None = None,
    quiet: bool = False,
    started_at: float | None = None,
    begun: Callable[[Path], None] | None = None,
) -> Result:
    """Train as planned, in a folder of its own: config, metrics, checkpoints, policy, summary.

    `out` is a new folder, by default under `runs/`; `resume` is one to continue, from its last checkpoint or the one it was
    opened at. `weights` are leaves of another run's state to begin with, `ahead` the share of the schedules that was spent
    before. `driver` answers every report: it may hand in
    weights, stop or pause the run. Callbacks see every report; one that returns True ends the training. `after` is called
    when training has ended without a request to stop, while the folder is still locked, with an evaluator that films clips by
    `record`. `begun` gets the folder once it holds a checkpoint.

    Raises:
        BadInput: the request cannot be met; a new folder is removed again.
        RunFailed: training failed; its progress is in the last checkpoint.
    """
    began = time.monotonic() if started_at is None else started_at
    if out is not None and resume is not None:
        raise BadInput("--out and --resume: a resumed run continues in its own folder")
    folder = _new_folder(plan, out) if resume is None else _known_folder(resume)
    with StopRequest() as stop, RunLock(folder.path, say, takes_signals=stop.active) as lock:
        stop.on_abort(lock.release)
        with _discarded_if_refused(folder, resume is None), evaluator_of(plan, folder, record) as evaluator:
            aside(stop.listener())
            stop.on_abort(evaluator.kill)
            loaded = None
            if resume is not None:
                loaded = Checkpoints(folder.checkpoints, on_alert=say).load(folder.checkpoint or "last")
                check_same_spaces(plan, loaded.meta)
            with _writing(folder, "cannot write"):
                if after is not None:
                    evaluator.start(gently=plan.settings.until_eval is None)  # ready when training ends, perhaps soon
                    callbacks = (*callbacks, _released(evaluator, plan))
                training = Training(
                    plan,
                    folder,
                    loaded=loaded,
                    weights=weights,
                    ahead=ahead,
                    driver=driver,
                    callbacks=callbacks,
                    evaluator=evaluator,
                    quiet=quiet,
                    say=say,
                    begun=begun,
                )
                folder.write_config(plan.as_dict())
                for path in (folder.summary_path, folder.evaluation_path):  # from before the resume
                    path.unlink(missing_ok=True)
                for note in () if quiet else plan.notes:
                    say(note)

                def result_of(outcome: Outcome) -> Result:
                    """The result, written to the folder."""
                    algorithm = training.blueprint.algorithm
                    summary = summary_of(plan, folder, outcome, began, evaluator.faults)
                    if outcome.state is not None:
                        write_policy(folder.policy_path, plan, outcome.state, algorithm)
                    folder.write_json(folder.summary_path, summary)
                    return Result(plan, folder, algorithm, outcome, summary)

                outcome = training.run(stop, last_resort=result_of)
            with _writing(folder, "trained, but cannot write"):
                result = result_of(outcome)
                if after is not None and not outcome.stopped:
                    after(result, evaluator, stop)
    return replace(result, interrupted=stop.requested)


@contextlib.contextmanager
def _discarded_if_refused(folder: RunFolder, new: bool) -> Iterator[None]:
    """Remove a new folder that a refused run leaves. Only for the holder of its lock: others may train there."""
    try:
        yield
    except BadInput:
        if new and not folder.checkpoints.exists():
            folder.discard()
        raise


def evaluator_of(plan: Plan, folder: RunFolder, record: Record | None) -> Evaluator:
    """The evaluator of this run's policies; it logs its faults in the run folder."""

    def on_fault(fault: Fault) -> None:
        folder.log(f"{fault.role} {fault.kind}\n{fault.detail}")

    nice = NICE if plan.settings.until_eval is not None else 0
    return Evaluator(plan, record=record, on_fault=on_fault, say=say, nice=nice)


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _new_folder(plan: Plan, out: RunFolder | str | Path | None) -> RunFolder:
    if isinstance(out, RunFolder):
        return out
    return RunFolder.create(out, plan.source.name, plan.settings.algo, str(plan.settings.topology))


def _known_folder(resume: RunFolder | str | Path) -> RunFolder:
    return resume if isinstance(resume, RunFolder) else RunFolder.open(resume)


@contextlib.contextmanager
def _writing(folder: RunFolder, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFailed(f"{what} the run folder {str(folder.path)!r}: {error.strerror or error}") from error


def _released(evaluator: Evaluator, plan: Plan) -> Callback:
    """A callback that ends the evaluation process once a training takes longer: memory is worth more than a quick start."""

    def callback(report: Report) -> None:
        if report.ended_at - report.began_at > SOON and plan.settings.until_eval is None:
            evaluator.close()

    return callback


def summary_of(plan: Plan, folder: RunFolder, outcome: Outcome, began: float, faults: int) -> dict[str, Any]:
    """The contents of `summary.json` and of the JSON line; evaluations are filled in later."""
    settings, learnt = plan.settings, outcome.learnt_steps(plan.source.fresh)
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
        "ended": outcome.ended,
        "stopped": outcome.stopped,
        "params_sha256": None if outcome.state is None else params_hash(outcome.state.params),
        "resumable": plan.named,  # by `shoal train --resume`
        "run": str(folder.path),
    }
