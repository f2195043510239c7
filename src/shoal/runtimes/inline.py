"""`inline`: all roles in turn in the calling thread. The reference runtime: deterministic and easy to step through."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import RunFailed
from shoal.core.ports import NOT_YET, Op
from shoal.core.program import Context, Fault, PortSpec, Program, Reply, Report, Snapshot, Steps
from shoal.runtimes.memory import PLAIN, Place, Silent, plain_ports, private_arena
from shoal.runtimes.session import Events, attempt, close_role, lasting, resume


@dataclass(frozen=True, kw_only=True)
class InlineConfig:
    """Nothing to set."""


class Inline:
    Config = InlineConfig
    provides = frozenset(PLAIN)
    overlaps = False
    needs_pure_env = False
    spawns = True
    about = "all roles in turn in one thread: the deterministic reference"

    def __init__(self, config: InlineConfig) -> None:
        self.config = config

    @staticmethod
    def join() -> None:
        return None

    @staticmethod
    def step_timeout(config: InlineConfig) -> float | None:
        return None

    @staticmethod
    def places(config: InlineConfig, learners: int) -> int | None:
        return None

    def start(self, program: Program, stopping: Callable[[], bool]) -> InlineSession:
        return InlineSession(program)


class InlineSession:
    def __init__(self, program: Program) -> None:
        self._faults: deque[Fault] = deque()
        ports = inline_ports(program.ports, [role.name for role in program.roles])
        self._roles: dict[str, Any] = {}
        self._steps: dict[str, Steps] = {}
        try:
            for spec in program.roles:
                self._roles[spec.name] = spec.build(ports, Context(name=spec.name, fault=self._faults.append))
        except BaseException:
            self.close()
            raise
        self._steps = {name: role.run() for name, role in self._roles.items()}
        self._main = program.main.name

    def __iter__(self) -> Events:
        """Run the roles in turn until the main role ends, each until it has to wait. A round without progress is a deadlock."""
        waiting: dict[str, Op[Any] | None] = dict.fromkeys(self._steps)
        while self._main in self._steps:
            progress = False
            for name in list(self._steps):
                op = waiting[name]
                answer = None if op is None else attempt(op)
                while answer is not NOT_YET:
                    progress = True
                    try:
                        asked = resume(self._steps[name], answer)
                    except StopIteration:
                        del self._steps[name]
                        break
                    while self._faults:
                        yield self._faults.popleft()
                    if isinstance(asked, Report):
                        answer = (yield asked) or Reply()
                        waiting[name] = None
                    else:
                        waiting[name], answer = asked, attempt(asked)
            if not progress:
                stuck = ", ".join(f"{name} waits for {op.what}" for name, op in waiting.items() if op is not None)
                raise RunFailed(f"deadlock: {stuck}")

    def snapshots(self, exact: bool = True) -> Snapshot:
        if not exact:
            return lasting(self._roles[self._main])
        return {part: arrays for role in self._roles.values() for part, arrays in role.snapshots().items()}

    def close(self) -> list[Fault]:
        for steps in self._steps.values():
            steps.close()
        faults: list[Fault] = []
        for name, role in self._roles.items():
            close_role(role, name, faults.append)
        return faults

    def abort(self) -> None:
        return None


def inline_ports(specs: Mapping[str, PortSpec], names: Sequence[str]) -> dict[str, Any]:
    """The ports of roles that never run at the same time."""
    return plain_ports(specs, private_arena(specs), Place(None, dict.fromkeys(names, Silent())))
