"""Roles that write into a pool and read from it: module-level, so that a worker process can import them."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from port_roles import Idle

from shoal.core.ports import Pool
from shoal.core.program import Context, PoolSpec, Ports, Program, Report, RoleSpec, Steps, StreamSpec
from shoal.core.record import Field, Record

WRITERS, SLOTS, READS = 2, 64, 3000
ROW = Record((Field("first", (), "int64"), Field("body", (400,), "int64"), Field("last", (), "int64")))
WORD = Record((Field("word", (), "int64"),))


class Writer(Idle):
    """Rows that are one number all over, in bunches of changing size, until nobody asks any more."""

    def __init__(self, ring: int, ports: Ports, context: Context) -> None:
        self._ring, self._pool, self._stream = ring, ports["pool"], ports["turns"]

    def run(self) -> Steps:
        number, bunch = self._ring * 10**9, 1
        while True:
            yield from self._stream.claim(self._ring)
            for _ in range(20):
                bunch = bunch % 13 + 1
                numbers = np.arange(number, number + bunch)
                body = np.repeat(numbers[:, None], 400, axis=1)
                self._pool.write(self._ring, {"first": numbers, "body": body, "last": numbers})
                number += bunch
            self._stream.push(self._ring)


class Reader(Idle):
    """Reads all rings at once, again and again, and reports what it saw."""

    def __init__(self, ports: Ports, context: Context) -> None:
        self._pool: Pool = ports["pool"]
        self._stream = ports["turns"]

    def run(self) -> Steps:
        seen = {"rows": 0, "torn": 0, "foreign": 0, "overwritten": 0, "missing": 0}
        indices = np.arange(WRITERS * SLOTS)
        for lane in range(WRITERS):
            yield from self._stream.take(lane)
            self._stream.release(lane)
        for turn in range(READS):
            for lane in range(WRITERS):
                if turn % 5 == 0 and self._stream.depth(lane):
                    yield from self._stream.take(lane)
                    self._stream.release(lane)
            counts = self._pool.counts()
            rows, whole = self._pool.read(indices, counts)
            same = (rows["body"] == rows["first"][:, None]).all(axis=1) & (rows["first"] == rows["last"])
            number, ring = rows["first"] % 10**9, indices // SLOTS
            seen["rows"] += int(whole.sum())
            seen["torn"] += int((whole & ~same).sum())
            seen["foreign"] += int((whole & (rows["first"] // 10**9 != ring)).sum())
            seen["overwritten"] += int((~whole).sum())
            # Each row that is whole is among the newest of its ring as it stood at `counts`.
            seen["missing"] += int((whole & ~((number < counts[ring]) & (number >= counts[ring] - SLOTS))).sum())
        now = time.monotonic()
        yield Report(version=1, env_steps=0, began_at=now, ended_at=now, episodes=(), metrics={}, state=seen)


def hammer() -> Program:
    writers = tuple(f"writer-{i}" for i in range(WRITERS))
    return Program(
        roles=(
            RoleSpec(name="reader", build=Reader, main=True),
            *(RoleSpec(name=name, build=partial(Writer, i)) for i, name in enumerate(writers)),
        ),
        ports={
            "pool": PoolSpec(workers=WRITERS, slots=SLOTS, record=ROW),
            "turns": StreamSpec(producers=writers, consumer="reader", depth=2, record=WORD),
        },
    )
