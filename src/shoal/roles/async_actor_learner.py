"""Asynchronous actors and learners: they wait for each other only if a queue is full or empty.

For each unroll, an actor takes the newest weights. A learner takes a batch of unrolls, from any lanes that have some, and
publishes new weights. A stream of news brings the actors' steps and episodes to the main role, including those of unrolls that
a window replaced or a full queue refused.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import jax
import numpy as np

from shoal.acting.collector import Collector
from shoal.acting.episodes import EpisodeTracker
from shoal.core.algorithm import LearnerState
from shoal.core.blueprint import Blueprint
from shoal.core.keys import resumed_at
from shoal.core.ports import NOT_YET, Board, Op, Slot, Stream
from shoal.core.program import Context, Episode, Part, Ports, Report, Snapshot, Steps
from shoal.core.telemetry import News, NewsFormat
from shoal.learning.intake import BatchSource, Intake
from shoal.learning.update import Update

FOREVER = 2**62  # a version that is never published


@dataclass(frozen=True, kw_only=True)
class ActorPolicy:
    """How an actor is coupled to the learners."""

    port: str  # the stream that it fills
    lane: int
    lockstep: bool = False  # wait for version n before unroll n+1
    delay: int = 0  # act with weights this many versions older than the newest
    refuses: bool = False  # a full queue refuses the unroll, which is then lost, and the actor continues
    yields: bool = False  # never has to wait, so it must let others run if all share one thread
    last: int = 0  # unrolls after which it ends; 0 means never


def news_format(blueprint: Blueprint) -> NewsFormat:
    """The news of an actor after an unroll; `last` marks the final piece of an actor that has ended."""
    return NewsFormat(metrics=("queue/refused", "last"), episodes=blueprint.unroll * blueprint.envs)


class AsyncActor:
    """An actor that does not wait for learners. For each unroll it takes the newest weights, fills a slot and pushes it."""

    def __init__(self, blueprint: Blueprint, index: int, policy: ActorPolicy, ports: Ports, context: Context) -> None:
        self._blueprint, self._index, self._policy = blueprint, index, policy
        self._board: Board = ports["weights"]
        self._stream: Any = ports[policy.port]
        self._news: Stream = ports["news"]
        self._format = news_format(blueprint)
        # Without lockstep, actors may have made more unrolls than there are versions.
        again = () if policy.lockstep else resumed_at(blueprint.start)
        self._collector = Collector(blueprint, index, context, again)
        self._tracker = EpisodeTracker(blueprint.envs)
        if (name := f"news-{index}") in blueprint.snapshots:
            self._tracker.restore(blueprint.snapshots[name])
        self._own = blueprint.record.empty() if policy.refuses else None
        self._unsent: News | None = None

    def run(self) -> Steps:
        blueprint, policy, lane = self._blueprint, self._policy, self._policy.lane
        for unroll in count(blueprint.start + self._stream.pushed(lane)):
            if policy.last and unroll - blueprint.start >= policy.last:
                break
            # First room, then weights, so that the weights are the newest even after a long wait for room.
            slot = self._own if self._own is not None else (yield from self._stream.claim(lane))
            version, vector = yield from self._weights(unroll)
            self._collector.collect(jax.device_put(blueprint.layout.tree(vector)), version, unroll, slot)
            ended = self._tracker.take(slot["reward"], slot["boundary"], slot["valid"], slot["first"])
            episodes, began = tuple(ended), float(slot["clock"][0])
            self._send_news(began, episodes, self._push(slot))
            if policy.yields:
                yield from turn()
        # First, so that no learner waits for this lane while the actor waits for room for its last news.
        self._stream.finish(lane)
        while self._unsent is not None:
            self._unsent = self._send((yield from self._news.claim(self._index)), self._unsent)
        self._format.write((yield from self._news.claim(self._index)), 0, time.monotonic(), (), {"last": 1.0})
        self._news.push(self._index)
        yield from self._board.read(FOREVER)

    def _weights(self, unroll: int) -> Generator[Op[Any], Any, tuple[int, np.ndarray]]:
        """(version, vector) to act with."""
        board, policy, start = self._board, self._policy, self._blueprint.start
        if policy.lockstep:
            return unroll, (yield from board.read(unroll))
        while True:
            newest, vector = board.latest()
            wanted = max(start, newest - policy.delay)
            if newest == wanted:
                return newest, vector
            try:
                vector = yield from board.read(wanted)
            except LookupError:  # overwritten between the two reads
                continue
            if newest >= 0:
                return wanted, vector

    def _push(self, slot: Slot) -> int:
        """Hand the unroll over. Returns 1 if there was no room for it, else 0."""
        lane = self._policy.lane
        if self._own is not None:
            room: Any = self._stream.claim(lane).attempt()
            if room is NOT_YET:
                return 1
            for name, array in slot.items():
                room[name][...] = array
        self._stream.push(lane)
        return 0

    def _send_news(self, began: float, episodes: tuple[Episode, ...], refused: int) -> None:
        """Send the news, or keep it for the next unroll if there is no room: an actor never waits for room."""
        steps, before = self._blueprint.unroll * self._blueprint.envs, self._unsent
        if before is not None:
            steps, began, episodes = before.steps + steps, before.began, before.episodes + episodes
            refused += int(before.metrics["queue/refused"])
        unsent: News | None = News(steps, began, began, episodes, {"queue/refused": float(refused)})
        while unsent is not None and (slot := self._news.claim(self._index).now()) is not None:
            unsent = self._send(slot, unsent)
        self._unsent = unsent

    def _send(self, slot: Slot, news: News) -> News | None:
        """Send as much of the news as fits into a slot. Returns the rest, if any."""
        most = self._format.episodes
        self._format.write(slot, news.steps, news.began, news.episodes[:most], news.metrics)
        self._news.push(self._index)
        rest = news.episodes[most:]
        return News(0, news.began, news.began, rest, {"queue/refused": 0.0}) if rest else None

    def snapshots(self) -> Snapshot:
        """{} without lockstep: only in lockstep is an actor between two unrolls when the main role is between two updates."""
        if not self._policy.lockstep:
            return {}
        return {
            f"actor-{self._index}": Part(self._collector.snapshot()),
            f"news-{self._index}": Part(self._tracker.snapshot()),
        }

    def close(self) -> None:
        self._collector.close()


def turn() -> Op[None]:
    """Let other roles run: succeeds at the second attempt."""
    asked: list[bool] = []

    def attempt() -> Any:
        asked.append(True)
        return NOT_YET if len(asked) == 1 else None

    return Op(attempt, lambda seconds: None, "a turn")


class ActorNews:
    """The actors' news: steps and refusals so far, episodes since the last report."""

    def __init__(self, blueprint: Blueprint, ports: Ports) -> None:
        self._news: Stream = ports["news"]
        self._format = news_format(blueprint)
        self._lanes = range(blueprint.actors)
        self.steps = 0
        self.refused = 0
        self._ended: set[int] = set()  # lanes of actors that have sent their last news

    def listen(self) -> tuple[Episode, ...]:
        """The episodes that ended since the last call. Never waits."""
        episodes: list[Episode] = []
        while (got := self._news.take_any(self._lanes).now()) is not None:
            episodes += self._take(*got)
        return tuple(episodes)

    def rest(self) -> Generator[Op[Any], Any, tuple[Episode, ...]]:
        """As `listen`, after waiting for the last news of all actors."""
        episodes = list(self.listen())
        while len(self._ended) < len(self._lanes):
            episodes += self._take(*(yield from self._news.take_any(self._lanes)))
        return tuple(episodes)

    def _take(self, lane: int, slot: Slot) -> tuple[Episode, ...]:
        news = self._format.read(slot)
        self._news.release(lane)
        self.steps += news.steps
        self.refused += int(news.metrics.get("queue/refused", 0))
        if "last" in news.metrics:
            self._ended.add(lane)
        return news.episodes


class AnyUnrolls:
    """The feed of `actor_learner`: unrolls from any actors that have some. Episodes come from the actors' news."""

    update: Update | None = None

    def __init__(self, source: BatchSource, blueprint: Blueprint, ports: Ports, context: Context) -> None:
        self._lossy = source.lossy
        self._intake = Intake(blueprint, 0, source, ports)
        self._actor_news = ActorNews(blueprint, ports)

    def batch(self, version: int) -> Generator[Op[Any], Any, Sequence[Slot] | None]:
        return (yield from self._intake.batch(version))

    def release(self) -> None:
        self._intake.release()

    def announce(self, version: int, state: LearnerState) -> None:
        return None

    def _steps(self) -> int:
        """Environment steps of all unrolls so far, including lost ones."""
        return self._actor_news.steps if self._lossy else self._intake.steps

    def complete(self, report: Report) -> Report:
        episodes = self._actor_news.listen()
        counts = {**self._intake.metrics(), "queue/refused": float(self._actor_news.refused)}
        return replace(report, episodes=episodes, env_steps=self._steps(), metrics={**report.metrics, **counts})

    def rest(self, report: Report | None) -> Generator[Op[Any], Any, Report | None]:
        episodes = yield from self._actor_news.rest()
        steps = self._steps()
        if report is None or (not episodes and steps == report.env_steps):
            return None
        return last_report(report, steps, episodes)


def last_report(before: Report, steps: int, episodes: tuple[Episode, ...]) -> Report:
    """The final report, when all actors have ended and their last unrolls made no update."""
    metrics = {name: value for name, value in before.metrics.items() if not name.startswith("time/")}
    return replace(before, env_steps=steps, episodes=episodes, metrics=metrics, lags={})
