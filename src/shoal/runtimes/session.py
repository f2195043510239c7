"""What a runtime is: something that starts a program and hands on what its main role reports."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.core.ports import NOT_YET, Op
from shoal.core.program import Fault, Program, Reply, Report, Role, Snapshot, Steps

Event = Report | Fault
Events = Generator[
    Event, Reply | None, None
]  # what is sent after a report is the reply to it; after a fault it is ignored


class Session(Protocol):
    """A running program. Closing it ends every role and frees all that it held, whatever state it is in."""

    def __iter__(self) -> Events:
        """What happens, until the main role ends. Iterating replies nothing; `send` hands a reply to the main role."""

    def snapshots(self) -> Snapshot:
        """Between two events: what resume needs to go on bit for bit, by part; where roles run elsewhere, `lasting` parts."""

    def close(self) -> None: ...

    def abort(self) -> None:
        """End at once what would outlive this process. Safe to call from a signal handler."""


class Runtime(Protocol):
    """Where roles run."""

    config: Any
    Config: type[Any]
    provides: frozenset[str]
    overlaps: bool  # whether roles really run at the same time, so that overlap is worth its lag
    needs_pure_env: bool  # it compiles environments that are pure functions (backend jax), and has one actor
    spawns: bool  # other processes may be started beside it
    about: str

    def __init__(self, config: Any) -> None: ...

    @staticmethod
    def join() -> None:
        """Called before a run is resolved, in every process that was started together for it: only one of them returns."""

    @staticmethod
    def places(config: Any, learners: int) -> int | None:
        """How many actors there is room for beside `learners` learners; None if the runtime sets no number."""

    def start(self, program: Program, stopping: Callable[[], bool]) -> Session:
        """Begin. `stopping` is asked whenever the main role has to wait: once it is true, the events end."""


def lasting(main: Role | None) -> Snapshot:
    """The parts of the main role that hold by themselves, for runtimes whose other roles begin again in a resumed run."""
    return {} if main is None else {name: part for name, part in main.snapshots().items() if part.lasts}


class Stopped(Exception):
    """The session is closing: a role that waits is released."""


@dataclass(frozen=True)
class Failed:
    """Instead of an answer: what the port raised. It is raised where the role waits, which may know what to do."""

    error: Exception


def attempt(op: Op[Any]) -> Any:
    """The answer, `NOT_YET`, or `Failed`."""
    try:
        return op.attempt()
    except Exception as error:
        return Failed(error)


def resume(steps: Steps, answer: Any) -> Op[Any] | Report:
    """Hand a role what it waited for; what it asks for next."""
    return steps.throw(answer.error) if isinstance(answer, Failed) else steps.send(answer)


def drive(steps: Steps, pause: float, between: Callable[[], None]) -> Generator[Report | None, Reply | None, None]:
    """Run a role where waiting may block. After each wait, of at most `pause` seconds, it calls `between()` and yields None."""
    answer: Any = None
    with contextlib.closing(steps):
        while True:
            try:
                asked = resume(steps, answer)
            except StopIteration:
                return
            if isinstance(asked, Report):
                answer = (yield asked) or Reply()
                continue
            while (answer := attempt(asked)) is NOT_YET:
                assert asked.wait is not None, f"{asked.what}: this port cannot be waited for here"
                asked.wait(pause)
                between()
                yield None


def events(
    reports: Generator[Report | None, Reply | None, None],
    faults: deque[Fault],
    before: Callable[[], None] | None = None,
) -> Events:
    """A main role's reports, each after the faults that came before it; ends with the role, or with `Stopped`.

    `before()` is called before a report is handed on: it looks at the other roles.
    """
    reply: Reply | None = None
    while True:
        try:
            report = reports.send(reply)
            if report is not None and before is not None:
                before()
        except (StopIteration, Stopped):
            return
        while faults:
            yield faults.popleft()
        reply = None if report is None else (yield report)
