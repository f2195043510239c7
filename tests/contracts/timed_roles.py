"""Roles that take their time: in an environment, or elsewhere."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np
from port_roles import Idle

from shoal.core.program import BoardSpec, Context, Ports, Program, Report, RoleSpec, Steps

PORTS = {"board": BoardSpec(writer="slow", readers=("main", "slow"), size=1, history=2)}
Where = Literal["build", "compute", "env"]


class Slow(Idle):
    """Publishes once it has spent `seconds`: while it is built, between two environment calls, or inside of one."""

    def __init__(self, where: Where, seconds: float, ports: Ports, context: Context) -> None:
        self._where, self._seconds, self._board, self._context = where, seconds, ports["board"], context
        self._call(0.0)
        if where == "build":
            time.sleep(seconds)

    def _call(self, seconds: float) -> None:
        self._context.env(True)
        time.sleep(seconds)
        self._context.env(False)

    def run(self) -> Steps:
        self._call(self._seconds if self._where == "env" else 0.0)
        if self._where == "compute":
            time.sleep(self._seconds)
        self._board.publish(1, np.ones(1, np.float32))
        yield from self._board.read(2**40)


class Waiting(Idle):
    """The main role: reports once the other one has published."""

    def __init__(self, ports: Ports, context: Context) -> None:
        self._board = ports["board"]

    def run(self) -> Steps:
        yield from self._board.read(1)
        yield Report(version=1, env_steps=0, began_at=0.0, ended_at=0.0, episodes=(), metrics={}, state="done")


def program(slow: Any, steps_env: bool = True) -> Program:
    return Program(
        roles=(RoleSpec(name="main", build=Waiting, main=True), RoleSpec(name="slow", build=slow, steps_env=steps_env)),
        ports=PORTS,
    )
