"""Roles that push and take numbered slots with random delays: module-level, so that a worker process can import them."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import numpy as np
from port_roles import Idle

from shoal.core.program import BoardSpec, Context, Ports, Program, Report, RoleSpec, Steps, StreamSpec
from shoal.core.record import Field, Record

RECORD = Record((Field("number", (), "int64"), Field("body", (16,), "int64")))


class Producer(Idle):
    """Pushes the numbers from 0 on."""

    def __init__(self, lane: int, pushes: int, ports: Ports, context: Context) -> None:
        self._lane, self._pushes, self._random = lane, pushes, random.Random(lane)
        self._stream: Any = ports["stream"]
        self._board = ports["board"]

    def run(self) -> Steps:
        for number in range(self._pushes):
            slot = yield from self._stream.claim(self._lane)
            slot["body"][...], slot["number"][...] = number, number
            if self._random.random() < 1e-3:
                time.sleep(self._random.random() * 2e-4)
            self._stream.push(self._lane)
        yield from self._board.read(2**40)


class Consumer(Idle):
    """Takes whatever comes, and counts: each lane's numbers in order, none missing, none twice, all whole."""

    def __init__(self, lanes: int, pushes: int, ports: Ports, context: Context) -> None:
        self._lanes, self._pushes, self._random = lanes, pushes, random.Random(99)
        self._stream: Any = ports["stream"]

    def run(self) -> Steps:
        stream, expected, torn = self._stream, np.zeros(self._lanes, np.int64), 0
        order = list(range(self._lanes))
        wrong: list[tuple[int, int, int]] = []
        for taken in range(self._lanes * self._pushes):
            lane, slot = yield from stream.take_any(order)
            number = int(slot["number"])
            if number != expected[lane]:
                wrong.append((lane, int(expected[lane]), number))
            torn += bool((slot["body"] != number).any())
            expected[lane] = number + 1
            stream.release(lane)
            order.append(order.pop(0))
            if self._random.random() < 1e-3:
                time.sleep(self._random.random() * 2e-4)
            if taken % 5000 == 0 and wrong:
                break
        state = {"wrong": wrong[:5], "torn": torn, "counts": expected.tolist()}
        yield Report(version=0, env_steps=0, began_at=0.0, ended_at=0.0, episodes=(), metrics={}, state=state)


def numbered(lanes: int, pushes: int, **spec: Any) -> Program:
    names = tuple(f"producer-{lane}" for lane in range(lanes))
    roles = [RoleSpec(name="consumer", build=partial(Consumer, lanes, pushes), main=True)]
    roles += [RoleSpec(name=name, build=partial(Producer, lane, pushes)) for lane, name in enumerate(names)]
    ports: dict[str, Any] = {
        "stream": StreamSpec(producers=names, consumer="consumer", depth=4, record=RECORD, **spec),
        "board": BoardSpec(writer="consumer", readers=names, size=1, history=2),
    }
    return Program(roles=tuple(roles), ports=ports)
