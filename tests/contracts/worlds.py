"""The ports of every runtime as tests see them. A further runtime is one more entry of `WORLDS` and `CONCURRENT`."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from shoal.core.ports import NOT_YET, Op
from shoal.core.program import PortSpec
from shoal.runtimes.inline import inline_ports
from shoal.runtimes.memory import Place, arena_size, plain_ports, private_arena
from shoal.runtimes.processes import EventfdBell, file_locks
from shoal.runtimes.threads import EventBell, Locks

Ends = dict[str, dict[str, Any]]  # role -> the ports as that role sees them
World = Callable[[Mapping[str, PortSpec], list[str]], Ends]


def inline_world(specs: Mapping[str, PortSpec], roles: list[str]) -> Ends:
    return dict.fromkeys(roles, inline_ports(specs, roles))


def threads_world(specs: Mapping[str, PortSpec], roles: list[str]) -> Ends:
    arena, bells = private_arena(specs), {role: EventBell() for role in roles}
    locks = Locks()
    return {role: plain_ports(specs, arena, Place(role, bells, locks)) for role in roles}


def processes_world(specs: Mapping[str, PortSpec], roles: list[str]) -> Ends:
    """Each role has a mapping of its own over one memory without a name, as each process has."""
    size = arena_size(specs)
    arena = os.memfd_create("test")
    os.ftruncate(arena, size)
    bells = {role: EventfdBell(os.eventfd(0, os.EFD_NONBLOCK)) for role in roles}
    # One process here: record locks do not exclude it from itself, which the tests with real processes do.
    return {
        role: plain_ports(specs, memoryview(mmap.mmap(arena, size)), Place(role, bells, file_locks(arena)))
        for role in roles
    }


WORLDS: dict[str, World] = {"inline": inline_world, "threads": threads_world, "processes": processes_world}
CONCURRENT = ("inline", "threads", "processes")


def answer(op: Op[Any], seconds: float = 60.0) -> Any:
    """What a role would get, which may sleep meanwhile."""
    deadline = time.monotonic() + seconds
    while (got := op.attempt()) is NOT_YET:
        assert time.monotonic() < deadline, f"still waiting for {op.what}"
        if op.wait is not None:
            op.wait(0.01)
    return got


def waits(op: Op[Any]) -> bool:
    return op.attempt() is NOT_YET


def slept(op: Op[Any], act: Callable[[], None], early: bool) -> float:
    """Seconds that a wait for `op` took when the other side acts before it, or during it."""
    assert waits(op) and op.wait is not None
    timer = threading.Timer(0.05, act)
    if early:
        act()
    else:
        timer.start()
    before = time.monotonic()
    op.wait(10.0)
    took = time.monotonic() - before
    if not early:
        timer.join()
    assert not waits(op)
    return took
