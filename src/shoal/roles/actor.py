"""The synchronous actor: fills slots with unrolls, acting with the weights that the schedule names."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import jax

from shoal.acting.collector import Collector
from shoal.core.blueprint import Blueprint
from shoal.core.ports import Board, Stream
from shoal.core.program import Context, Part, Ports, Snapshot, Steps


class Actor:
    """An actor. For each unroll it reads the weights of the version that `schedule` names, fills a slot and pushes it."""

    def __init__(
        self, blueprint: Blueprint, index: int, schedule: Callable[[int], int], ports: Ports, context: Context
    ) -> None:
        self._blueprint, self._lane, self._schedule = blueprint, index, schedule
        self._board: Board = ports["weights"]
        self._stream: Stream = ports["unrolls"]
        self._collector = Collector(blueprint, index, context)

    def run(self) -> Steps:
        layout, lane, start = self._blueprint.layout, self._lane, self._blueprint.start
        # A successor continues where its lane stands.
        for unroll in count(start + self._stream.pushed(lane)):
            version = self._schedule(unroll)
            vector = yield from self._board.read(version)
            slot = yield from self._stream.claim(lane)
            self._collector.collect(jax.device_put(layout.tree(vector)), version, unroll, slot)
            self._stream.push(lane)

    def snapshots(self) -> Snapshot:
        return {f"actor-{self._lane}": Part(self._collector.snapshot())}

    def close(self) -> None:
        self._collector.close()
