"""Roles that hammer a table: module-level, so that a worker process can import them."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import numpy as np
from port_roles import Idle

from shoal.core.ports import NOT_YET, Op, Roster, Table
from shoal.core.program import Context, Ports, Program, Report, RoleSpec, RosterSpec, Steps, TableSpec

SIZE = 20_000
TURNS = 600


class Pusher(Idle):
    """Adds one to every entry, as often as it gets a turn, and looks for vectors that are half of one version."""

    def __init__(self, worker: int, ports: Ports, context: Context) -> None:
        self._worker = worker
        self._table: Table = ports["table"]
        self._roster: Roster = ports["roster"]
        self._torn: Table = ports["torn"]

    def run(self) -> Steps:
        delta = np.ones(SIZE, np.float32)
        yield from self._roster.meet(self._worker)  # or one would be done before the other is there
        while True:
            yield from self._roster.turn(self._worker)
            version, vector = self._table.pull()
            if (vector != vector[0]).any() or vector[0] != version:
                yield from self._torn.push(self._worker, np.ones(1, np.float32))
            yield from self._table.push(self._worker, delta)
            self._roster.finish(self._worker)


class Watcher(Idle):
    """Opens the roster, waits until all turns are done, and reports what the table holds then."""

    def __init__(self, ports: Ports, context: Context) -> None:
        self._ports, self._turns = ports, TURNS
        self._roster: Roster = ports["roster"]

    def run(self) -> Steps:
        self._ports["table"].put(np.zeros(SIZE, np.float32))
        self._roster.open()
        yield from Op(lambda: None if self._roster.finished() >= TURNS else NOT_YET, self._wait, "the last turn")
        table = self._ports["table"]
        count, vector = table.pull()
        turns = [self._roster.turns(worker) for worker in range(2)]
        state: Any = {"count": count, "vector": vector, "lost": table.lost(), "turns": turns}
        state["torn"] = float(self._ports["torn"].pull()[1][0])
        yield Report(version=1, env_steps=0, began_at=0.0, ended_at=0.0, episodes=(), metrics={}, state=state)

    def _wait(self, seconds: float) -> None:
        self._ports["table"]._waits(min(seconds, 0.05))


class Dying(Pusher):
    """Dies inside a push, in the middle of writing; its successor does not."""

    def run(self) -> Steps:
        if self._worker == 0 and self._torn.pull()[0] == 0:
            yield from self._torn.push(0, np.zeros(1, np.float32))
            yield from self._roster.turn(0)
            vectors = self._table._vectors  # type: ignore[attr-defined]

            def by(versions: Any, rows: Any) -> Any:
                vectors[0, (versions[0] + 1) % 2, : SIZE // 2] = 10**6
                os.kill(os.getpid(), signal.SIGKILL)

            yield from self._table.change([0], by)
        yield from super().run()


def program(consistency: Any, pusher: type[Pusher]) -> Program:
    workers = ("a", "b")
    ports: dict[str, Any] = {
        "table": TableSpec(workers=workers, size=SIZE, consistency=consistency),
        "torn": TableSpec(workers=workers, size=1, consistency="lock"),
        "roster": RosterSpec(workers=workers, watcher="main", start=0, end=TURNS),
    }
    roles = [RoleSpec(name="main", build=Watcher, main=True)]
    roles += [RoleSpec(name=name, build=partial(pusher, i)) for i, name in enumerate(workers)]
    return Program(roles=tuple(roles), ports=ports)
