"""The runtime protocol: a runtime starts a program and passes on the reports of its main role."""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.core.errors import FROM_ENV
from shoal.core.ports import NOT_YET, Op
from shoal.core.program import Fault, Program, Reply, Report, Role, Snapshot, Steps

CLOSE_RAISED = "close_raised"  # kind of fault

Event = Report | Fault
# A value that is sent after a report is the reply to it; after a fault it is ignored.
Events = Generator[Event, Reply | None, None]


class Session(Protocol):
    """A running program. Closing it, in any state, ends every role and frees its resources."""

    def __iter__(self) -> Events:
        """The events until the main role ends. Plain iteration sends no reply; `send` hands a reply to the main role."""

    def snapshots(self, exact: bool = True) -> Snapshot:
        """The state for an exact resume, by part, taken between two events; only the `lasting` parts if roles run elsewhere.

        Unless `exact`, only the `lasting` parts: these may be requested at any time, also in the middle of an update.
        """

    def close(self) -> Sequence[Fault]:
        """End every role. Returns the faults of roles that raised while they were closed."""

    def abort(self) -> None:
        """End at once everything that would outlive this process. Safe to call from a signal handler."""


class Runtime(Protocol):
    """A way to run roles: makes the ports, places the roles, and reports."""

    config: Any
    Config: type[Any]
    provides: frozenset[str]
    overlaps: bool  # roles really run at the same time, so that overlap is worth its lag
    needs_pure_env: bool  # compiles environments that are pure functions (backend jax), and has one actor
    spawns: bool  # other processes may be started beside it
    about: str

    def __init__(self, config: Any) -> None: ...

    @staticmethod
    def join() -> None:
        """Called before a run is resolved, in every process that was started for it: returns in only one of them."""

    @staticmethod
    def step_timeout(config: Any) -> float | None:
        """Seconds that one call of an environment may take before it counts as hung; None if the runtime does not watch."""

    @staticmethod
    def places(config: Any, learners: int) -> int | None:
        """The number of actors that fit beside `learners` learners; None if the runtime sets no number."""

    def start(self, program: Program, stopping: Callable[[], bool]) -> Session:
        """Start the program. `stopping` is called whenever the main role has to wait: once it returns True, the events end."""


def lasting(main: Role | None) -> Snapshot:
    """The lasting parts of the main role, for runtimes whose other roles start afresh in a resumed run."""
    return {} if main is None else {name: part for name, part in main.snapshots().items() if part.lasts}


def close_role(role: Role, name: str, tell: Callable[[Fault], None]) -> None:
    """Close a role. If it raises, as its environments may, tell that as a fault: nothing needs the role any more."""
    try:
        role.close()
    except FROM_ENV:
        tell(Fault(role=name, kind=CLOSE_RAISED, detail=traceback.format_exc().strip()))


class Stopped(Exception):
    """The session is closing: raised to release a role that waits."""


@dataclass(frozen=True)
class Failed:
    """The exception that a port raised instead of answering. It is raised again inside the waiting role, which may handle it."""

    error: Exception


def attempt(op: Op[Any]) -> Any:
    """The answer, `NOT_YET`, or `Failed`."""
    try:
        return op.attempt()
    except Exception as error:
        return Failed(error)


def resume(steps: Steps, answer: Any) -> Op[Any] | Report:
    """Hand a role the answer that it waited for. Returns its next request."""
    return steps.throw(answer.error) if isinstance(answer, Failed) else steps.send(answer)


def drive(steps: Steps, pause: float, between: Callable[[], None]) -> Generator[Report | None, Reply | None, None]:
    """Run a role with blocking waits. After each wait, of at most `pause` seconds, calls `between()` and yields None."""
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

    `before()` is called before a report is passed on, to check the other roles.
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
