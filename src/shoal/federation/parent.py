"""A parent: serves the hub, evaluates its weights, writes a run folder that all other commands read, decides when to stop.

with Parent("CartPole-v1", algo="a2c", steps=200_000, bind="127.0.0.1:7777") as parent:
    print(parent.url, parent.token_file)
    summary = parent.run()
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Fault
from shoal.experiment import nest
from shoal.federation import pardons, wire
from shoal.federation import state as states
from shoal.federation.addresses import address_of, check_bind, server_tls
from shoal.federation.guard import Guard, Limits, Tokens
from shoal.federation.hub import Federation, Hub
from shoal.federation.judging import Judged, Judging
from shoal.federation.ledger import AppliedPush, Ledger, updates_of
from shoal.federation.parent_folder import ParentFolder, Settled
from shoal.federation.parent_panel import ParentPanel, progress, shown
from shoal.federation.server import Dialled
from shoal.federation.serving import Serving
from shoal.federation.settings import FederationConfig, check_datagrams, overlaid, planned, rule_of, told
from shoal.federation.snapshots import Snapshots
from shoal.federation.vectors import StateVectors
from shoal.launch.checks import IN_A_ROW, NICE
from shoal.launch.compose import initial_state, make_algorithm
from shoal.launch.entry import say
from shoal.launch.evaluation import Evaluator
from shoal.process.device import settle_process
from shoal.process.lock import RunLock
from shoal.process.signals import StopRequest
from shoal.run.history import Course
from shoal.run.sinks import check_sinks, open_sinks
from shoal.runtimes.threads import aside

LOOK = 0.05  # seconds that the loop waits for a push
GRACE = 10.0  # seconds for children to learn that training is over
NOTE = b"stopping: checkpointing (again to exit now)\n"


class Parent:
    """A parent. Entering it opens the socket; `run` serves until the budget is spent, the goal is reached or a signal comes."""

    def __init__(
        self,
        env: Any = None,
        *,
        out: str | Path | None = None,
        resume: str | Path | None = None,
        bind: str | None = "127.0.0.1:7777",
        cert: str | Path | None = None,
        key: str | Path | None = None,
        token_file: str | Path | None = None,
        children: Sequence[str] = (),
        pins: Sequence[str] = (),
        child_tokens: Mapping[str, str | Path] | None = None,
        federation: FederationConfig | Mapping[str, Any] | None = None,
        rule: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        quiet: bool = False,
        over: Callable[[], bool] = lambda: False,
        **settings: Any,
    ) -> None:
        """Prepare a parent. `settings` are those of `shoal.train`, `rule` those of the rule; `over` may end the training.

        A resumed parent keeps its settings of the federation and of the rule, except for single fields given here as mappings.
        `children` are dialled with the tokens in the files of `child_tokens`, by name and in order, or with the shared one.
        Raises `BadInput` for settings that cannot work, before anything is opened.
        """
        self._quiet, self._over_outside = quiet, over
        known = ParentFolder.settled(resume) if resume is not None else None
        stored = (FederationConfig(), {}) if known is None else (known.federation, known.rule)
        self.config, fields = overlaid(stored[0], stored[1], federation, rule)
        self._address = None if bind is None else address_of(bind)
        self._tls = server_tls(Path(cert) if cert else None, Path(key) if key else None)
        if self._address is not None:
            check_bind(self._address.host, tls=self._tls is not None, token=True)
        given = {name: value for name, value in settings.items() if value is not None}
        self.plan = planned(env, None if known is None else known.plan(given), given, self.config)
        check_sinks(self.plan.settings.sinks)
        if self.plan.settings.until_eval is not None and not self.config.eval_every:
            raise BadInput(f"--until-eval {self.plan.settings.until_eval:g} needs evaluations, and --eval-every is 0")
        settle_process()
        first = initial_state(self.plan)
        self.vectors = StateVectors(first, moments=self.config.moments == "travel")
        if self.config.transport == "udp":
            check_datagrams(self.config, self.plan, self.vectors.observed, dials=bool(children))
        self._algorithm = make_algorithm(self.plan)
        explicit = nest(given) if known is None else known.explicit(given)
        topology, algo = explicit.get("topology", {}), explicit.get("algo", None if known is not None else {})
        start = states.start(
            self.vectors.vector(first),
            normaliser=self.vectors.observed,
            moments=self.vectors.moments_of(first),
            squares=self.vectors.squares,
        )
        self.folder = ParentFolder.open(
            self.plan, self.vectors, Settled(self.config, fields, topology, algo), out=out, resume=resume, say=say
        )
        try:
            self.token_file, self._secret = self.folder.token(token_file)
            self._secrets = {name: self.folder.token(file)[1] for name, file in (child_tokens or {}).items()}
            restored = self.folder.restored() if resume is not None else None
            self.ledger, self._before = Ledger(), restored.seconds if restored else 0.0
            if restored is not None:
                start = restored.state
                self.ledger.recent.extend(restored.recent)
                self.ledger.times.extend(restored.times)
                self.folder.check_fits(start)
        except BaseException:
            self.folder.discard()
            raise
        tokens = Tokens()
        tokens.admit(self._secret)
        about = Federation(
            run=self.folder.run,
            architecture=self.vectors.architecture,
            rule=rule_of(self.config, fields),
            rule_name=self.config.rule,
            settings=told(self.plan, self.config, topology, algo),
            by_steps=self.config.weigh == "steps",
            consistency=self.config.consistency,
        )
        self.hub = Hub(about, start, Guard(limits or Limits(), tokens))
        if restored is not None:
            self.hub.recount(restored.counts)
        self.hub.spent = self._share
        self._snapshots = Snapshots(self.config.path_every, start)
        self._heard: queue.SimpleQueue[AppliedPush] = queue.SimpleQueue()
        self.hub.heard = self._take
        secrets = [*self._secrets.values()] + [self._secret] * len(children)
        self._dialled = [Dialled(u, secrets[i], pins[i] if i < len(pins) else "") for i, u in enumerate(children)]
        self._first_at: float | None = None
        self._solved_at: float | None = None
        self._reached = 0
        self._kept: states.State | None = None  # the evaluated weights that reached the goal
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            stack = self._stack
            stack.enter_context(RunLock(self.folder.folder.path, say))
            self._stop = stack.enter_context(StopRequest(NOTE))
            aside(self._stop.listener())
            self.folder.write_config()
            self._register = self.folder.register
            with self._register.changing() as tokens:
                tokens.share(self._secret)
                for name, secret in self._secrets.items():
                    tokens.share(secret, name)
            arrays = self.folder.save(self.hub, self.ledger, self._seconds())
            if not arrays:
                raise RunFailed(
                    f"cannot write a checkpoint in {str(self.folder.folder.path)!r}: a parent needs one to begin"
                )
            self.hub.stored(arrays)  # releases the versions that the checkpoint reserves
            self.hub.readmit(self._register.changed() or tokens)
            self._serving = stack.enter_context(
                Serving(
                    self.hub,
                    self._address,
                    tls=self._tls,
                    children=self._dialled,
                    datagrams=self.config.transport == "udp",
                )
            )
        except BaseException as error:
            self._stack.close()
            if isinstance(error, BadInput):
                self.folder.discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The URL that children dial; empty for a parent that only dials."""
        return self._serving.url

    def run(self) -> dict[str, Any]:
        """Serve to the end, evaluate, write the summary and return it."""
        settings, folder = self.plan.settings, self.folder.folder
        title = f"{self.plan.source.name} {settings.algo}, {self.config.rule}"

        def on_fault(fault: Fault) -> None:
            folder.log(f"{fault.role} {fault.kind}\n{fault.detail}")

        with contextlib.ExitStack() as stack:
            evaluator = stack.enter_context(Evaluator(self.plan, on_fault=on_fault, say=say, nice=NICE))
            self._stop.on_abort(evaluator.kill)
            with ParentPanel(title, self.url, quiet=self._quiet) as panel:
                self._panel = panel
                self._stop.on_abort(panel.close)
                sinks = open_sinks(settings.sinks, folder, self.plan.as_dict(), panel.say)
                with contextlib.closing(sinks) as self._sink:
                    self._judging = Judging(
                        evaluator,
                        self._algorithm,
                        self.vectors,
                        self._share,
                        every=self.config.eval_every,
                        sample=settings.until_eval_by == "sampled",
                        seed=settings.seed,
                        say=panel.say,
                    )
                    try:
                        ended = self._loop()
                    except BaseException:
                        self._save()  # on any error
                        raise
                    self._end(ended)
                    if ended in ("budget", "solved"):
                        self._write_path(evaluator)
            times: dict[str, Any] = {"seconds": self._seconds_spent, "solved_at": self._solved_at}
            summary, learner = self.folder.summary(self.hub, self.ledger, ended=ended, **times), self._learner()
            self.folder.finish(learner, self._algorithm, summary)
            worth = ended in ("budget", "solved") or (ended == "children" and self.hub.state.pushes > 0)
            if worth and settings.eval_episodes:
                with contextlib.suppress(KeyboardInterrupt), self._stop.interruptible():
                    self.folder.evaluate(evaluator, self._algorithm.actor_state(learner), summary)
        return summary

    def _loop(self) -> str:
        """Receive pushes, evaluate, write metrics, update the panel; returns why training ended."""
        self._course, written, saved = Course(), time.monotonic(), time.monotonic()
        faults: dict[str, str] = {}
        while True:
            self._hear(LOOK)
            state, now = self.hub.state, time.monotonic()
            judged = self._judging.look(state, wanted=self._wants_judgement())
            if judged is not None:
                self._note(judged)
            for url, why in self._serving.faults.items():
                if faults.get(url) != why:
                    faults[url] = why
                    self._panel.say(f"{url}: {why}")
            if now - written >= self.plan.settings.metrics_every and state.pushes:
                written = now
                self._write(state, now)
            self._show(state, now)
            if state.memory.pending and state.awaited < (needed := self.hub.federation.rule.quorum):
                self._panel.say_once(f"--rule {self.config.rule} changes nothing before {needed} children have joined")
            self._readmit()
            ended = self._over(state, judged)
            if ended == "budget" and self._wants_judgement():
                return self._last_judgement()
            if ended is not None:
                return ended
            if now - saved >= self.plan.settings.checkpoint_every:
                saved = now
                self._save()

    def _readmit(self) -> None:
        """Pass changed tokens and pardons on to the hub."""
        for child in pardons.take(self.folder.folder.path):
            self._serving.call(partial(self.hub.guard.forgive, child))
            self._panel.say(f"{child} is forgiven")
        try:
            tokens = self._register.changed()
        except BadInput as error:
            self._panel.say(f"{error}; the previous tokens stay valid")
            return
        if tokens is not None:
            self._serving.call(lambda: self.hub.readmit(tokens))

    def _take(self, push: wire.Push) -> None:
        """Take a push, on the hub's thread; stop the hub once the budget is spent."""
        now = time.monotonic()
        self._snapshots.note(self.hub.state, now)
        self.hub.stop |= self._spent(self.hub.state)
        self._heard.put(AppliedPush(push, now))

    def _spent(self, state: states.State) -> bool:
        if self.config.updates is not None:
            return updates_of(state) >= self.config.updates
        return self.plan.settings.steps is not None and state.steps >= self.plan.settings.steps

    def _share(self, state: states.State) -> float:
        """Share of the budget that is spent."""
        done = progress(updates_of(state), self.config.updates, state.steps, self.plan.settings.steps or 1)[1]
        return min(1.0, done)

    def _hear(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            heard = self._heard.get(timeout=seconds)
            if self._first_at is None:
                self._first_at = heard.at
            while True:
                self.ledger.add(heard)
                heard = self._heard.get_nowait()

    def _wants_judgement(self) -> bool:
        """Whether to evaluate at once, because the children, or an evaluation, have reached the goal."""
        settings, score = self.plan.settings, self.ledger.score
        reached = settings.until_return is not None and score is not None and score >= settings.until_return
        return reached or (settings.until_eval is not None and self._reached > 0)

    def _note(self, judged: Judged) -> None:
        state = self.hub.state
        at = {"eval/step": float(judged.state.steps), "eval/updates": float(updates_of(judged.state))}
        self._sink.write(state.steps, {"eval/return": judged.ret, **at})
        goal = self.plan.settings.until_eval
        self._reached = self._reached + 1 if goal is not None and judged.ret >= goal else 0

    def _over(self, state: states.State, judged: Judged | None) -> str | None:
        settings, score = self.plan.settings, self.ledger.score
        goal = settings.until_return
        if goal is not None and score is not None and score >= goal:
            confirmed = judged is not None and judged.ret >= goal
            if confirmed or self._judging.failed:
                return self._solved(judged)
        if self._reached >= IN_A_ROW:
            return self._solved(judged)
        if self._spent(state):
            return "budget"
        if self._stop.requested:
            return self._stop.why
        return "children" if self._over_outside() else None

    def _last_judgement(self) -> str:
        """Evaluate the parent's weights once more after the budget is spent; `solved` if they reach the goal as well."""
        self._serving.call(lambda: setattr(self.hub, "stop", True))
        while not (self._stop.requested or self._judging.failed or self._judging.knows(self.hub.state)):
            judged = self._judging.look(self.hub.state, wanted=True)
            if judged is not None:  # perhaps of earlier weights, whose evaluation was under way
                self._note(judged)
                if self._over(self.hub.state, judged) == "solved":
                    return "solved"
            self._hear(LOOK)
        return self._stop.why if self._stop.requested else "budget"

    def _solved(self, judged: Judged | None) -> str:
        self._solved_at = self._seconds()
        self._kept = None if judged is None else judged.state
        return "solved"

    def _end(self, ended: str) -> None:
        """Stop applying pushes and save; unless stopped or paused, wait until the children have learnt of the end."""
        if ended in ("stopped", "paused"):
            self._serving.close()
        else:
            self._serving.call(lambda: self.hub.end(self._kept, last_round=self.config.updates is None))
        self._hear(0.001)
        self._seconds_spent = self._seconds()
        self._save()
        self._write(self.hub.state, time.monotonic())
        until = time.monotonic() + GRACE
        while ended not in ("stopped", "paused") and self.hub.state.present and time.monotonic() < until:
            self._hear(LOOK)
            if self._stop.requested:
                return

    def _write_path(self, evaluator: Evaluator) -> None:
        """Evaluate the snapshots along the training. A request to stop ends it."""
        write, began = partial(self._sink.write, self.hub.state.steps), (self._first_at or 0.0) - self._before
        with contextlib.suppress(KeyboardInterrupt), self._stop.interruptible():
            self._snapshots.write(evaluator, self._algorithm, self.vectors, self.plan, began, write, self._panel.say)

    def _seconds(self) -> float:
        """Seconds since the first push, over all restarts."""
        return self._before + (0.0 if self._first_at is None else time.monotonic() - self._first_at)

    def _save(self) -> None:
        arrays = self.folder.save(self.hub, self.ledger, self._seconds())
        if arrays:
            self._serving.call(lambda: self.hub.stored(arrays))

    def _write(self, state: states.State, now: float) -> None:
        rejected = sum(self.hub.guard.refused.values())
        self._sink.write(state.steps, self.ledger.metrics(state, now, seconds=self._seconds(), rejected=rejected))

    def _show(self, state: states.State, now: float) -> None:
        if (mean := self.ledger.return_mean) is not None:
            self._course.add(mean)
        rest = {"seconds": self._seconds(), "evaluated": self._judging.last, "course": self._course.points}
        rest["rejected"] = sum(self.hub.guard.refused.values())
        self._panel.show(shown(state, self.ledger, self.config.updates, self.plan.settings.steps or 1, now, **rest))

    def _learner(self) -> Any:
        state = self.hub.state
        return self.vectors.state(state.weights, state.normaliser, state.moments, self._share(state))
