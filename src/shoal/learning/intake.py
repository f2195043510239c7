"""A learner's intake of unrolls: from its lanes, in the order of the selection, without those that are too old."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.core.blueprint import Blueprint
from shoal.core.keys import LEARNING
from shoal.core.ports import NOT_YET, Op, Slot
from shoal.core.program import Ports


@dataclass(frozen=True, kw_only=True)
class BatchSource:
    """The stream and lanes that a learner takes from."""

    port: str
    lanes: tuple[int, ...]  # its own
    shared: bool = False  # others take from this stream too, or it is not a plain queue
    window: bool = False
    shuffled: bool = False  # lanes in random order, else in turn
    max_lag: int | None = None  # older unrolls are dropped
    reread: bool = False  # a window may be read again even if it holds nothing new
    ends: bool = False  # actors may end: a learner that has none left helps the others
    lossy: bool = False  # learners do not see every unroll


class Intake:
    """A learner's end of the stream."""

    def __init__(self, blueprint: Blueprint, learner: int, source: BatchSource, ports: Ports) -> None:
        self._blueprint, self._source = blueprint, source
        self._stream: Any = ports[source.port]
        if source.shared:
            self._stream = self._stream.end_of(learner, source.reread)
        self._rng = np.random.default_rng(np.random.SeedSequence(blueprint.seed, spawn_key=(LEARNING, 2**20 + learner)))
        self._next = 0
        self._held: list[tuple[int, Slot]] = []
        self.taken = 0  # unrolls
        self.dropped = 0  # unrolls of these that were too old or whose update was abandoned
        self.helped = 0  # unrolls of these from actors of other learners
        self._give_back()

    def _give_back(self) -> None:
        """Free the slots that a predecessor took and never released; their unrolls are lost.

        In lockstep the unrolls are taken again, because the actors wait for the weights that result from them.
        """
        for lane in range(self._stream.lanes):
            if self._source.max_lag == 0 and not self._source.shared:
                self._stream.untake(lane)
                continue
            while True:
                try:
                    self._stream.release(lane)
                except RuntimeError:
                    break

    @property
    def steps(self) -> int:
        """Environment steps of all unrolls taken."""
        return self.taken * self._blueprint.unroll * self._blueprint.envs

    def batch(self, version: int) -> Generator[Op[Any], Any, list[Slot] | None]:
        """The unrolls of the next update, by lane; None if the actors have ended and none is left."""
        self._held = []
        while len(self._held) < self._blueprint.batch:
            got = yield from self._any()
            if got is None:
                self.drop()
                return None
            lane, slot = got
            self.taken += 1
            most = self._source.max_lag
            if most is not None and version - int(slot["version"].min()) > most:
                if self._source.shared:  # discard the last copy only: a stack hands out older unrolls later
                    self._stream.discard(lane)
                else:
                    self._stream.release(lane)
                self.dropped += 1
                continue
            self._held.append(got)
        self._held.sort(key=lambda pair: pair[0])  # the order of arrival must not matter
        return [slot for _, slot in self._held]

    def _any(self) -> Op[tuple[int, Slot] | None]:
        stream, own = self._stream, self._order()
        first = stream.take_any(own)
        if not self._source.ends:
            return self._counted(first)

        def attempt() -> Any:
            got = first.attempt()
            if got is not NOT_YET:
                return got
            active = stream.active()
            if active[list(self._source.lanes)].any():
                return NOT_YET
            others = np.flatnonzero(active)
            if not len(others):
                return None
            got = stream.take_any(self._rng.permutation(others).tolist()).attempt()
            self.helped += got is not NOT_YET
            return got

        return self._counted(Op(attempt, first.wait, first.what))

    def _counted(self, op: Op[Any]) -> Op[Any]:
        def attempt() -> Any:
            got: Any = op.attempt()
            if got is not NOT_YET and got is not None:
                self._next = got[0] + 1
            return got

        return Op(attempt, op.wait, op.what)

    def _order(self) -> Sequence[int]:
        """The lanes in the order in which they are checked: random, or each in turn."""
        lanes = self._source.lanes
        if self._source.shuffled:
            return [lanes[i] for i in self._rng.permutation(len(lanes))]
        turned = [i for i, lane in enumerate(lanes) if lane >= self._next]
        first = turned[0] if turned else 0
        return [*lanes[first:], *lanes[:first]]

    def release(self) -> None:
        """Free the slots of the batch, which has been learnt from."""
        for lane, _ in self._held:
            self._stream.release(lane)
        self._held = []

    def drop(self) -> None:
        """Abandon the batch. In lockstep it is taken again, as by a successor."""
        if self._source.max_lag == 0 and not self._source.shared:
            self.taken -= len(self._held)
            for lane, _ in self._held:
                self._stream.untake(lane)
            self._held = []
            return
        self.dropped += len(self._held)
        self.release()

    def metrics(self) -> dict[str, float]:
        """Counts so far, and the number of waiting unrolls."""
        depth = sum(self._stream.depth(lane) for lane in self._source.lanes)
        found = {"queue/depth": float(depth), "lag/dropped": float(self.dropped)}
        if self._source.window:
            reads = self._stream.collisions()
            found |= {"window/reads": float(reads[:, 0].sum()), "window/collisions": float(reads[:, 1].sum())}
            found |= {"window/lost": float(self._stream.lost())}
        if self._source.ends:
            found["queue/helped"] = float(self.helped)
        return found
