"""Actors and a learner apart: nobody waits for anybody, except where a queue is full or empty.

An actor acts by the newest weights that it finds, unroll by unroll. A learner takes so many unrolls, from whichever lanes have
some, and publishes what it learnt. What the actors did (steps, episodes) reaches the main role by a stream of news,
so that nothing is left out that a window replaced or a full queue refused.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import numpy as np

from shoal.core.keys import going_on
from shoal.core.ports import NOT_YET, Board, Op, Slot, Stream
from shoal.core.program import Context, Episode, Part, Ports, Report, Snapshot, Steps
from shoal.core.weights import to_vector
from shoal.roles.actor import Collector
from shoal.roles.episodes import EpisodeTracker
from shoal.roles.intake import Intake, Source
from shoal.roles.learner import Trainer
from shoal.roles.news import NewsFormat
from shoal.roles.parts import Parts

FOREVER = 2**62  # a version that never comes


@dataclass(frozen=True, kw_only=True)
class Freedom:
    """How an actor is bound to the learners."""

    port: str  # the stream that it fills
    lane: int
    lockstep: bool = False  # wait for version n before unroll n+1
    delay: int = 0  # act by weights that are so many versions older than the newest
    refuses: bool = False  # a full queue refuses the unroll, which is then lost, and the actor goes on
    yields: bool = False  # never has to wait, so that it must let others run where all share one thread
    last: int = 0  # unrolls after which it ends; 0 is never


def news_format(parts: Parts) -> NewsFormat:
    """What an actor says after an unroll."""
    return NewsFormat(metrics=("queue/refused",), episodes=parts.unroll * parts.envs)


class FreeActor:
    """Takes the newest weights, fills a slot, pushes it, and so on for ever."""

    def __init__(self, parts: Parts, index: int, freedom: Freedom, ports: Ports, context: Context) -> None:
        self._parts, self._index, self._freedom = parts, index, freedom
        self._board: Board = ports["weights"]
        self._stream: Any = ports[freedom.port]
        self._news: Stream = ports["news"]
        self._format = news_format(parts)
        # Out of step, actors may have made more unrolls than there are versions.
        again = () if freedom.lockstep else going_on(parts.start)
        self._collector = Collector(parts, index, context, again)
        self._tracker = EpisodeTracker(parts.envs)
        if (name := f"told-{index}") in parts.snapshots:
            self._tracker.restore(parts.snapshots[name])
        self._own = parts.record.empty() if freedom.refuses else None
        self._untold: tuple[int, float, list[Episode], int] | None = None

    def run(self) -> Steps:
        parts, free, lane = self._parts, self._freedom, self._freedom.lane
        for unroll in count(parts.start + self._stream.pushed(lane)):
            if free.last and unroll - parts.start >= free.last:
                break
            # Room first, then weights: they are the newest when the unroll begins, however long a full queue made it wait.
            slot = self._own if self._own is not None else (yield from self._stream.claim(lane))
            version, vector = yield from self._weights(unroll)
            self._collector.collect(jax.device_put(parts.layout.tree(vector)), version, unroll, slot)
            ended = self._tracker.take(slot["reward"], slot["boundary"], slot["valid"], slot["first"])
            episodes, began = list(ended), float(slot["clock"][0])
            self._tell(began, episodes, self._push(slot))
            if free.yields:
                yield from turn()
        self._stream.finish(lane)
        yield from self._board.read(FOREVER)

    def _weights(self, unroll: int) -> Generator[Op[Any], Any, tuple[int, np.ndarray]]:
        """(version, vector) to act by."""
        board, free, start = self._board, self._freedom, self._parts.start
        if free.lockstep:
            return unroll, (yield from board.read(unroll))
        while True:
            newest, vector = board.latest()
            wanted = max(start, newest - free.delay)
            if newest == wanted:
                return newest, vector
            try:
                vector = yield from board.read(wanted)
            except LookupError:  # overtaken between the two looks
                continue
            if newest >= 0:
                return wanted, vector

    def _push(self, slot: Slot) -> int:
        """Hand the unroll over; 1 if there was no room for it."""
        lane = self._freedom.lane
        if self._own is not None:
            room: Any = self._stream.claim(lane).attempt()
            if room is NOT_YET:
                return 1
            for name, array in slot.items():
                room[name][...] = array
        self._stream.push(lane)
        return 0

    def _tell(self, began: float, episodes: list[Episode], refused: int) -> None:
        """Say what was done, if there is room to say it; else it waits for the next time, since nobody waits for news."""
        steps = self._parts.unroll * self._parts.envs
        if self._untold is not None:
            before = self._untold
            steps, began, episodes = before[0] + steps, before[1], before[2] + episodes
            refused += before[3]
        while True:
            slot: Any = self._news.claim(self._index).attempt()
            if slot is NOT_YET:
                self._untold = (steps, began, episodes, refused)
                return
            most = self._format.episodes
            self._format.write(slot, steps, began, episodes[:most], {"queue/refused": float(refused)})
            self._news.push(self._index)
            steps, refused, episodes = 0, 0, episodes[most:]
            if not episodes:
                self._untold = None
                return

    def snapshots(self) -> Snapshot:
        """Only in lockstep is an actor between two unrolls when the main role is between two updates."""
        if not self._freedom.lockstep:
            return {}
        return {
            f"actor-{self._index}": Part(self._collector.snapshot()),
            f"told-{self._index}": Part(self._tracker.snapshot()),
        }

    def close(self) -> None:
        self._collector.close()


def turn() -> Op[None]:
    """Let others run: answers when it is asked again."""
    asked: list[bool] = []

    def attempt() -> Any:
        asked.append(True)
        return NOT_YET if len(asked) == 1 else None

    return Op(attempt, lambda seconds: None, "a turn")


class Told:
    """What the actors have said: steps and refusals so far, episodes since the last report."""

    def __init__(self, parts: Parts, ports: Ports) -> None:
        self._news: Stream = ports["news"]
        self._format = news_format(parts)
        self._lanes = range(parts.actors)
        self.steps = 0
        self.refused = 0

    def listen(self) -> tuple[Episode, ...]:
        """The episodes that ended since the last call. Never waits."""
        episodes: list[Episode] = []
        while True:
            got: Any = self._news.take_any(self._lanes).attempt()
            if got is NOT_YET:
                return tuple(episodes)
            lane, slot = got
            news = self._format.read(slot)
            self._news.release(lane)
            self.steps += news.steps
            self.refused += int(news.metrics.get("queue/refused", 0))
            episodes += news.episodes


class FreeLearner:
    """The only learner: takes a batch from whoever has something, updates, publishes, and so on for ever."""

    def __init__(self, parts: Parts, source: Source, lockstep: bool, ports: Ports, context: Context) -> None:
        self._parts, self._source, self._lockstep = parts, source, lockstep
        self._board: Board = ports["weights"]
        self._intake = Intake(parts, 0, source, ports)
        self._told = Told(parts, ports)
        self.trainer = Trainer(parts)

    def run(self) -> Steps:
        trainer, intake, told = self.trainer, self._intake, self._told
        trainer.compile(trainer.actor if self._lockstep else None)
        self._board.publish(trainer.version, to_vector(trainer.actor))
        steps = 0
        while True:
            asked = time.monotonic()
            slots = yield from intake.batch(trainer.version)
            if slots is None:
                return
            waited = time.monotonic() - asked
            report = trainer.learn(slots, trainer.actor if self._lockstep else None, waited, steps)
            published = time.monotonic()
            # Published before the slots are free: an actor that waited for room finds what its unroll led to.
            self._board.publish(trainer.version, to_vector(trainer.actor))
            broadcast = time.monotonic() - published
            intake.release()
            episodes = told.listen()
            steps = told.steps if self._source.lossy else intake.steps
            counts = {**intake.metrics(), "queue/refused": float(told.refused), "time/broadcast": broadcast}
            metrics = {**report.metrics, **counts}
            yield Report(**{**vars(report), "episodes": episodes, "env_steps": steps, "metrics": metrics})

    def snapshots(self) -> Snapshot:
        return self.trainer.snapshots()

    def close(self) -> None:
        return None


def lags_of(slots: Sequence[Slot], version: int) -> np.ndarray:
    """[rows] how many versions old the weights were that acted on each."""
    return version - np.concatenate([slot["version"].ravel() for slot in slots])
