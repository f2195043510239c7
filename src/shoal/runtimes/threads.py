"""`threads`: one thread per role, the main role in the caller's thread. Nothing is copied between them.

JAX and EnvPool release the interpreter's lock, so threads give real parallelism for native environments. A thread cannot
be killed: an environment that hangs ends the run here, while `processes` replaces it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.core.config import PositiveFloat
from shoal.core.errors import RunFailed, ShoalError
from shoal.core.program import Context, Fault, Program, RoleSpec, Snapshot
from shoal.runtimes.cores import Cores, pin
from shoal.runtimes.memory import PLAIN, Lock, Place, plain_ports, private_arena
from shoal.runtimes.session import Events, Stopped, close_role, drive, events, lasting
from shoal.runtimes.watch import MemoryPulse, Watch, pulses

PAUSE = 0.2  # seconds between two looks at the other roles while waiting
JOIN = 2.0  # seconds that closing waits for threads to end after their current step; slower ones are left behind
LEAVE = 10.0  # seconds that the end of the process waits for the threads left behind


@dataclass(frozen=True, kw_only=True)
class ThreadsConfig:
    """One thread per actor."""

    step_timeout: PositiveFloat = 60.0
    """seconds that one step of an actor's environments may take before it counts as hung"""
    pin: bool = True
    """keep each actor on a core of its own that no other run has claimed"""


class Threads:
    Config = ThreadsConfig
    provides = frozenset(PLAIN)
    overlaps = True
    needs_pure_env = False
    spawns = True
    about = "one thread per actor: no copies, real parallelism for EnvPool and JAX environments"

    def __init__(self, config: ThreadsConfig) -> None:
        self.config = config

    @staticmethod
    def join() -> None:
        return None

    @staticmethod
    def step_timeout(config: ThreadsConfig) -> float:
        return config.step_timeout

    @staticmethod
    def places(config: ThreadsConfig, learners: int) -> int | None:
        return None

    def start(self, program: Program, stopping: Callable[[], bool]) -> ThreadsSession:
        return ThreadsSession(program, self.config, stopping)


_LEFT: list[threading.Thread] = []  # threads that had not ended when their session was closed


def join(threads: list[threading.Thread], seconds: float) -> list[threading.Thread]:
    """Wait for threads to end, at most `seconds` in all. Returns those still alive."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread for thread in threads if thread.is_alive()]


def _leave() -> None:
    """Wait for threads that still compute or step before the interpreter ends; a thread that hangs ends with the process.

    A thread that returns from native code to a finalised interpreter is ended by force, through C++ frames that do not allow
    it, and the process aborts. Each thread is therefore interrupted as soon as it returns to Python, and waited for. A thread
    that does not return is harmless unless it returns during finalisation: after an uncaught exception, when the exit code
    is known, the process exits at once.
    """
    for thread in filter(threading.Thread.is_alive, _LEFT):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped))
    stuck = join(_LEFT, LEAVE)
    if not stuck or not hasattr(sys, "last_value"):
        return
    names = ", ".join(thread.name.removeprefix("shoal-") for thread in stuck)
    with contextlib.suppress(OSError, ValueError):  # the reader of the pipe is gone
        print(f"shoal: {names} still hangs: exiting without waiting for it", file=sys.stderr)
        sys.stderr.flush()
        sys.stdout.flush()
    logging.shutdown()
    os._exit(1)


def aside(target: Callable[[], None]) -> None:
    """Run `target` in a background thread, which ends with the process."""
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
    """Locks between threads, made on first use, by the offset of the data that they guard."""

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


class ThreadsSession:
    """Worker roles in threads of their own, the main role in the caller's."""

    def __init__(self, program: Program, config: ThreadsConfig, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._config = config
        self._stop = threading.Event()
        self._faults: deque[Fault] = deque()
        self._unclosed: deque[Fault] = deque()  # of roles that raised while they were closed
        self._failures: deque[tuple[str, BaseException]] = deque()
        views = pulses(len(program.roles)).empty()
        self._pulses = {spec.name: MemoryPulse(views, index) for index, spec in enumerate(program.roles)}
        self._watcher = Watch(views, config.step_timeout)
        self._cores = Cores()
        self._bells = {spec.name: EventBell() for spec in program.roles}
        self._arena = private_arena(program.ports)
        self._locks = Locks()
        self._program = program
        self._threads: list[threading.Thread] = []
        self._main: Any = None

    def __iter__(self) -> Events:
        main = self._program.main
        # Worker threads build their roles themselves, so that threads started by an environment inherit the core.
        for spec in self._program.roles:
            if not spec.main:
                core = self._cores.seat(spec.core if self._config.pin else None)
                thread = threading.Thread(target=self._work, args=(spec, core), name=f"shoal-{spec.name}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._main = main.build(self._ports(main), Context(name=main.name, fault=self._faults.append))
        yield from events(drive(self._main.run(), PAUSE, self._watch), self._faults)

    def _ports(self, spec: RoleSpec) -> dict[str, Any]:
        return plain_ports(self._program.ports, self._arena, Place(spec.name, self._bells, self._locks))

    def _work(self, spec: RoleSpec, core: int | None) -> None:
        def beat() -> None:
            """Called at every step and while waiting."""
            if self._stop.is_set():
                raise Stopped

        role, pulse = None, self._pulses[spec.name]
        try:
            pulse.begin()
            beat()
            pin(core)
            context = Context(name=spec.name, fault=self._faults.append, beat=beat, env=pulse.env)
            role = spec.build(self._ports(spec), context)
            beat()
            pulse.ready()
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
            if role is not None:
                close_role(role, spec.name, self._unclosed.append)

    def _watch(self) -> None:
        """Raise a dead thread's exception, or `RunFailed` if a thread hangs. Called while waiting."""
        if self._stopping():
            raise Stopped
        if self._failures:
            name, error = self._failures.popleft()
            if isinstance(error, ShoalError):
                raise error
            text = "".join(traceback.format_exception(error)).strip()
            raise RunFailed(f"{name} died: {text.splitlines()[-1]}", detail=text) from error
        for index, spec in enumerate(self._program.roles):
            if spec.steps_env and not spec.main and (late := self._watcher.overdue(index)) is not None:
                raise RunFailed(
                    f"{spec.name}: {late}: it hangs. A thread cannot be killed;"
                    " --runtime processes replaces the actor and continues"
                )

    def snapshots(self, exact: bool = True) -> Snapshot:
        return lasting(self._main)

    def close(self) -> list[Fault]:
        self._stop.set()
        for bell in self._bells.values():
            bell.ring()
        left = join(self._threads, JOIN)
        if left and not _LEFT:
            atexit.register(_leave)
        _LEFT.extend(left)
        self._threads.clear()
        self._cores.close()
        if self._main is not None:
            close_role(self._main, self._program.main.name, self._unclosed.append)
        return list(self._unclosed)

    def abort(self) -> None:
        self._stop.set()
