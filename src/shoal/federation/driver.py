"""A child's driver: passes the run's weights to the link at update boundaries, and the parent's answers back to the run.

The run itself is an ordinary one. It continues during an exchange and adopts the parent's answer at a later update
(`federation.adoption`). While the parent is unreachable, the run continues alone.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from shoal.core.algorithm import LearnerState
from shoal.core.program import Reply, Report
from shoal.federation.adoption import adopt, adopts_now, contribution
from shoal.federation.client import Refusal
from shoal.federation.courier import Exchanged, Update
from shoal.federation.link import FINAL, Link
from shoal.federation.normaliser import Counts, difference, empty, merge
from shoal.federation.settings import ExchangeConfig
from shoal.federation.state import RESERVED
from shoal.federation.vectors import StateVectors

RETURNS = 256  # at most this many returns are sent with a push
LOOK = 0.05  # seconds between two checks of the connection, for a child that waits
LAST = 10.0  # seconds allowed for the last exchange of a run
LAST_PUSHES = 5  # over UDP, pushes at the end of a run until one is answered


class Now(NamedTuple):
    """The exchanged part of the learner's state."""

    weights: np.ndarray
    counts: Counts | None
    moments: Mapping[str, np.ndarray]


class _Given(NamedTuple):
    """An exchange that is under way."""

    now: Now
    counts: Counts | None  # the parent's statistics once it has applied the push
    steps: int
    returns: tuple[float, ...]
    episodes: int


class ExchangeDriver:
    """Driver of one child's run: `launch.run(plan, driver=ExchangeDriver(...))`. Starts from the parent's weights `begun`."""

    def __init__(
        self,
        link: Link,
        vectors: StateVectors,
        exchange: ExchangeConfig,
        begun: Exchanged,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        assert begun.weights is not None and link.courier.welcome is not None
        self.exchanges = 0
        self.told_to_stop = begun.stop
        self._link, self._vectors, self._exchange, self._say = link, vectors, exchange, say
        self._welcome = link.courier.welcome
        self._base, self._start = begun.version, begun.weights  # what the next change is measured from
        self._theirs = self._mine = (
            begun.normaliser
        )  # the parent's statistics in its last answer, and this child's then
        self._given: _Given | None = None
        self._refused = False
        self._lost = False  # the last push had no answer: only a later one tells the parent its steps for certain
        self._steps = self._counted = self._episodes = 0  # since the last push; of the run, already counted; episodes
        self._returns: deque[float] = deque(maxlen=RETURNS)
        self._version = 0  # of the run, at the last push
        self._at = time.monotonic()

    def __call__(self, report: Report) -> Reply | None:
        """Count steps and episodes, adopt an answer that has arrived, begin an exchange that is due."""
        self._steps += report.env_steps - self._counted
        self._counted = report.env_steps
        self._episodes += len(report.episodes)
        self._returns.extend(episode.ret for episode in report.episodes if math.isfinite(episode.ret))
        got = self._receive(0.0) if self._given is not None else None
        due = self._link.busy is False and self._due(report.version)
        if got is None and not due:
            return Reply(stop=True) if self.told_to_stop else None
        before = now = self._now(report.state)
        if got is not None:
            now = self._adopted(now, got)
        if due and not self.told_to_stop:
            self._give(now, report.version)
            if not self._exchange.overlap and (got := self._wait(None)) is not None:
                now = self._adopted(now, got)
        return self._reply(before, now)

    def finish(self, state: LearnerState | None) -> None:
        """Push what was learnt since the last exchange, after the run and if the parent is connected."""
        if self.told_to_stop or state is None:
            return
        now = self._now(state)
        if self._given is not None:
            got = self._wait(LAST)
            if got is not None:
                now = self._adopted(now, got)  # the last push contains only what the open one did not
            elif self._given is not None:
                return  # without its answer, a push would repeat what the parent may have applied
        for _ in range(LAST_PUSHES):
            if not (self._steps or self._lost) or self.told_to_stop:
                return
            self._give(now, self._version)
            got = self._wait(LAST)
            if got is None:
                return
            now = self._adopted(now, got)

    def _now(self, state: LearnerState) -> Now:
        vectors = self._vectors
        return Now(vectors.vector(state), vectors.counts_of(state), vectors.moments_of(state))

    def _due(self, version: int) -> bool:
        exchange = self._exchange
        return bool(
            (exchange.episodes and self._episodes >= exchange.episodes)
            or (exchange.every_updates and version - self._version >= exchange.every_updates)
            or (exchange.every_seconds and time.monotonic() - self._at >= exchange.every_seconds)
        )

    def _give(self, now: Now, version: int) -> None:
        up, theirs = _unknown(now.counts, self._mine, self._theirs)
        self._given = _Given(now, theirs, self._steps, tuple(self._returns), self._episodes)
        took = self._link.milliseconds[-1] if self._link.milliseconds else None
        self._link.give(
            Update(
                contribution(self._welcome.takes, now.weights, self._start),
                base=self._base,
                episodes=self._episodes,
                steps=self._steps,
                normaliser=up,
                moments=now.moments,
                returns=tuple(self._returns),
                took=took,
            )
        )
        self._steps = self._episodes = 0
        self._returns.clear()
        self._version, self._at = version, time.monotonic()

    def _wait(self, seconds: float | None) -> Exchanged | None:
        """Wait for the answer while the parent is connected, at most `seconds`."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        while self._given is not None and self._link.connected and time.monotonic() < until:
            got = self._receive(LOOK)
            if got is not None:
                return got
        return None

    def _receive(self, timeout: float) -> Exchanged | None:
        """The answer, if it has arrived. A refused push counts as not sent."""
        given = self._given
        assert given is not None
        try:
            got = self._link.take(timeout)
        except Refusal as refusal:
            self._given = None
            if refusal.refused.reason in FINAL:
                raise
            self._steps += given.steps
            self._episodes += given.episodes
            self._returns.extend(given.returns)
            if refusal.refused.reason == "base":
                self._base = (
                    0  # of a parent that lost this version: the next push counts as stale, and its answer is adopted
                )
            if not self._refused:
                self._say(f"{refusal}; training continues")
            self._refused = True
            return None
        if got is not None:
            self.exchanges += 1
            self.told_to_stop = got.stop
        return got

    def _adopted(self, now: Now, got: Exchanged) -> Now:
        """Adopt an answer: the state that the run continues with. Sets the base of the next change."""
        given, self._given = self._given, None
        assert given is not None
        pushed = given.now
        self._lost = got.weights is None
        # Also where the weights are not adopted: the parent has counted the observations of the push.
        now = now._replace(counts=self._with_others(now.counts, given, got))
        if got.weights is None or not adopts_now(self._welcome.adopts, got.version, self._base):
            self._start = pushed.weights  # the parent has the change up to here
            return now
        beta = self._welcome.beta
        if got.missing is not None:  # the child keeps its own weights where slices were lost
            got = got._replace(weights=np.where(got.missing, pushed.weights, got.weights))
        assert got.weights is not None
        weights = now.weights
        if not np.array_equal(got.weights, pushed.weights):
            weights = adopt(now.weights, pushed.weights, got.weights, beta)
        self._start = adopt(pushed.weights, pushed.weights, got.weights, beta)
        self._base = got.version
        moments = {
            name: _mixed(name in self._vectors.squares, now.moments[name], pushed.moments[name], vector, beta)
            for name, vector in got.moments.items()
            if name in now.moments
        }
        return Now(weights, now.counts, {**now.moments, **moments})

    def _with_others(self, now: Counts | None, given: _Given, got: Exchanged) -> Counts | None:
        """The child's statistics with those of others added; unchanged if the parent was restarted from an older checkpoint.

        Such a parent lacks observations that this child has. It knows fewer in all, or, if others have pushed since, only its
        version shows it: a restart skips many. From then on the two statistics differ, and each grows by what is new to it.
        """
        mine, theirs, all_ = given.now.counts, given.counts, got.normaliser
        if now is None or mine is None or theirs is None or all_ is None:
            return now
        restarted = all_.samples < theirs.samples or got.version - self._base >= RESERVED // 2
        others = empty(len(all_.mean)) if restarted else difference(all_, theirs)
        self._theirs, self._mine = all_, merge(mine, others)
        return merge(now, others)

    def _reply(self, before: Now, now: Now) -> Reply | None:
        weights = now.weights if now.weights is not before.weights and (now.weights != before.weights).any() else None
        others = None
        if now.counts is not None and before.counts is not None and now.counts.samples > before.counts.samples:
            others = self._vectors.statistics(difference(now.counts, before.counts))
        moved = {n: v for n, v in now.moments.items() if (v != before.moments[n]).any()}
        if weights is None and others is None and not moved and not self.told_to_stop:
            return None
        leaves = self._vectors.moment_leaves(moved)
        return Reply(weights=weights, statistics=others, leaves=leaves, stop=self.told_to_stop)


def _unknown(now: Counts | None, mine: Counts | None, theirs: Counts | None) -> tuple[Counts | None, Counts | None]:
    """(observations since `mine`, the parent's statistics with them). None in place of new ones if older ones have faded here."""
    if now is None or mine is None or theirs is None:
        return None, theirs
    if now.samples < mine.samples:
        return None, theirs
    new = difference(now, mine)
    return new, merge(theirs, new)


def _mixed(square: bool, now: np.ndarray, pushed: np.ndarray, parent: np.ndarray, beta: float) -> np.ndarray:
    mixed = adopt(now, pushed, parent, beta)
    return np.maximum(mixed, 0.0) if square else mixed
