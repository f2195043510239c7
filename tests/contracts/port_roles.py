"""Roles that hammer the ports: module-level, so that a worker process can import them."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import numpy as np

from shoal.core.ports import Board, Stream
from shoal.core.program import BoardSpec, Context, Ports, Program, Report, RoleSpec, Steps, StreamSpec
from shoal.core.record import Field, Record

PUSHES = 2000  # of each producer, while the writer hammers
BURST = 8  # versions between two slots
LOCKSTEP = 200  # versions that are read one by one afterwards
SIZE = 20_000  # floats of the board: copying them takes long enough to be caught halfway
RECORD = Record(
    (
        Field("number", (), "int64"),
        Field("version", (), "int64"),
        Field("torn", (), "bool"),
        Field("body", (64,), "int64"),
    )
)


class Idle:
    """What roles need besides their loop."""

    def snapshots(self) -> dict[str, dict[str, np.ndarray]]:
        return {}

    def close(self) -> None:
        return None


class Producer(Idle):
    """Pushes numbered slots, and in each what it saw of the board; then reads versions one by one."""

    def __init__(self, lane: int, ports: Ports, context: Context) -> None:
        self._lane, self._random = lane, random.Random(lane)
        self._stream: Stream = ports["stream"]
        self._board: Board = ports["board"]

    def run(self) -> Steps:
        for number in range(PUSHES):
            version, vector = self._board.latest()
            slot = yield from self._stream.claim(self._lane)
            self._fill(slot, number, version, bool((vector != max(version, 0)).any()))
            if self._random.random() < 0.02:
                time.sleep(self._random.random() * 3e-4)
            self._stream.push(self._lane)
        first = None
        for step in range(LOCKSTEP):
            if first is None:
                slot = yield from self._stream.claim(self._lane)
                self._fill(slot, PUSHES, -1, False)
                self._stream.push(self._lane)
                first = 10**6
            vector = yield from self._board.read(first + step)
            slot = yield from self._stream.claim(self._lane)
            self._fill(slot, PUSHES + 1 + step, int(vector[0]), bool((vector != vector[0]).any()))
            self._stream.push(self._lane)
        yield from self._board.read(2**40)

    def _fill(self, slot: dict[str, np.ndarray], number: int, version: int, torn: bool) -> None:
        slot["body"][...] = number
        slot["number"][...] = number
        slot["version"][...] = version
        slot["torn"][...] = torn


class Consumer(Idle):
    """Publishes as fast as it can while it takes; reports what came out of each lane."""

    def __init__(self, lanes: int, ports: Ports, context: Context) -> None:
        self._lanes, self._random = lanes, random.Random(99)
        self._stream: Stream = ports["stream"]
        self._board: Board = ports["board"]

    def run(self) -> Steps:
        vector, version = np.zeros(SIZE, np.float32), 0
        seen: list[list[tuple[int, int, bool, bool]]] = [[] for _ in range(self._lanes)]

        def note(lane: int, slot: dict[str, np.ndarray]) -> None:
            number = int(slot["number"])
            whole = bool((slot["body"] == number).all())
            seen[lane].append((number, int(slot["version"]), bool(slot["torn"]), whole))
            self._stream.release(lane)

        for _ in range(PUSHES + 1):
            for lane in range(self._lanes):
                for _ in range(BURST):  # a reader that is copying is overtaken, and more than once
                    vector[:] = version
                    self._board.publish(version, vector)
                    version += 1
                slot = yield from self._stream.take(lane)
                if self._random.random() < 0.02:
                    time.sleep(self._random.random() * 3e-4)
                note(lane, slot)
        for step in range(LOCKSTEP):
            vector[:] = step
            self._board.publish(10**6 + step, vector)
            for lane in range(self._lanes):
                slot = yield from self._stream.take(lane)
                note(lane, slot)
        yield Report(version=0, env_steps=0, began_at=0.0, ended_at=0.0, episodes=(), metrics={}, state=seen)


def hammer(lanes: int) -> Program:
    names = tuple(f"producer-{lane}" for lane in range(lanes))
    roles = [RoleSpec(name="consumer", build=partial(Consumer, lanes), main=True)]
    roles += [RoleSpec(name=name, build=partial(Producer, lane)) for lane, name in enumerate(names)]
    ports: dict[str, Any] = {
        "stream": StreamSpec(producers=names, consumer="consumer", depth=2, record=RECORD),
        "board": BoardSpec(writer="consumer", readers=names, size=SIZE, history=2),
    }
    return Program(roles=tuple(roles), ports=ports)
