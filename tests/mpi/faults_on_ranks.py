"""Run by `mpiexec -n 2` on both ranks: roles that are slow, hang or cannot be made. Prints lines of JSON; the word says which."""

from __future__ import annotations

import gc
import json
import sys
import time
import tracemalloc
from functools import partial
from typing import Any, Literal

import numpy as np
from port_roles import Idle

from shoal.core.errors import RunFailed
from shoal.core.program import Context, GroupSpec, Ports, Program, Report, RoleSpec, Steps, StreamSpec
from shoal.core.record import Field, Record
from shoal.process.mpi_environment import follows
from shoal.runtimes import mpi
from shoal.runtimes.mpi_ports import RmaGroup
from shoal.runtimes.ranks import leave, ranks
from shoal.runtimes.windows import Nap

TIMEOUT = 1.0  # seconds of a step
WINDOWS: tuple[Literal["shared"], Literal["rma"]] = ("shared", "rma")
GROUPS = 2100  # MPICH has 2048 communicators at once
LONG = 1 << 20  # numbers of a vector


class Sleeper(Idle):
    """Silent for some seconds, in an environment or elsewhere, then pushes a slot."""

    def __init__(self, seconds: float, inside: bool, ports: Ports, context: Context) -> None:
        self._seconds, self._inside, self._stream, self._context = seconds, inside, ports["stream"], context

    def run(self) -> Steps:
        if self._inside:
            self._context.env(True)
        time.sleep(self._seconds)
        if self._inside:
            self._context.env(False)
        yield from self._stream.claim(0)
        self._stream.push(0)


class Taker(Idle):
    def __init__(self, ports: Ports, context: Context) -> None:
        self._stream = ports["stream"]

    def run(self) -> Steps:
        yield from self._stream.take(0)
        yield Report(version=1, env_steps=0, began_at=0.0, ended_at=0.0, episodes=(), metrics={}, state=None)


class StickySleeper(Sleeper):
    """Waits until it is told to stop, and cannot be closed."""

    def run(self) -> Steps:
        yield from super().run()
        yield from self._stream.claim(0)

    def close(self) -> None:
        raise OSError("sticky")


class StickyTaker(Taker):
    close = StickySleeper.close


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def start(
    seconds: float,
    inside: bool = True,
    helper: Any = None,
    windows: Literal["shared", "rma"] = "shared",
    roles: tuple[Any, Any] = (Taker, Sleeper),
) -> mpi.MpiSession:
    sleeper = RoleSpec(name="actor-1", build=partial(roles[1], seconds, inside), steps_env=True)
    record = Record((Field("number", (), "int64"),))
    program = Program(
        roles=(RoleSpec(name="learner-0", build=roles[0], main=True), sleeper),
        ports={"stream": StreamSpec(producers=(sleeper.name,), consumer="learner-0", depth=1, record=record)},
        helper=helper,
    )
    config = mpi.MpiConfig(step_timeout=TIMEOUT, pin=False, windows=windows)
    return mpi.Mpi(config).start(program, lambda: False)


def slow() -> None:
    """A role computes for longer than a step may take; then a step hangs."""
    mpi.Mpi.join()
    for windows in WINDOWS:
        session = start(3 * TIMEOUT, inside=False, windows=windows)
        report = next(iter(session))
        session.close()
        say(version=report.version)  # type: ignore[union-attr]
    for windows in WINDOWS:
        session = start(3 * TIMEOUT, windows=windows)
        try:
            next(iter(session))
        except RunFailed as error:
            say(error=str(error))
        session.close()


def lost() -> None:
    """The other rank does not come back, and a script goes on regardless."""
    mpi.Mpi.join()
    mpi.FAREWELL = 0.5
    session = start(1000)
    try:
        next(iter(session))
    except RunFailed as error:
        say(first=str(error))
    session.close()
    try:
        start(0)
    except RunFailed as error:
        say(second=str(error))


def sticky() -> None:
    """No role can be closed. A second run follows, so no rank was lost."""
    mpi.Mpi.join()
    for _ in range(2):
        session = start(0.0, roles=(StickyTaker, StickySleeper))
        next(iter(session))
        say(faults=sorted((fault.role, fault.kind, fault.detail.splitlines()[-1]) for fault in session.close()))


def missing() -> None:
    """The other rank lacks a package that the program names."""
    if follows():
        sys.modules["group_env"] = None  # type: ignore[assignment]
    mpi.Mpi.join()
    from group_env import SumEnv

    start(0, helper=SumEnv.serve)


def rounds() -> None:
    """A member comes to a round and is stopped there, while the other never comes."""
    here, bell = ranks(), Nap(lambda: None)

    def group(size: int) -> RmaGroup:
        return RmaGroup(GroupSpec(members=2, size=size, roles=("a", "b")), here, {"a": 0, "b": 1}, bell)

    long = group(LONG)
    if here.rank == 1:
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        long.mean(1, np.zeros(LONG, np.float32))  # nobody keeps the answer
        gc.collect()
        say(held=tracemalloc.get_traced_memory()[0] - before, buffers=3 * 4 * LONG)
        tracemalloc.stop()
    long.free()
    for number in range(GROUPS):
        short = group(4)
        if here.rank == number % 2:
            short.mean(here.rank, np.zeros(1 + number % 4, np.float32))
        short.free()
    if here.rank == 0:
        say(groups=GROUPS)
    leave(0)


if __name__ == "__main__":
    {"slow": slow, "lost": lost, "sticky": sticky, "missing": missing, "rounds": rounds}[sys.argv[1]]()
