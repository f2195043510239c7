"""`inline`: all roles in turn in the calling thread. The reference: deterministic, and easy to step through."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.core.errors import RunFailed
from shoal.core.ports import NOT_YET, Op
from shoal.core.program import Context, Fault, GroupSpec, PortSpec, Program, Report, TableSpec
from shoal.runtimes.memory import PLAIN, Place, Silent, plain_ports, private_arena
from shoal.runtimes.session import Event


@dataclass(frozen=True, kw_only=True)
class InlineConfig:
    """Nothing to set."""


class Inline:
    Config = InlineConfig
    provides = frozenset({"Stream", "Board", "Table", "Call", "Group", "Pool"})
    overlaps = False
    about = "all roles in turn in one thread: the deterministic reference"

    def __init__(self, config: InlineConfig) -> None:
        self.config = config

    def start(self, program: Program, stopping: Callable[[], bool]) -> InlineSession:
        return InlineSession(program)


class InlineSession:
    def __init__(self, program: Program) -> None:
        self._faults: deque[Fault] = deque()
        ports = inline_ports(program.ports, [role.name for role in program.roles])
        self._roles: dict[str, Any] = {}
        try:
            for spec in program.roles:
                self._roles[spec.name] = spec.build(ports, Context(name=spec.name, fault=self._faults.append))
        except BaseException:
            self.close()
            raise
        self._steps = {name: role.run() for name, role in self._roles.items()}

    def __iter__(self) -> Iterator[Event]:
        """Round and round: each role runs until it has to wait. A whole round without progress is a deadlock."""
        waiting: dict[str, Op[Any] | None] = dict.fromkeys(self._steps)
        while self._steps:
            progress = False
            for name in list(self._steps):
                op = waiting[name]
                answer = None if op is None else op.attempt()
                while answer is not NOT_YET:
                    progress = True
                    try:
                        asked = self._steps[name].send(answer)
                    except StopIteration:
                        del self._steps[name]
                        break
                    while self._faults:
                        yield self._faults.popleft()
                    if isinstance(asked, Report):
                        yield asked
                        waiting[name], answer = None, None
                    else:
                        waiting[name], answer = asked, asked.attempt()
            if not progress:
                stuck = ", ".join(f"{name} waits for {op.what}" for name, op in waiting.items() if op is not None)
                raise RunFailed(f"nobody can go on: {stuck}")

    def snapshots(self) -> dict[str, dict[str, np.ndarray]]:
        return {part: arrays for role in self._roles.values() for part, arrays in role.snapshots().items()}

    def close(self) -> None:
        for steps in getattr(self, "_steps", {}).values():
            steps.close()
        for role in self._roles.values():
            role.close()

    def abort(self) -> None:
        return None


def inline_ports(specs: Mapping[str, PortSpec], names: Sequence[str]) -> dict[str, Any]:
    """All five ports for roles that never run at the same time."""
    silent = dict.fromkeys(names, Silent())
    plain = {name: spec for name, spec in specs.items() if spec.kind in PLAIN}
    ports = plain_ports(plain, private_arena(plain), Place(None, silent))
    for name, spec in specs.items():
        if isinstance(spec, TableSpec):
            ports[name] = InlineTable(spec)
        elif isinstance(spec, GroupSpec):
            ports[name] = InlineGroup(spec)
    return ports


class InlineTable:
    """One vector. Nobody else runs during a push, so every consistency is the same here."""

    def __init__(self, spec: TableSpec) -> None:
        self._vector = np.zeros(spec.size, np.float32)
        self._pushes = 0

    def pull(self) -> tuple[int, np.ndarray]:
        return self._pushes, self._vector.copy()

    def push(self, worker: int, delta: np.ndarray) -> Op[int]:
        done: list[int] = []

        def attempt() -> int:
            if not done:
                self._vector += delta
                self._pushes += 1
                done.append(self._pushes)
            return done[0]

        return Op(attempt, what="the table")


class InlineGroup:
    """Rounds: the last to come completes the mean, and everybody leaves with it before the next round begins."""

    def __init__(self, spec: GroupSpec) -> None:
        self.members = spec.members
        self._given: dict[int, np.ndarray] = {}
        self._round = 0
        self._means: dict[int, tuple[np.ndarray, set[int]]] = {}  # by round: the mean, and who has yet to fetch it

    def mean(self, member: int, vector: np.ndarray) -> Op[np.ndarray]:
        if member in self._given:
            raise RuntimeError(f"member {member} came twice to one round")
        mine = self._round
        self._given[member] = vector.copy()
        if len(self._given) == self.members:
            total = self._given[0]
            for other in range(1, self.members):
                total = total + self._given[other]
            self._means[mine] = (total / np.float32(self.members), set(range(self.members)))
            self._given, self._round = {}, mine + 1

        def attempt() -> Any:
            if mine not in self._means:
                return NOT_YET
            mean, absent = self._means[mine]
            absent.discard(member)
            if not absent:
                del self._means[mine]
            return mean.copy()

        return Op(attempt, what=f"the other members of round {mine}")
