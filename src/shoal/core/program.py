"""A program: roles joined by ports, as data. A topology writes it, a runtime runs it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from shoal.core.errors import BadInput
from shoal.core.ports import Op
from shoal.core.record import Record


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    producers: tuple[str, ...]  # the roles that fill a lane each
    consumer: str
    depth: int  # slots per lane
    record: Record
    order: Literal["queue", "stack", "window"] = "queue"  # oldest first, newest first, or only the newest
    others: tuple[str, ...] = ()  # further consumers; each may take from every lane
    ends: bool = False  # producers may finish their lanes
    kind = "Stream"

    @property
    def consumers(self) -> tuple[str, ...]:
        return (self.consumer, *self.others)

    @property
    def shared(self) -> bool:
        """Whether slots are taken by copy, under a lock: with several consumers, an order other than arrival, or ends."""
        return self.order != "queue" or bool(self.others) or self.ends


@dataclass(frozen=True, kw_only=True)
class BoardSpec:
    writer: str
    readers: tuple[str, ...]
    size: int
    history: int  # versions that stay readable
    kind = "Board"


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    workers: tuple[str, ...]  # the roles that push to it or change it
    size: int  # of a row
    consistency: Literal["hogwild", "lock"]
    rows: int = 1
    kind = "Table"


@dataclass(frozen=True, kw_only=True)
class RosterSpec:
    workers: tuple[str, ...]
    watcher: str  # the role that is woken when the last turn is done
    start: int  # the number of the first turn
    end: int  # the number after the last
    kind = "Roster"


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    clients: tuple[str, ...]  # the roles that ask, by client
    servers: tuple[str, ...]  # the roles that answer
    question: Record
    answer: Record
    kind = "Call"


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    members: int
    size: int  # the longest vector of a round
    roles: tuple[str, ...] = ()  # the members' roles, to wake only them; () wakes all
    kind = "Group"


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    workers: int  # each with a ring of its own
    slots: int  # rows per ring
    record: Record  # of one row
    kind = "Pool"


PortSpec = StreamSpec | BoardSpec | TableSpec | CallSpec | GroupSpec | PoolSpec | RosterSpec
Ports = Mapping[str, Any]
Ended = Literal["budget", "solved", "stopped", "paused", "pruned"]  # why a run ended


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failure that the run recovered from; `detail` has the original traceback if there is one."""

    role: str
    # env_raised, env_nan, env_hung; close_raised; bad_update; actor_died, learner_died and so on, by `RoleSpec.kind`
    kind: str
    detail: str
    in_a_row: int = 0  # for a dropped update: the number of consecutive drops, including this one


class Episode(NamedTuple):
    """A finished training episode. A tuple, because short episodes can number a hundred thousand a second."""

    ret: float
    length: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """The main role's report after each update. Times are seconds on the machine's monotonic clock."""

    version: int
    env_steps: int  # since the start of this process
    began_at: float  # the first environment step
    ended_at: float
    episodes: tuple[Episode, ...]
    metrics: Mapping[str, float]
    state: Any  # the learner's
    lags: Mapping[int, int] = field(default_factory=dict)  # {age of the acting weights in versions: rows learnt from}
    # (version, learner's state) at each multiple of `report_every` passed, when many updates are made in one call.
    looks: Sequence[tuple[int, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A driver's answer to a report."""

    weights: np.ndarray | None = None  # [P] params to continue with, in the order of `to_vector(report.state.params)`
    statistics: Any = None  # `Moments` of observations made elsewhere, to be merged into the run's own
    # Further leaves of the learner's state to go on with, by their names in a checkpoint: moments/...
    leaves: Mapping[str, np.ndarray] = field(default_factory=dict)
    stop: bool = False  # end the run here, with a checkpoint of these weights
    why: Literal["stopped", "paused", "pruned"] = "stopped"  # the reason for a stop, for the run's result

    @property
    def brings(self) -> bool:
        """Whether anything of the learner's state is handed in."""
        return self.weights is not None or self.statistics is not None or bool(self.leaves)


Driver = Callable[[Report], Reply | None]  # called with every report, before any actor uses its weights


@dataclass
class Context:
    """Callbacks that a runtime gives to a role."""

    name: str
    fault: Callable[[Fault], None]  # report a failure that was recovered from
    beat: Callable[[], None] = lambda: None  # called at every environment step, where the runtime may end the role
    # Called with True before every environment call and with False after it: only these calls are timed.
    env: Callable[[bool], None] = lambda inside: None
    deaths: int = 0  # of roles that had this one's place before


Steps = Generator[Op[Any] | Report, Any, None]


class Part(NamedTuple):
    """One part of a snapshot. `lasts`: valid on its own, so it is saved even when the other roles will start afresh."""

    arrays: Mapping[str, np.ndarray]
    lasts: bool = False


Snapshot = dict[str, Part]


class Role(Protocol):
    """A loop. It yields an `Op` where it may have to wait; the main role also yields a `Report` after each update.

    `reply = yield Report(...)` gives the main role a `Reply`, whose weights it adopts. With a driver, it publishes the
    weights of an update after the reply; without one, before the report, so that no actor waits for the report's reader.
    """

    def run(self) -> Steps: ...

    def snapshots(self) -> Snapshot:
        """The state a successor needs to continue bit for bit, by part; {} if that is not possible.

        Called between two steps of the role. The main role's lasting parts may be requested at any time.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RoleSpec:
    """How to make a role. `build` may be sent to another process, so it holds recipes and no live objects."""

    name: str
    build: Callable[[Ports, Context], Role]
    main: bool = False  # runs where the program was started, and reports
    kind: str = "actor"  # prefix of fault names: actor_died
    steps_env: bool = False  # calls environments: only such a role can be declared hung, or be given helper ranks
    core: int | None = None  # the preferred core, counted from 0
    learns: bool = False  # a learner beside the main role: placed next to it, where roles have an order


@dataclass(frozen=True, kw_only=True)
class Program:
    """Roles, and the ports that join them."""

    roles: tuple[RoleSpec, ...]
    ports: Mapping[str, PortSpec] = field(default_factory=dict)
    whole: Any = None  # what `fused` compiles instead of running roles; None if the topology cannot be fused
    # The function that an actor's helper processes run, if a runtime gives it several; its argument is their communicator.
    helper: Callable[[Any], None] | None = None
    notes: tuple[str, ...] = ()  # lines for the user: what a resumed run could not take over

    @property
    def main(self) -> RoleSpec:
        """The role that reports."""
        return next(spec for spec in self.roles if spec.main)

    @property
    def requires(self) -> frozenset[str]:
        return frozenset(spec.kind for spec in self.ports.values())


def check_fits(program: Program, runtime: str, provides: frozenset[str], topology: str) -> None:
    """Refuse a program before it starts, naming the ports that the runtime lacks."""
    missing = sorted(program.requires - provides)
    if missing:
        raise BadInput(
            f"topology {topology!r} needs the port {', '.join(missing)}, which runtime {runtime!r} does not provide"
            f" (it provides {', '.join(sorted(provides)) or 'none'})"
        )
