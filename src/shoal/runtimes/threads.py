"""`threads`: one thread a role, the main role in the caller's. Nothing is copied between them.

JAX and EnvPool release the interpreter's lock, so that threads are real parallelism for native environments. A thread cannot
be killed: an environment that hangs ends the run here, and is replaced under `processes`.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shoal.core.config import PositiveFloat
from shoal.core.errors import RunFailed, ShoalError
from shoal.core.program import Context, Fault, Program, RoleSpec, Snapshot
from shoal.runtimes.memory import PLAIN, Lock, Place, plain_ports, private_arena
from shoal.runtimes.session import START_TIMEOUT, Event, Stopped, drive, lasting

PAUSE = 0.2  # seconds between two looks at the other roles while waiting
JOIN = 2.0  # seconds that closing waits for threads, each of which ends after its step; one that hangs is left behind


@dataclass(frozen=True, kw_only=True)
class ThreadsConfig:
    """One thread an actor."""

    step_timeout: PositiveFloat = 60.0
    """seconds that one step of an actor's environments may take before it counts as hung"""
    pin: bool = True
    """keep each actor on a core of its own"""


class Threads:
    Config = ThreadsConfig
    provides = frozenset(PLAIN)
    overlaps = True
    about = "a thread an actor: no copies, real parallelism for EnvPool and JAX environments"

    def __init__(self, config: ThreadsConfig) -> None:
        self.config = config

    def start(self, program: Program, stopping: Callable[[], bool]) -> ThreadsSession:
        return ThreadsSession(program, self.config, stopping)


def aside(target: Callable[[], None]) -> None:
    """Run `target` beside everything else; it ends with the process."""
    threading.Thread(target=target, name="shoal-aside", daemon=True).start()


class EventBell:
    """A bell between threads."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)
        self._event.clear()


class Locks:
    """Locks between threads, made when they are first asked for, by the offset of what they guard."""

    def __init__(self) -> None:
        self._made: dict[int, ThreadLock] = {}
        self._making = threading.Lock()

    def __call__(self, at: int) -> Lock:
        with self._making:
            return self._made.setdefault(at, ThreadLock())


class ThreadLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    def attempt(self) -> bool:
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        self._lock.release()


def pin(core: int | None) -> None:
    """Keep the calling thread on one core, where the system allows it. Threads that it makes stay there too."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[core % len(cores)]})


class ThreadsSession:
    """Worker roles in threads of their own, the main role in the caller's."""

    def __init__(self, program: Program, config: ThreadsConfig, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._config = config
        self._stop = threading.Event()
        self._faults: deque[Fault] = deque()
        self._failures: deque[tuple[str, BaseException]] = deque()
        self._beats: dict[str, float] = {}
        self._ready: set[str] = set()  # roles that are built
        self._bells = {spec.name: EventBell() for spec in program.roles}
        self._arena = private_arena(program.ports)
        self._locks = Locks()
        self._program = program
        self._threads: list[threading.Thread] = []
        self._main: Any = None

    def __iter__(self) -> Iterator[Event]:
        main = next(spec for spec in self._program.roles if spec.main)
        # Worker threads build their roles themselves: what an environment starts must inherit the thread's core.
        for spec in self._program.roles:
            if not spec.main:
                thread = threading.Thread(target=self._work, args=(spec,), name=f"shoal-{spec.name}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._main = main.build(self._ports(main), Context(name=main.name, fault=self._faults.append))
        try:
            for report in drive(self._main.run(), PAUSE, self._watch):
                while self._faults:
                    yield self._faults.popleft()
                if report is not None:
                    yield report
        except Stopped:
            return

    def _ports(self, spec: RoleSpec) -> dict[str, Any]:
        return plain_ports(self._program.ports, self._arena, Place(spec.name, self._bells, self._locks))

    def _work(self, spec: RoleSpec) -> None:
        def beat() -> None:
            """Called at every step and while waiting for others, so that silence means a step that does not return."""
            if spec.what == "actor":
                self._beats[spec.name] = time.monotonic()
            if self._stop.is_set():
                raise Stopped

        role = None
        try:
            beat()
            pin(spec.core if self._config.pin else None)
            role = spec.build(self._ports(spec), Context(name=spec.name, fault=self._faults.append, beat=beat))
            beat()
            self._ready.add(spec.name)  # from here on, silence is the environment's
            for report in drive(role.run(), PAUSE, beat):
                if report is not None:
                    raise RuntimeError(f"{spec.name} is not the main role: it has nothing to report")
        except Stopped:
            return
        except BaseException as error:
            self._failures.append((spec.name, error))
            for bell in self._bells.values():
                bell.ring()
        finally:
            self._beats.pop(spec.name, None)
            if role is not None:
                role.close()

    def _watch(self) -> None:
        """Called while waiting: raise what a thread died of, or that one hangs."""
        if self._stopping():
            raise Stopped
        if self._failures:
            name, error = self._failures.popleft()
            if isinstance(error, ShoalError):
                raise error
            text = "".join(traceback.format_exception(error)).strip()
            raise RunFailed(f"{name} died: {text.splitlines()[-1]}", detail=text) from error
        now = time.monotonic()
        for name, beat in list(self._beats.items()):
            most = self._config.step_timeout if name in self._ready else max(START_TIMEOUT, self._config.step_timeout)
            if now - beat > most:
                what = "has not finished a step" if name in self._ready else "has not started"
                raise RunFailed(
                    f"{name} {what} for {most:g} s: its environment hangs. A thread cannot be killed;"
                    " --runtime processes replaces the actor and goes on"
                )

    def snapshots(self) -> Snapshot:
        return lasting(self._main)

    def close(self) -> None:
        self._stop.set()
        for bell in self._bells.values():
            bell.ring()
        deadline = time.monotonic() + JOIN
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._main is not None:
            self._main.close()

    def abort(self) -> None:
        self._stop.set()
