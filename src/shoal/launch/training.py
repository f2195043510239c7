"""One training in a run folder: drives the session, writes metrics and checkpoints, decides when to end."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.core.blueprint import named_leaves
from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Driver, Ended, Fault, Reply, Report, Snapshot, check_fits
from shoal.core.weights import params_hash
from shoal.experiment import Plan
from shoal.launch.checks import Checks
from shoal.launch.compose import make_blueprint
from shoal.launch.evaluation import Evaluator
from shoal.launch.outcome import Outcome
from shoal.learning import handed_in
from shoal.learning.replay_update import is_saved, replay_bytes
from shoal.learning.soundness import BAD_UPDATE
from shoal.process.device import settle_process, unscanned
from shoal.process.signals import StopRequest
from shoal.run.checkpoints import Checkpoints, Loaded
from shoal.run.folder import RunFolder
from shoal.run.history import Course, Gathered
from shoal.run.progress import Panel, status
from shoal.run.sinks import open_sinks
from shoal.runtimes.session import Session
from shoal.runtimes.threads import aside

OLDEST = 4096  # versions: larger lags are counted as this one
TOLD = 10  # failed updates that are reported one by one; then only each time their number doubles
Callback = Callable[[Report], Any]


class Training:
    """One training in a run folder: drives the session, writes metrics and checkpoints, decides when to end."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        *,
        loaded: Loaded | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
        ahead: float = 0.0,
        driver: Driver | None = None,
        callbacks: Sequence[Callback] = (),
        evaluator: Evaluator | None = None,
        quiet: bool = False,
        say: Callable[[str], None] | None = None,
        begun: Callable[[Path], None] | None = None,
    ) -> None:
        self.plan, self.folder, self._driver, self._callbacks = plan, folder, driver, callbacks
        self.quiet, self._begun = quiet, begun
        settle_process()
        self._say = say or (lambda message: None)
        self.blueprint = make_blueprint(plan, loaded, weights, self._say, driven=driver is not None, ahead=ahead)
        self._checkpoints = Checkpoints(folder.checkpoints, keep=plan.settings.keep, on_alert=self._alert)
        self._saved_version = self.blueprint.start if loaded else -1
        self.outcome = Outcome()
        if loaded is not None:
            self.outcome.restore(loaded.meta, loaded.arrays["recent"].tolist())
        self._before = self.outcome.counts()  # those from before a resume
        self._cause = ""  # of the last failed update
        self._session: Session | None = None
        self._course, self._gathered, self._written = Course(), Gathered(), -math.inf
        self._checks: Checks | None = None
        if plan.settings.until_eval is not None:
            assert evaluator is not None
            self._checks = Checks(evaluator, self.blueprint.algorithm, plan.settings, self._alert)

    def _alert(self, message: str) -> None:
        self._say(message)

    def run(self, stop: StopRequest, last_resort: Callable[[Outcome], Any] = lambda outcome: None) -> Outcome:
        """Train until the budget is spent, the target is reached, or a stop is requested. Always leaves a checkpoint.

        `stop` must already be entered. If nothing interrupts this thread after a request, `last_resort` gets the outcome in
        another one, after the checkpoint and before the process exits.
        """

        def leave() -> None:
            self.outcome.ended = stop.why
            self._save(exact=False)
            last_resort(self.outcome)

        plan, settings = self.plan, self.plan.settings
        runtime = plan.runtime_class(plan.runtime)
        program = plan.topology_class(plan.topology).program(self.blueprint)
        program = dataclasses.replace(program, helper=plan.source.helper)
        check_fits(program, str(settings.runtime), runtime.provides, str(settings.topology))
        config = plan.as_dict()
        title = f"{plan.source.name} {settings.algo} {settings.topology} {settings.runtime}"
        with contextlib.ExitStack() as stack:
            assert settings.steps is not None
            panel = stack.enter_context(Panel(title, settings.steps, settings.until_return, quiet=self.quiet))
            self._say = panel.say
            if self.blueprint.algorithm.replays and not is_saved(self.blueprint):
                size = replay_bytes(self.blueprint) / 2**30
                self._say(f"checkpoints leave the replay out: {size:.1f} GiB, more than --algo.save-limit")
            for note in program.notes:
                self._say(note)
            sink = stack.enter_context(contextlib.closing(open_sinks(settings.sinks, self.folder, config, self._alert)))
            self._sink, self._panel, self._stop = sink, panel, stop
            stop.on_abort(panel.close)
            try:
                with stop.bounded(leave):
                    aside(self._make_ready)
                    try:
                        self._session = session = runtime.start(program, lambda: stop.requested)
                    except MemoryError as error:
                        sizes = f"--actors {plan.actors} with --envs {plan.envs} each"
                        raise BadInput(f"{sizes} do not fit into memory: {error}") from error
                    stack.callback(self._close, session)
                    stop.on_abort(session.abort)
                    if self._begun is not None:
                        self._save(exact=False)
                        self._begun(self.folder.path)
                    with unscanned():
                        self.outcome.ended = self._loop(session)
            except BadInput:  # nothing to save, unless it came from a callback or the driver
                if self.outcome.state is not None:
                    self._save(exact=False)
                raise
            except Exception as error:
                if isinstance(error, RunFailed) and error.detail:
                    self._log(f"the run failed\n{error.detail}")
                self._save(exact=False)
                raise
            except KeyboardInterrupt:
                self.outcome.ended = stop.why
                self._save(exact=False)
            else:
                self._save(exact=self._checks is None or not self._checks.established)
                self._check_learnt()
        return self.outcome

    def _close(self, session: Session) -> None:
        """End all roles. Faults of environments that raise in their `close` are recorded, but the run is already over."""
        for fault in session.close():
            self._record(fault)
        self._write(now=True)

    def _check_learnt(self) -> None:
        """Raise `RunFailed` if the budget is spent and every update failed: the weights are those that it began with."""
        failed = self.outcome.bad_updates - int(self._before["bad_updates"])
        if self.outcome.ended != "budget" or not failed or self.outcome.state is None:
            return
        if params_hash(self.outcome.state.params) == params_hash(self.blueprint.initial_state().params):
            raise RunFailed(f"nothing was learnt: {failed} updates failed and none succeeded: {self._cause}")

    def _make_ready(self) -> None:
        """Make the first weights while the roles are built and compiled; a failure shows again in the role that needs them."""
        with contextlib.suppress(Exception):
            self.blueprint.initial_state()

    def _loop(self, session: Session) -> Ended:
        """Take the session's reports, answer them, and save from time to time. Returns why training ended."""
        if self.outcome.version >= self.blueprint.updates:
            return "budget"
        events, last_saved = iter(session), time.monotonic()
        reply: Reply | None = None
        while True:
            try:
                event = events.send(reply)
            except StopIteration:  # stopped while it waited, or all roles have finished
                return self._stop.why if self._stop.requested else "budget"
            reply = None
            if isinstance(event, Fault):
                self._fault(event)
                continue
            self._take(event)
            reply = self._answer(event)
            ended = self._over(event, reply)
            if ended is not None:
                return ended
            if time.monotonic() - last_saved >= self.plan.settings.checkpoint_every:
                self._save()
                last_saved = time.monotonic()

    def _answer(self, report: Report) -> Reply | None:
        """The driver's reply. Weights that it hands in are the run's from here on, also in checkpoints."""
        reply = None if self._driver is None else self._driver(report)
        if reply is None or not reply.brings:
            return reply
        handed_in.check(report.state, reply)
        self.outcome.state = handed_in.adopted(self.blueprint.algorithm, report.state, reply)
        self._saved_version = -1  # a checkpoint of this version holds other weights
        return reply

    def _over(self, report: Report, reply: Reply | None) -> Ended | None:
        """Why training ends after this report; None if it continues. Calls the callbacks with every report."""
        settings, outcome = self.plan.settings, self.outcome
        target = settings.until_return
        solved = target is not None and (score := outcome.score) is not None and score >= target
        if solved:
            outcome.solved_at_s = outcome.wall_s
        if self._checks is not None and self._check(self._checks, report):
            return "solved"
        wants_end = [callback(report) is True for callback in self._callbacks]
        if solved:
            return "solved"
        if outcome.version >= self.blueprint.updates or outcome.env_steps >= self.blueprint.budget:
            return "budget"
        if self._stop.requested:
            return self._stop.why
        if reply is not None and reply.stop:
            return reply.why
        return "stopped" if any(wants_end) else None

    def _check(self, checks: Checks, report: Report) -> bool:
        """Whether --until-eval is reached: then the policy that was evaluated last is kept."""
        outcome = self.outcome
        check = checks.look(report, outcome.env_steps, outcome.wall_s)
        if check is not None:
            outcome.checks.append(check)
            self._sink.write(outcome.env_steps, {"eval/return": check.ret, "eval/step": float(check.env_steps)})
        if not checks.established:
            return False
        outcome.state, outcome.solved_at_s = checks.state, outcome.wall_s
        self._saved_version = -1  # a checkpoint of this version holds newer weights
        return True

    def _take(self, report: Report) -> None:
        outcome = self.outcome
        outcome.state, outcome.version = report.state, report.version
        for lag, rows in report.lags.items():
            outcome.histogram[min(lag, OLDEST)] += rows
        outcome.env_steps = int(self._before["env_steps"]) + report.env_steps
        outcome.began_at = report.began_at
        outcome.wall_s = float(self._before["seconds"]) + report.ended_at - report.began_at
        outcome.recent.extend(episode.ret for episode in report.episodes)
        outcome.episodes += len(report.episodes)
        outcome.reports += 1
        outcome.lag_sum += report.metrics["lag/versions"]
        outcome.lag_max = max(outcome.lag_max, report.metrics["lag/max"])
        self._gathered.add({**report.metrics, **self._speed(report)}, report.episodes)
        self._write()
        self._show(report)

    def _write(self, now: bool = False) -> None:
        """Hand the gathered metrics to the sinks, if it is time."""
        clock = time.monotonic()
        if self._gathered and (now or clock - self._written >= self.plan.settings.metrics_every):
            self._written = clock
            self._sink.write(self.outcome.env_steps, self._gathered.take())

    def _speed(self, report: Report) -> dict[str, float]:
        elapsed = report.ended_at - report.began_at
        return {
            "speed/env_steps": float(self.outcome.env_steps),
            "speed/updates": float(report.version),
            "speed/seconds": self.outcome.wall_s,
            "speed/steps_per_s": report.env_steps / elapsed if elapsed > 0 else 0.0,
        }

    def _show(self, report: Report) -> None:
        outcome = self.outcome
        for name, value in report.metrics.items():
            if name.startswith("time/"):
                key = name.removeprefix("time/")
                outcome.times[key] = outcome.times.get(key, 0.0) + value
        mean = outcome.return_mean
        lines = status(report.metrics) + (() if self._checks is None else (self._checks.line,))
        if mean is not None:
            self._course.add(mean)
        self._panel.update(outcome.env_steps, outcome.wall_s, mean, self._course.points, outcome.times, lines)

    def _fault(self, fault: Fault) -> None:
        if fault.kind == BAD_UPDATE:
            self._bad_update(fault)
            return
        cause, most = self._record(fault), self.plan.settings.max_faults
        count = self.outcome.faults - int(self._before["faults"])  # since this process began
        if count > most:
            raise RunFailed(
                f"{count} faults, more than --max-faults {most}: environment {self.plan.source.name!r}:"
                f" {fault.kind}: {cause}"
            )

    def _record(self, fault: Fault) -> str:
        """Count and log a fault. Returns its cause: of a traceback, the line with the exception."""
        outcome, cause = self.outcome, fault.detail.strip().splitlines()[-1]
        outcome.faults += 1
        self._gathered.add({f"fault/{fault.kind}": 1.0})
        self._write()
        self._log(f"{fault.role} {fault.kind}\n{fault.detail}")
        self._alert(f"fault {outcome.faults}: {fault.role}: {fault.kind}: {cause} (recovered; details in faults.log)")
        return cause

    def _bad_update(self, fault: Fault) -> None:
        """Record a dropped update: the weights are those before it."""
        outcome, most = self.outcome, self.plan.settings.max_bad_updates
        outcome.bad_updates += 1
        self._gathered.add({"fault/bad_updates": 1.0})
        self._write()
        count = outcome.bad_updates
        if count <= TOLD or count & (count - 1) == 0:
            self._log(f"{fault.role} {fault.kind}\n{fault.detail}")
            self._alert(f"bad update {count}: {fault.role}: {fault.detail}")
        self._cause = fault.detail.partition(": ")[2]
        if fault.in_a_row >= most:
            raise RunFailed(f"{fault.in_a_row} updates in a row failed (--max-bad-updates {most}): {self._cause}")

    def _log(self, text: str) -> None:
        """Append the whole text to faults.log."""
        if why := self.folder.log(text):
            self._alert(f"cannot write faults.log: {why}")

    def _save(self, exact: bool = True) -> None:
        """Save a checkpoint of the newest version, unless it exists already.

        Between two updates it can be `exact`, with the roles' state for a bit-for-bit resume. In the middle of an update it
        holds the learner's state after the last one, and the parts that last, such as the replay.
        """
        self._write(now=True)
        outcome = self.outcome
        if outcome.state is None:  # ended before its first update: the state is the one that it began with
            outcome.state = self.blueprint.initial_state()
        if outcome.version == self._saved_version:
            return
        arrays = {f"state/{name}": array for name, array in named_leaves(outcome.state).items()}
        parts = self._parts(exact)
        for name, part in parts.items():
            arrays |= {f"part/{name}/{leaf}": array for leaf, array in part.arrays.items()}
        arrays["recent"] = np.asarray(outcome.recent, np.float64)
        meta = {
            **outcome.counts(),
            "spec": msgspec.to_builtins(self.plan.spec),
            "config": {name: value for name, value in self.plan.as_dict().items() if name != "spec"},
            "lasting": [name for name, part in parts.items() if part.lasts],
        }
        if self._checkpoints.save(outcome.env_steps, arrays, meta, outcome.score) is not None:
            self._saved_version = outcome.version

    def _parts(self, exact: bool) -> Snapshot:
        """The session's parts of a checkpoint. {} if there is no session or if it cannot be saved: the weights still can."""
        if self._session is None:
            return {}
        try:
            return self._session.snapshots(exact)
        except Exception as error:
            self._log(f"no snapshot of the roles\n{traceback.format_exc().strip()}")
            self._alert(f"the checkpoint holds only the learner's state: {type(error).__name__}: {error}")
            return {}
