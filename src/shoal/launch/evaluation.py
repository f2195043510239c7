"""Evaluation: episodes of a fixed policy in Gymnasium's own environment, played and filmed in a process of its own.

If the environment raises, hangs, crashes or returns NaN or infinity, the fault is counted and the episode is played again;
too many such faults end the evaluation, never the run. If no other process can be started (in a rank of an MPI job, or if the
environment cannot be pickled), the same loop runs in this process, where it survives exceptions but no hang and no crash.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Self

import msgspec

from shoal.acting.player import TOGETHER, Played
from shoal.core.errors import BadInput, RunFailed, ShoalError
from shoal.core.program import Fault
from shoal.core.weights import to_vector
from shoal.experiment import Plan
from shoal.launch.compose import make_algorithm
from shoal.launch.stage import (
    ClipMessage,
    EndedMessage,
    FilmRequest,
    Message,
    NoPictureMessage,
    PlayRequest,
    Record,
    Stage,
    decode,
    encode,
)
from shoal.process.device import settle_process
from shoal.process.limits import cores
from shoal.process.mpi_environment import launched
from shoal.runtimes.guarded import OUTSIDE, CannotSend, Gone, Guarded

PAUSE = 0.1  # seconds between two looks at the process while waiting for it
STEP_TIMEOUT = 60.0  # seconds that a call of the environment may take, if the runtime sets no limit
LONG = 3.0  # seconds of play from which two processes are faster than one after the other: a process starts in two
FILM_TRIES = 3  # attempts to film an episode before giving up

OnEpisode = Callable[[float], None]


class EvaluationFailed(RunFailed):
    """Not all episodes could be played, or no clip could be made; the message says why."""


class Way(NamedTuple):
    """An evaluation by greedy or sampled actions, and the faults that it met."""

    sample: bool
    played: Played
    faults: int


class Evaluator:
    """Plays and films policies of one plan. A context manager: leaving it ends its processes."""

    def __init__(
        self,
        plan: Plan,
        *,
        record: Record | None = None,
        on_fault: Callable[[Fault], None] = lambda fault: None,
        say: Callable[[str], None] = lambda message: None,
        nice: int = 0,
    ) -> None:
        """`on_fault` receives each fault, `say` messages for the user. The process starts with the first request."""
        settle_process()
        self.faults = 0  # in all episodes played and filmed
        self._plan = plan
        self._name, self._most, self._limit = plan.source.name, plan.settings.max_faults, plan.settings.eval_limit
        self._on_fault, self._say, self._nice = on_fault, say, nice
        self._told: set[str] = set()  # messages
        self._stage = Stage(make_algorithm(plan), plan.source, record)
        self._timeout = plan.runtime_class.step_timeout(plan.runtime) or STEP_TIMEOUT
        self.apart = launched() is None  # whether episodes are played in a process of their own
        self._process: Guarded | None = None
        self._match: _Match | None = None
        self._failed: EvaluationFailed | None = None  # found by `drain`
        self._second: Evaluator | None = None  # plays sampled episodes beside greedy ones

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. The next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
        self._close_second()

    def _close_second(self) -> None:
        second, self._second = self._second, None
        if second is not None:
            self.faults += second.faults
            second.close()

    def kill(self) -> None:
        """Kill the process. Safe to call from a signal handler."""
        if self._process is not None:
            self._process.kill()
        if self._second is not None:
            self._second.kill()

    def start(self, gently: bool = False) -> None:
        """Start the process now, so that it is ready when needed; does nothing if it is running.

        `gently`: load at a low priority.
        """
        if self._process is not None or not self.apart:
            return
        try:
            self._process = self._made(gently)
        except CannotSend as error:
            self._evaluate_here(str(error))

    def _evaluate_here(self, why: str) -> None:
        self.close()
        self.apart = False
        self._tell(f"evaluation runs in the main process: {self._name} cannot be sent to another one ({why})")

    def _tell(self, message: str) -> None:
        """Say something to the user, once."""
        if message not in self._told:
            self._told.add(message)
            self._say(message)

    def _made(self, gently: bool = False) -> Guarded:
        return Guarded(self._stage, timeout=self._timeout, nice=self._nice, gently=gently)

    def play(
        self, actor: Any, episodes: int, *, sample: bool, seed: int, on_episode: OnEpisode = lambda ret: None
    ) -> Played:
        """Play whole episodes, greedy or with sampled actions. Raises `EvaluationFailed` after more faults than --max-faults."""
        self.begin(actor, episodes, sample=sample, seed=seed, on_episode=on_episode)
        while (played := self.look(PAUSE)) is None:
            pass
        return played

    def play_both(
        self, actor: Any, episodes: int, *, seed: int, on_episode: OnEpisode = lambda ret: None
    ) -> Generator[Way, None, None]:
        """Play greedy episodes and sampled ones, and yield both results in this order. Raises as `play`.

        With a second core, long evaluations are played in two processes at the same time; the results are the same.
        """
        words: dict[str, Any] = {"seed": seed, "on_episode": on_episode}
        before, began = self.faults, time.monotonic()
        self.begin(actor, episodes, sample=False, **words)
        try:
            while (greedy := self.look(PAUSE)) is None:
                if self._second is None and self._is_long(time.monotonic() - began):
                    self._second = Evaluator(self._plan, on_fault=self._on_fault, say=self._tell, nice=self._nice)
                    self._second.begin(actor, episodes, sample=True, **words)
                if self._second is not None:
                    self._second.drain()
            yield Way(False, greedy, self.faults - before)
            if self._second is not None:
                while (sampled := self._second.look(PAUSE)) is None:
                    pass
                yield Way(True, sampled, self._second.faults)
            else:
                before = self.faults
                sampled = self.play(actor, episodes, sample=True, **words)
                yield Way(True, sampled, self.faults - before)
        finally:
            self._close_second()

    def _is_long(self, seconds: float) -> bool:
        """Whether the episodes that are played, as seen after some seconds, are worth a second process for as many others."""
        assert self._match is not None
        few = len(self._match.ended) < self._match.episodes * seconds / LONG
        return seconds >= LONG / 3 and few and self.apart and cores() > 1

    def begin(
        self, actor: Any, episodes: int, *, sample: bool, seed: int, on_episode: OnEpisode = lambda ret: None
    ) -> None:
        """As `play`, without waiting: `look` returns the result. Abandons an evaluation that is still running."""
        todo = [(episode, 0) for episode in range(episodes)]
        request = PlayRequest(todo, min(TOGETHER, episodes), sample, seed, self._limit, to_vector(actor).tobytes())
        self._match, self._failed = _Match(request, on_episode), None
        self.start()
        if self._process is not None:
            self._process.ask(encode(request))

    def drain(self) -> None:
        """Take the results that have arrived, so that the process can send more. A failure is raised by the next `look`."""
        if self._process is not None and self._failed is None:
            try:
                self.look()
            except EvaluationFailed as error:
                self._failed = error

    def look(self, seconds: float = 0.0) -> Played | None:
        """The result of `begin` once it is complete, else None; waits at most `seconds`. Raises `EvaluationFailed` as `play`."""
        match, failed = self._match, self._failed
        assert match is not None, "nothing was begun"
        if failed is not None:
            raise failed
        try:
            if self._process is None:
                for message in self._stage(encode(match.request), _unmarked):
                    self._take(match, decode(message))
            else:
                for message in self._process.hear(seconds):
                    self._take(match, decode(message))
                if self._process.gone is not None and match.played is None:
                    self._lost(match, self._process.gone)
        except EvaluationFailed:
            self.close()
            raise
        return match.played

    def _take(self, match: _Match, message: Message) -> None:
        if isinstance(message, EndedMessage):
            match.ended[message.episode] = (message.ret, message.length)
            match.cut += message.cut
            match.on_episode(message.ret)
            if match.played is not None and match.cut:
                way = "sampled" if match.request.sample else "greedy"
                self._tell(
                    f"{match.cut} of {match.episodes} {way} episodes were cut after {self._limit:,} steps (--eval-limit): the"
                    f" policy does not end them, and {self._name} has no time limit of its own"
                )
        elif not isinstance(message, ClipMessage | NoPictureMessage):
            match.attempts[message.episode] = match.attempts.get(message.episode, 0) + 1
            self._fault(match, message.kind, message.detail)

    def _lost(self, match: _Match, gone: Gone) -> None:
        """Let another process play the rest. The episode whose environment was being called gets another start."""
        if gone.kind == "unsent":
            self._evaluate_here(gone.detail.splitlines()[-1])
            return
        if gone.kind == "bug":
            raise self._bug(gone)
        if gone.which != OUTSIDE:
            match.attempts[gone.which] = match.attempts.get(gone.which, 0) + 1
        self._fault(match, _KINDS[gone.kind], f"evaluator {gone.detail}")
        assert self._process is not None
        self._process.close()
        self._process = self._made()
        self._process.ask(encode(match.rest()))

    def _bug(self, gone: Gone) -> EvaluationFailed:
        self._report("evaluator_failed", gone.detail)
        return EvaluationFailed(f"evaluation failed: {gone.detail.splitlines()[-1]}", detail=gone.detail)

    def _fault(self, match: _Match, kind: str, detail: str) -> None:
        self._report(kind, detail)
        match.faults += 1
        if match.faults > self._most:
            raise EvaluationFailed(
                f"{match.faults} faults in evaluation, more than --max-faults {self._most}: environment {self._name!r}:"
                f" {kind}: {detail.strip().splitlines()[-1]}; {len(match.ended)} of {match.episodes} episodes were played"
            )

    def _report(self, kind: str, detail: str) -> None:
        self.faults += 1
        self._on_fault(Fault(role="evaluator", kind=kind, detail=detail))

    def film(self, actor: Any, *, seed: int, max_steps: int, seconds: float) -> bytes:
        """One greedy episode as an mp4, cut after `max_steps` or `seconds` of drawing.

        Raises `BadInput` if the environment returns no frames, `EvaluationFailed` if it breaks.
        Without a display, MuJoCo's off-screen renderers are tried one after the other, unless MUJOCO_GL names one.
        """
        request = FilmRequest(seed, max_steps, seconds, None, to_vector(actor).tobytes())
        why: ShoalError | None = None
        for backend in backends(os.environ):
            try:
                return self._film(msgspec.structs.replace(request, backend=backend))
            except (BadInput, EvaluationFailed) as error:
                why = why or error  # report the failure of the first renderer, which usually works
            if "mujoco" not in sys.modules:  # only MuJoCo has several renderers to try
                break
            self.close()  # a process cannot change a renderer that it has loaded
        assert why is not None
        raise why

    def _film(self, request: FilmRequest) -> bytes:
        broken = ""
        for attempt in range(FILM_TRIES):
            message = self._filmed(encode(msgspec.structs.replace(request, seed=request.seed + attempt)))
            if isinstance(message, ClipMessage):
                return message.data
            if isinstance(message, NoPictureMessage):
                raise BadInput(message.reason)
            assert not isinstance(message, EndedMessage)
            self._report(message.kind, message.detail)
            broken = message.detail
        raise EvaluationFailed(
            f"{self._name} broke {FILM_TRIES} times while it was filmed, the last time with {broken}"
        )

    def _filmed(self, request: bytes) -> Message:
        self.start()
        if self._process is None:
            [only] = self._stage(request, _unmarked)
            return decode(only)
        self._process.ask(request)
        while True:
            for message in self._process.hear(PAUSE):
                return decode(message)
            gone = self._process.gone
            if gone is not None:
                if gone.kind == "unsent":
                    self._evaluate_here(gone.detail.splitlines()[-1])
                    return self._filmed(request)
                self.close()
                if gone.kind == "bug":
                    raise self._bug(gone)
                self._report(_KINDS[gone.kind], f"the process that filmed {gone.detail}")
                raise EvaluationFailed(f"the process that filmed {self._name} {gone.detail}")


_KINDS = {"died": "evaluator_died", "hung": "env_hung"}


def _unmarked(inside: int) -> None:
    return None


def backends(variables: Mapping[str, str]) -> tuple[str | None, ...]:
    """MuJoCo's renderers in the order of trying: the off-screen ones if there is no display.

    None leaves the choice to the environment, and so to a MUJOCO_GL that the user has set.
    """
    chosen = any(variables.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"))
    return (None,) if chosen or sys.platform != "linux" else ("egl", "osmesa")


class _Match:
    """Episodes that are being played."""

    def __init__(self, request: PlayRequest, on_episode: OnEpisode) -> None:
        self.request, self.on_episode = request, on_episode
        self.episodes = len(request.todo)
        self.ended: dict[int, tuple[float, int]] = {}
        self.attempts: dict[int, int] = {}
        self.faults = 0
        self.cut = 0  # episodes

    def rest(self) -> PlayRequest:
        """The request for the episodes that are left to play."""
        left = [(i, self.attempts.get(i, 0)) for i in range(self.episodes) if i not in self.ended]
        return msgspec.structs.replace(self.request, todo=left)

    @property
    def played(self) -> Played | None:
        if len(self.ended) < self.episodes:
            return None
        both = [self.ended[i] for i in range(self.episodes)]
        return Played([ret for ret, _ in both], [length for _, length in both])
