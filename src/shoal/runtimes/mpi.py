"""`mpi`: one rank per role, started by mpiexec. Learners are ranks 0 to L-1, the rest are actors; rank 0 leads (`ranks`).

On one node all ports are plain memory in a shared window; across nodes they are one-sided windows and collective calls
(`mpi_ports`). A rank that dies ends the whole job, as usual in MPI: --resume continues the run from its checkpoint.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import cloudpickle

from shoal.core.config import Positive, PositiveFloat
from shoal.core.errors import BadInput, EnvFault, RunFailed
from shoal.core.program import Context, Fault, Program, RoleSpec, Snapshot
from shoal.process.device import settle_process
from shoal.runtimes import ranks
from shoal.runtimes.cores import Cores, pin
from shoal.runtimes.memory import PLAIN, Place, arena_size, plain_ports
from shoal.runtimes.mpi_ports import RMA, RmaGroup, rma_ports, rma_window
from shoal.runtimes.processes import file_locks
from shoal.runtimes.ranks import NAP, OVER, Ranks, Word
from shoal.runtimes.session import CLOSE_RAISED, Events, Stopped, close_role, drive, events, lasting
from shoal.runtimes.watch import MemoryPulse, Pulse, Watch, pulses
from shoal.runtimes.windows import Nap, RemotePulse, SharedWindow

PAUSE = 0.1  # seconds that a wait may take at most; naps are far shorter
FAREWELL = 6.0  # seconds for the ranks to end their roles


@dataclass(frozen=True, kw_only=True)
class MpiConfig:
    """One rank per role; mpiexec -n sets how many."""

    windows: Literal["auto", "shared", "rma"] = "auto"
    """how ranks reach each other's memory: shared on one node, one-sided (rma) across nodes; auto chooses by their nodes"""
    ranks_per_env: Positive = 1
    """ranks of each actor: the first acts, its environment may use the others (shoal.runtimes.mpi.env_comm)"""
    step_timeout: PositiveFloat = 60.0
    """seconds that one step of an actor's environments may take before the run ends, with a checkpoint"""
    pin: bool = True
    """keep each actor on a free core of its own if all ranks are on one node; otherwise the launcher binds them"""


class Mpi:
    Config = MpiConfig
    provides = frozenset(PLAIN)
    overlaps = True
    needs_pure_env = False
    spawns = False
    about = "one rank per role under mpiexec: shared windows on one node, one-sided windows across nodes"

    def __init__(self, config: MpiConfig) -> None:
        self.config = config
        if config.windows == "rma" or (config.windows == "auto" and not ranks.ranks().one_node):
            self.provides = RMA

    @staticmethod
    def join() -> None:
        """Return on rank 0 only; the other ranks serve its runs and then end."""
        ranks.join(_serve)

    @staticmethod
    def step_timeout(config: MpiConfig) -> float:
        return config.step_timeout

    @staticmethod
    def places(config: MpiConfig, learners: int) -> int | None:
        """The number of actors that the ranks besides the learners make up."""
        size = ranks.ranks().size
        left = size - learners
        if left < config.ranks_per_env or left % config.ranks_per_env:
            raise BadInput(
                f"mpiexec -n {size}: {learners} learner{'s' * (learners > 1)} leave {max(left, 0)} ranks, which are not"
                f" actors of {config.ranks_per_env} rank{'s' * (config.ranks_per_env > 1)} each"
            )
        return left // config.ranks_per_env

    def start(self, program: Program, stopping: Callable[[], bool]) -> MpiSession:
        here = ranks.ranks()
        if here.rank != 0:
            raise RuntimeError("a follower cannot start a run: call shoal.train on every rank")
        if here.lost:
            raise RunFailed("a rank was lost: start the job again, with --resume to continue from the last checkpoint")
        if self.config.windows == "shared" and not here.one_node:
            raise BadInput("--runtime.windows shared: the ranks are on several nodes, which share no memory; use rma")
        placed(program, here.size, self.config.ranks_per_env)
        return MpiSession(program, self.config, here, stopping)


def env_comm() -> Any:
    """The communicator of this actor's ranks, for its environment: an mpi4py `Comm`. Rank 0 of it acts.

    With --runtime.ranks-per-env 1, in evaluation, and outside the runtime `mpi` it holds only this process.
    """
    return ranks.ranks().env_comm if ranks.joined() else ranks.load_mpi().COMM_SELF


def _ranks(spec: RoleSpec, ranks_per_env: int) -> int:
    """Ranks of a role: several if it steps environments and is not the main role."""
    return ranks_per_env if spec.steps_env and not spec.main else 1


def placed(program: Program, size: int, ranks_per_env: int) -> list[tuple[RoleSpec, bool]]:
    """(role, whether this rank runs it) by rank; the ranks that do not run it help its environment."""
    main = [spec for spec in program.roles if spec.main]
    others = [spec for spec in program.roles if not spec.main]
    ordered = main + sorted(others, key=lambda spec: not spec.learns)  # a stable sort
    found = [(spec, i == 0) for spec in ordered for i in range(_ranks(spec, ranks_per_env))]
    if len(found) != size:
        names = ", ".join(spec.name for spec in ordered[:4]) + (", ..." if len(ordered) > 4 else "")
        each = f", actors with {ranks_per_env} ranks each" if ranks_per_env > 1 else ""
        alone = sum(spec.main or not spec.steps_env for spec in ordered)
        fit, rest = divmod(size - alone, ranks_per_env)
        other = f", or --actors {fit}" if alone < len(ordered) and fit > 0 and not rest else ""
        raise BadInput(
            f"mpiexec -n {size}: this run has {len(ordered)} roles ({names}){each}: it needs mpiexec -n"
            f" {len(found)}{other}"
        )
    return found


class Wiring:
    """The windows and ports of one program on this rank. Making and freeing it is collective."""

    def __init__(self, program: Program, config: MpiConfig, here: Ranks) -> None:
        self.places = placed(program, here.size, config.ranks_per_env)
        self.spec, self.runs = self.places[here.rank]
        rank_of = {spec.name: rank for rank, (spec, runs) in enumerate(self.places) if runs}
        self.acting = rank_of[self.spec.name]
        self.helping = [r for r, (spec, runs) in enumerate(self.places) if spec.name == self.spec.name and not runs]
        here.env_comm = here.world.Split(self.acting, here.rank) if config.ranks_per_env > 1 else here.mpi.COMM_SELF
        self._here = here
        self._window: Any
        self.pulse: Pulse
        record = pulses(here.size)
        if config.windows == "rma" or (config.windows == "auto" and not here.one_node):
            self._window, at = rma_window(program.ports, here, rank_of, record.nbytes)
            self.ports = rma_ports(program.ports, here, rank_of, self._window, at)
            self.pulse = RemotePulse(self._window, record, here.rank)
            self.pulses = self._window.views(record, 0) if here.rank == 0 else {}
        else:
            self._window = SharedWindow(here, record.nbytes + arena_size(program.ports))
            self.pulses = record.views(self._window.memory)
            self.pulse = MemoryPulse(self.pulses, here.rank)
            bell = Nap(self._window.fence)
            place = Place(self.spec.name, dict.fromkeys(rank_of, bell), file_locks(self._window.locks))
            self.ports = plain_ports(program.ports, self._window.memory[record.nbytes :], place)

    def free(self) -> None:
        for port in self.ports.values():
            if isinstance(port, RmaGroup):
                port.free()
        self.ports, self.pulses = {}, {}
        del self.pulse
        self._window.free()
        if self._here.env_comm != self._here.mpi.COMM_SELF:
            self._here.env_comm.Free()
            self._here.env_comm = self._here.mpi.COMM_SELF


class MpiSession:
    """Rank 0's side: sends the program to the others, runs the main role, watches the others."""

    def __init__(self, program: Program, config: MpiConfig, here: Ranks, stopping: Callable[[], bool]) -> None:
        self._stopping, self._config, self._here = stopping, config, here
        self._faults: deque[Fault] = deque()
        self._main: Any = None
        self._closed = False
        try:
            # Sent only to our own followers: this never leaves the job.
            recipe = cloudpickle.dumps((program, config))
        except Exception as error:
            raise BadInput(f"the environment or algorithm cannot be sent to another rank: {error}") from error
        here.tell_all(Word("run"))
        here.share("\n".join(sys.path).encode())
        here.share(recipe)
        self._wiring = Wiring(program, config, here)
        self._watcher = Watch(self._wiring.pulses, config.step_timeout)
        self._done: set[int] = set()

    def __iter__(self) -> Events:
        spec = self._wiring.spec
        context = Context(name=spec.name, fault=self._faults.append, beat=self._listen)
        self._main = spec.build(self._wiring.ports, context)
        yield from events(drive(self._main.run(), PAUSE, self._wait), self._faults, self._watch)

    def _wait(self) -> None:
        if self._stopping():
            raise Stopped
        self._watch()

    def _listen(self) -> None:
        for rank, word in self._here.mail():
            fault = self._fault_of(rank, word)
            if word.kind == "done":
                self._done.add(rank)
            elif word.kind == "bug":
                raise RunFailed(f"{fault.role} died: {word.detail.splitlines()[-1]}", detail=word.detail)
            elif word.kind == "env_broken":
                raise EnvFault(word.detail)
            else:
                self._faults.append(fault)

    def _fault_of(self, rank: int, word: Word) -> Fault:
        name = self._wiring.places[rank][0].name
        return Fault(role=name, kind=word.kind, detail=word.detail, in_a_row=word.in_a_row)

    def _watch(self) -> None:
        """Read the other ranks' messages; end the run if an environment hangs."""
        self._listen()
        for rank, (spec, runs) in enumerate(self._wiring.places):
            if runs and rank and spec.steps_env and (late := self._watcher.overdue(rank)) is not None:
                raise RunFailed(
                    f"{spec.name} (rank {rank}): {late}; a rank cannot be replaced:"
                    " --resume continues from the checkpoint"
                )

    def snapshots(self, exact: bool = True) -> Snapshot:
        return lasting(self._main)

    def abort(self) -> None:
        """Do nothing: the launcher ends the other ranks when this one exits without finalising."""

    def close(self) -> list[Fault]:
        """End all roles, then free the windows on all ranks together. A rank that does not answer is left to the end of the job."""
        faults: list[Fault] = []
        if self._closed:
            return faults
        self._closed = True
        here = self._here
        here.tell_all(Word("stop"))
        deadline = time.monotonic() + FAREWELL
        while len(self._done) < here.size - 1 and time.monotonic() < deadline:
            mail = here.mail()
            self._done |= {rank for rank, word in mail if word.kind == "done"}
            faults += [self._fault_of(rank, word) for rank, word in mail if word.kind == CLOSE_RAISED]
            time.sleep(NAP)
        if self._main is not None:
            close_role(self._main, self._wiring.spec.name, faults.append)
            self._main = None
        here.lost = here.lost or len(self._done) < here.size - 1
        if not here.lost:
            here.tell_all(Word("free"))
            self._wiring.free()
        return faults


def _serve(here: Ranks) -> None:
    while here.wait_for(("run", "leave")).kind == "run":
        Follower(here).take_part()


class Follower:
    """A rank's part in one program."""

    def __init__(self, here: Ranks) -> None:
        self._here = here
        self._stopped = False
        for path in here.share(None).decode().split("\n"):
            if path not in sys.path:
                sys.path.append(path)  # rank 0 may have added the folder with the environment
        settle_process()
        program, self._config = cloudpickle.loads(here.share(None))
        self._wiring, self._helper = Wiring(program, self._config, here), program.helper

    def take_part(self) -> None:
        here = self._here
        try:
            self._work()
        except Stopped:
            self._stopped = True
        except EnvFault as error:
            here.tell(0, Word("env_broken", str(error)))
        except Exception:
            here.tell(0, Word("bug", traceback.format_exc().strip()))
        while not self._stopped:
            try:
                self._beat()
                time.sleep(NAP)
            except Stopped:
                self._stopped = True
        here.tell(0, Word("done"))
        here.wait_for(("free",))
        self._wiring.free()

    def _work(self) -> None:
        """Build the role and run it until told to stop, or help the environment of the rank that runs it."""
        here, spec = self._here, self._wiring.spec
        if not self._wiring.runs:
            self._help()
            return
        pulse, cores = self._wiring.pulse, Cores()

        def fault(what: Fault) -> None:
            here.tell(0, Word(what.kind, what.detail, what.in_a_row))

        context = Context(name=spec.name, fault=fault, beat=self._beat, env=pulse.env)
        role: Any = None
        try:
            pin(cores.seat(spec.core if self._config.pin and here.one_node else None))
            pulse.begin()
            self._beat()
            role = spec.build(self._wiring.ports, context)
            pulse.ready()
            for report in drive(role.run(), PAUSE, self._beat):
                if report is not None:
                    raise RuntimeError(f"{spec.name} is not the main role: it has nothing to report")
        finally:
            self._end_help()
            if role is not None:
                close_role(role, spec.name, fault)
            cores.close()

    def _help(self) -> None:
        """Serve the environment, and any that replaces it after a fault, until the acting rank ends the help."""
        if self._helper is None:
            return
        over = self._here.world.Irecv(bytearray(), self._wiring.acting, OVER)
        while not over.Test():
            self._helper(self._here.env_comm)
            time.sleep(NAP)  # an environment without `serve` returns at once

    def _end_help(self) -> None:
        """Signal the end to the helpers, before the last environment closes and lets them out of `serve`.

        A synchronous send is complete once its receive has begun. The helpers' receives are posted, so they need not leave
        `serve` for that.
        """
        helping = self._wiring.helping if self._helper is not None else []
        sent = [self._here.world.Issend(b"", rank, OVER) for rank in helping]
        while not all(request.Test() for request in sent):
            time.sleep(NAP)

    def _beat(self) -> None:
        """Check for a stop message. Called at every environment step and while waiting."""
        if any(word.kind == "stop" for _, word in self._here.mail()):
            raise Stopped
