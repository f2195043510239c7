"""Entry point of a worker process: `python -m shoal.runtimes.worker WIRING`. Started only by `processes`, never by hand."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

import cloudpickle
import msgspec

from shoal.core.errors import EnvFault
from shoal.core.program import Context, Fault, Program, Role
from shoal.process.device import collect_rarely, settle_process
from shoal.process.lifetime import killed_with_parent
from shoal.runtimes.cores import pin
from shoal.runtimes.memory import Place, plain_ports
from shoal.runtimes.processes import PAUSE, EventfdBell, Message, Wiring, file_locks
from shoal.runtimes.session import close_role, drive
from shoal.runtimes.watch import MemoryPulse, pulses


def main(argument: str) -> None:
    """Become the role that `argument` names; report an exception before exiting."""
    wiring = msgspec.json.decode(argument, type=Wiring)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a signal to the whole group is meant for the parent
    collect_rarely()
    killed_with_parent()  # even if an environment hangs and holds Python's lock; if the parent died earlier, the thread notices
    threading.Thread(target=_die_with_parent, args=(wiring.lifetime,), daemon=True).start()

    def say(kind: str, detail: str, in_a_row: int = 0) -> None:
        os.write(wiring.messages, msgspec.json.encode(Message(kind, detail, in_a_row)) + b"\n")

    try:
        work(wiring, say)
    except EnvFault as error:
        say("env_broken", str(error))
        raise SystemExit(1) from None
    except Exception:
        say("bug", traceback.format_exc().strip())
        raise SystemExit(1) from None


def work(wiring: Wiring, say: Callable[[str, str, int], None]) -> None:
    """Attach to the ports, build the role, and run it until the parent ends this process.

    The parent asks with SIGTERM, and kills the process if its environments are not closed soon.
    """
    pin(wiring.core)
    settle_process()
    program: Program = cloudpickle.loads(os.pread(wiring.recipe, os.fstat(wiring.recipe).st_size, 0))
    spec = next(spec for spec in program.roles if spec.name == wiring.name)
    arena = mmap.mmap(wiring.arena, wiring.arena_size)
    record = pulses(len(program.roles))
    pulse = MemoryPulse(record.views(arena), wiring.index)
    bells = {name: EventfdBell(fd) for name, fd in wiring.bells.items()}

    def fault(what: Fault) -> None:
        say(what.kind, what.detail, what.in_a_row)

    place = Place(wiring.name, bells, file_locks(wiring.arena))
    ports = plain_ports(program.ports, memoryview(arena)[record.nbytes :], place)
    pulse.begin()
    role: Role | None = None
    farewell = Farewell()
    signal.signal(signal.SIGTERM, farewell.ask)
    try:
        role = spec.build(ports, Context(spec.name, fault, farewell.check, pulse.env, wiring.deaths))
        gc.freeze()  # everything built so far stays: garbage collections need not scan it again
        pulse.ready()
        for report in drive(role.run(), PAUSE, farewell.check):
            if report is not None:
                raise RuntimeError(f"{spec.name} is not the main role: it has nothing to report")
    except Leave:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        if role is not None:
            close_role(role, spec.name, fault)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)  # at once: nothing else in this process is worth the time of a regular end


class Leave(BaseException):
    """The parent asks this process to end. Not an `Exception`, so that it is not taken for a fault of an environment."""


class Farewell:
    """The parent's request to end, obeyed only between two steps of an environment and after a wait.

    A signal handler that raises does so wherever Python happens to be. In a finaliser or a callback of the garbage collector
    the exception would be printed and lost, and in a library it could leave a lock behind.
    """

    def __init__(self) -> None:
        self._asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM."""
        self._asked = True

    def check(self) -> None:
        if self._asked:
            raise Leave


def _die_with_parent(lifetime: int) -> None:
    """Exit when the parent ends for any reason: only the parent holds the other end of the pipe."""
    os.read(lifetime, 1)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
