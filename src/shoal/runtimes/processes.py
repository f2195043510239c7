"""`processes`: one process per role over unnamed shared memory, so that nothing outlives the process tree.

Workers have an entry module of their own (`worker.py`), so a script needs no `__main__` guard. Inherited file descriptors
connect them: one memory (memfd) with all slots and weights, an eventfd to wake each role, a pipe for its messages, and a
lifetime pipe whose end of file means that the parent has ended. Only counters cross; data stays in place.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import msgspec

from shoal.core.config import PositiveFloat
from shoal.core.errors import BadInput, EnvFault, RunFailed
from shoal.core.program import Context, Fault, Program, RoleSpec, Snapshot
from shoal.runtimes.cores import Cores
from shoal.runtimes.memory import PLAIN, Lock, Place, arena_size, plain_ports
from shoal.runtimes.session import CLOSE_RAISED, Events, Stopped, close_role, drive, events, lasting
from shoal.runtimes.watch import Watch, pulses

PAUSE = 0.1  # seconds between two looks at the children while waiting
FAREWELL = 2.0  # seconds that the children may take, all together, to close their environments


@dataclass(frozen=True, kw_only=True)
class ProcessesConfig:
    """One process per actor."""

    step_timeout: PositiveFloat = 60.0
    """seconds that one step of an actor's environments may take before the actor is killed and replaced"""
    pin: bool = True
    """keep each actor on a core of its own that no other run has claimed"""


class Processes:
    Config = ProcessesConfig
    provides = frozenset(PLAIN)
    overlaps = True
    needs_pure_env = False
    spawns = True
    about = "one process per actor over shared memory: for environments in Python; dead or hung actors are replaced"

    def __init__(self, config: ProcessesConfig) -> None:
        self.config = config

    @staticmethod
    def join() -> None:
        return None

    @staticmethod
    def step_timeout(config: ProcessesConfig) -> float:
        return config.step_timeout

    @staticmethod
    def places(config: ProcessesConfig, learners: int) -> int | None:
        return None

    def start(self, program: Program, stopping: Callable[[], bool]) -> ProcessesSession:
        if not hasattr(os, "memfd_create"):
            raise BadInput("--runtime processes needs Linux (memfd, eventfd); use --runtime threads here")
        return ProcessesSession(program, self.config, stopping)


class PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class EventfdBell:
    """An eventfd: it counts, so that a ring before the wait is not lost.

    Waits with ppoll: `select` takes no descriptor above 1023, and Python's `poll` rounds a wait up to whole milliseconds, which
    is longer than a predictor waits for further questions.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = ctypes.CDLL(None).ppoll
        self._asked, self._limit = PollFd(fd, select.POLLIN, 0), TimeSpec()

    def ring(self) -> None:
        os.eventfd_write(self._fd, 1)

    def wait(self, seconds: float) -> None:
        self._limit.seconds = int(seconds)
        self._limit.nanoseconds = int(seconds % 1 * 1e9)
        # ppoll returns -1 after a signal: then this wait is over, and its caller tries again.
        if self._poll(ctypes.byref(self._asked), 1, ctypes.byref(self._limit), None) > 0:
            os.eventfd_read(self._fd)


class FileLock:
    """A record lock on one byte of the arena: it excludes other processes, and the kernel frees it when its holder dies."""

    def __init__(self, fd: int, at: int) -> None:
        self._fd, self._at = fd, at

    def attempt(self) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._at)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._at)


def file_locks(fd: int) -> Callable[[int], Lock]:
    """Locks by the offset of the data that they guard."""
    return lambda at: FileLock(fd, at)


class Wiring(msgspec.Struct, frozen=True):
    """A worker's command-line argument: the meaning of each inherited descriptor."""

    name: str
    index: int  # its place among the pulses
    deaths: int  # of its predecessors
    core: int | None
    arena: int
    arena_size: int
    recipe: int
    lifetime: int
    messages: int
    bells: dict[str, int]


class Message(msgspec.Struct, frozen=True):
    """A message line from a worker. `bug` and `env_broken` end the run; any other kind is a fault that was recovered from."""

    kind: str
    detail: str
    in_a_row: int = 0


@dataclass
class Child:
    spec: RoleSpec
    process: subprocess.Popen[bytes]
    messages: int  # our end of its message pipe
    index: int
    core: int | None
    deaths: int  # of its predecessors
    unread: bytes = b""


class ProcessesSession:
    def __init__(self, program: Program, config: ProcessesConfig, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._program, self._config = program, config
        self._faults: deque[Fault] = deque()
        self._children: dict[str, Child] = {}
        self._main: Any = None
        names = [spec.name for spec in program.roles]
        record = pulses(len(names))
        self._size = record.nbytes + arena_size(program.ports)
        self._arena_fd = os.memfd_create("shoal-arena")
        os.ftruncate(self._arena_fd, self._size)
        self._arena = mmap.mmap(self._arena_fd, self._size)
        self._watcher = Watch(record.views(self._arena), config.step_timeout)
        self._cores = Cores()
        self._bell_fds = {name: os.eventfd(0, os.EFD_NONBLOCK) for name in names}
        self._lifetime_read, self._lifetime_write = os.pipe()
        self._recipe_fd = os.memfd_create("shoal-recipe")
        try:
            # Sent only to our own children: this never leaves the process tree.
            recipe = cloudpickle.dumps(program)
        except Exception as error:
            self.close()
            raise BadInput(f"the environment or algorithm cannot be sent to another process: {error}") from error
        os.write(self._recipe_fd, recipe)
        try:
            for index, spec in enumerate(program.roles):  # now, so that they load while the main role is built
                if not spec.main:
                    self._spawn(spec, index, self._cores.seat(spec.core if config.pin else None))
        except BaseException:  # its caller has no session to close
            self.close()
            raise

    def __iter__(self) -> Events:
        main = self._program.main
        bells = {name: EventfdBell(fd) for name, fd in self._bell_fds.items()}
        ports = plain_ports(
            self._program.ports,
            memoryview(self._arena)[self._offset() :],
            Place(main.name, bells, file_locks(self._arena_fd)),
        )
        self._main = main.build(ports, Context(name=main.name, fault=self._faults.append))
        yield from events(drive(self._main.run(), PAUSE, self._wait), self._faults, self._watch)

    def _wait(self) -> None:
        """Check for a stop and watch the children. Called while waiting."""
        if self._stopping():
            raise Stopped
        self._watch()

    def _farewells(self) -> list[Fault]:
        """Let the children close their environments, for a moment. Returns the faults that this caused."""
        leaving = [child for child in self._children.values() if child.spec.steps_env]
        for child in leaving:
            child.process.terminate()
        deadline = time.monotonic() + FAREWELL
        with contextlib.suppress(subprocess.TimeoutExpired):
            for child in leaving:
                child.process.wait(max(0.0, deadline - time.monotonic()))
        said = [(child.spec.name, message) for child in leaving for message in self._messages(child)]
        return [Fault(role=name, kind=m.kind, detail=m.detail) for name, m in said if m.kind == CLOSE_RAISED]

    def _offset(self) -> int:
        return pulses(len(self._program.roles)).nbytes

    def _spawn(self, spec: RoleSpec, index: int, core: int | None, deaths: int = 0) -> None:
        mine, theirs = os.pipe()
        os.set_blocking(mine, False)
        wiring = Wiring(
            name=spec.name,
            index=index,
            deaths=deaths,
            core=core,
            arena=self._arena_fd,
            arena_size=self._size,
            recipe=self._recipe_fd,
            lifetime=self._lifetime_read,
            messages=theirs,
            bells=self._bell_fds,
        )
        inherited = [self._arena_fd, self._recipe_fd, self._lifetime_read, theirs, *self._bell_fds.values()]
        self._watcher.restart(index)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal.runtimes.worker", msgspec.json.encode(wiring).decode()],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                process_group=0,  # a terminal's Ctrl-C goes to the whole group, and is the parent's to answer
                stdout=sys.stderr.fileno() if has_fd(sys.stderr) else None,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        except BaseException:
            os.close(mine)
            raise
        finally:
            os.close(theirs)
        self._children[spec.name] = Child(spec, process, mine, index, core, deaths)

    def _watch(self) -> None:
        """Read the children's messages; replace children that died or hang."""
        for child in list(self._children.values()):
            self._listen(child)
            code = child.process.poll()
            if code is not None:
                self._listen(child)
                self._replace(child, f"{child.spec.kind}_died", f"{child.spec.name} {cause(code)}")
                continue
            if child.spec.steps_env and (late := self._watcher.overdue(child.index)) is not None:
                _kill(child)
                child.process.wait()
                self._replace(child, "env_hung", f"{child.spec.name} was killed and replaced: {late}")

    def _messages(self, child: Child) -> list[Message]:
        """The messages that have arrived from a child since the last call."""
        try:
            while data := os.read(child.messages, 1 << 16):
                child.unread += data
        except BlockingIOError:
            pass
        *lines, child.unread = child.unread.split(b"\n")
        return [msgspec.json.decode(line, type=Message) for line in lines]

    def _listen(self, child: Child) -> None:
        for message in self._messages(child):
            if message.kind == "bug":
                raise RunFailed(f"{child.spec.name} died: {message.detail.splitlines()[-1]}", detail=message.detail)
            if message.kind == "env_broken":
                raise EnvFault(message.detail)
            name, row = child.spec.name, message.in_a_row
            self._faults.append(Fault(role=name, kind=message.kind, detail=message.detail, in_a_row=row))

    def _replace(self, child: Child, kind: str, detail: str) -> None:
        """Start a successor, which takes over the lane and collects again what its predecessor had not pushed."""
        _kill(child)  # processes that its environments started and left behind
        del self._children[child.spec.name]  # if the successor cannot be started, there is nothing left to close
        os.close(child.messages)
        self._faults.append(Fault(role=child.spec.name, kind=kind, detail=detail))
        self._spawn(child.spec, child.index, child.core, child.deaths + 1)

    def snapshots(self, exact: bool = True) -> Snapshot:
        return lasting(self._main)

    def abort(self) -> None:
        for child in self._children.values():
            _kill(child)

    def close(self) -> list[Fault]:
        """End the children, then close the descriptors that connected them."""
        faults = self._farewells()
        self.abort()
        for child in self._children.values():
            child.process.wait()
            os.close(child.messages)
        self._children.clear()
        self._cores.close()
        if self._main is not None:
            close_role(self._main, self._program.main.name, faults.append)
        for fd in (
            self._arena_fd,
            self._recipe_fd,
            self._lifetime_read,
            self._lifetime_write,
            *self._bell_fds.values(),
        ):
            os.close(fd)
        # The mapping itself is freed with the last view of it.
        return faults


def _kill(child: Child) -> None:
    """End a worker, and the processes that its environments started: they are in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left
        os.killpg(child.process.pid, signal.SIGKILL)


def cause(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name
    hints = {"SIGSEGV": " (a crash in native code)", "SIGKILL": " (killed from outside, or out of memory)"}
    return f"was ended by {name}{hints.get(name, '')}"


def has_fd(stream: Any) -> bool:
    """Whether a stream is a real file: in notebooks it is not."""
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
