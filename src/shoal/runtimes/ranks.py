"""The ranks of an MPI job: start, messages and common exit.

Rank 0 leads: it has the run, the folder and the terminal. Every other rank follows: it waits for a program to take part in, and
leaves at rank 0's request. Messages are small and typed; the program itself is cloudpickled from rank 0 to its own followers.

MPI waits by spinning. With more ranks than cores, a spinning rank takes the core from the rank that it waits for. The code
here therefore never waits long inside MPI: it tests, and sleeps briefly in between.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np

from shoal.core.errors import BadInput
from shoal.process.mpi_environment import launched

MESSAGE = 1  # the tag of messages
OVER = 2  # the tag of an acting rank's signal to its environment's helpers, which read no messages meanwhile
NAP = 2e-3  # seconds between two polls of an idle rank
EXIT = 3.0  # seconds that the libraries' exit handlers may take
FLUSH = 1.0  # seconds for mpiexec to forward the last output: an abort discards what is still in its pipes


class Word(msgspec.Struct, frozen=True):
    """One message. From rank 0: `run`, `stop`, `free`, `leave`. To it: `done`, `bug`, `env_broken`, or a fault."""

    kind: str
    detail: str = ""
    in_a_row: int = 0  # of a fault


class Ranks:
    """This process's rank, communicators and mail. One instance per process: `ranks()`."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.world = mpi.COMM_WORLD.Dup()  # environments' messages on COMM_WORLD do not mix with ours
        self.rank, self.size = int(self.world.rank), int(self.world.size)
        self.node = self.world.Split_type(mpi.COMM_TYPE_SHARED)
        self.one_node = bool(self.world.allreduce(self.node.size == self.size, op=mpi.LAND))
        self.env_comm = mpi.COMM_SELF
        if self.node.rank == 0:
            _unname_shared_memory()
        self.world.Barrier()
        self.lost = False  # a rank did not answer: no collective call can be trusted any more
        self.dismissed = False  # the followers were sent `leave`
        self._mail: deque[tuple[int, Word]] = deque()
        self._sent: list[tuple[Any, bytes]] = []  # a buffer must live until its message is delivered

    def tell(self, rank: int, word: Word) -> None:
        """Send without waiting for the receiver."""
        data = msgspec.json.encode(word)
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        self._sent.append((self.world.Isend([data, self.mpi.BYTE], rank, MESSAGE), data))

    def tell_all(self, word: Word) -> None:
        for rank in range(1, self.size):
            self.tell(rank, word)

    def mail(self) -> list[tuple[int, Word]]:
        """(sender, message) of all mail that has arrived. Entering MPI also lets other ranks' one-sided transfers progress."""
        status = self.mpi.Status()
        while self.world.Iprobe(self.mpi.ANY_SOURCE, MESSAGE, status):
            data = bytearray(status.Get_count(self.mpi.BYTE))
            self.world.Recv([data, self.mpi.BYTE], status.source, MESSAGE)
            self._mail.append((status.source, msgspec.json.decode(data, type=Word)))
        found = list(self._mail)
        self._mail.clear()
        return found

    def wait_for(self, kinds: tuple[str, ...]) -> Word:
        """The next message of these kinds, from rank 0; other messages are out of date and dropped."""
        while True:
            for _, word in self.mail():
                if word.kind in kinds:
                    return word
            time.sleep(NAP)

    def share(self, data: bytes | None) -> bytes:
        """Broadcast rank 0's bytes to every rank."""
        size = np.array([len(data or b"")], np.int64)
        self.world.Bcast(size, root=0)
        buffer = np.frombuffer(data, np.uint8).copy() if data is not None else np.empty(size[0], np.uint8)
        self.world.Bcast(buffer, root=0)
        return buffer.tobytes()


def _unname_shared_memory() -> None:
    """Unlink MPICH's shared segment, which would otherwise remain after a kill. All ranks have mapped it by now."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    for name in {line.split()[-1] for line in lines if "/dev/shm/mpich_shm_" in line}:
        Path(name).unlink(missing_ok=True)


def load_mpi() -> Any:
    """mpi4py's MPI module, whose first import starts MPI in this process."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise BadInput(f"--runtime mpi needs MPI: pip install 'shoal[mpi]' ({error})") from None
    except RuntimeError as error:  # mpi4py is there, the library is not
        raise BadInput(
            f"--runtime mpi: mpi4py finds no MPI library: pip install 'shoal[mpi]' brings one ({error})"
        ) from None
    return MPI


@cache
def ranks() -> Ranks:
    """This process among the ranks. The first call is collective: every rank makes it."""
    launch = launched()
    if launch is None and importlib.util.find_spec("mpi4py") is not None:
        raise BadInput(
            "--runtime mpi needs mpiexec -n N, one rank per role: mpiexec -n 3 shoal train ... --runtime mpi"
        )
    mpi = load_mpi()
    size = int(mpi.COMM_WORLD.size)
    if launch is not None and launch.size != size:
        mpi.Finalize()
        raise BadInput(
            f"mpiexec started {launch.size} ranks, but mpi4py sees {size}: they belong to different MPI libraries;"
            f" {mpi.get_vendor()[0]} is the one that mpi4py uses"
        )
    return Ranks(mpi)


def joined() -> bool:
    """Whether this process has become a rank of an MPI job."""
    return ranks.cache_info().currsize > 0


def join(serve: Callable[[Ranks], None]) -> None:
    """Become a rank. Returns on rank 0; a follower serves until rank 0 leaves, and never returns."""
    if joined():
        return
    here = ranks()
    if here.rank == 0:
        atexit.register(_at_exit)
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # a signal to the whole group is meant for rank 0, which decides
    code = 0
    try:
        serve(here)
    except BaseException:  # of any kind: otherwise the other ranks would wait for this one without end
        traceback.print_exc()
        here.lost, code = True, 1
    leave(code)


def _at_exit() -> None:
    """Exit handler of a script on rank 0. MPI's own finalisation follows, and would never return if a rank is lost."""
    if ranks().lost:
        leave(1)
    dismiss()


def dismiss() -> None:
    """Let the followers leave, if this is rank 0. A second call does nothing."""
    here = ranks()
    if here.rank == 0 and not here.dismissed:
        here.dismissed = True
        here.tell_all(Word("leave"))


def leave(code: int) -> NoReturn:
    """End this process as MPI requires: all ranks finalise. If one is lost, the job is aborted instead.

    Skips Python's own shutdown, in which native threads have crashed, but runs the C library's `exit`, in which MPI signs off
    from its launcher.
    """
    here = ranks()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the reader of the pipe is gone
            code = code or 1
    if here.lost:
        time.sleep(FLUSH)
        here.mpi.COMM_WORLD.Abort(code)
    dismiss()
    here.mpi.Finalize()
    threading.Thread(target=_exit_late, args=(code,), daemon=True).start()
    ctypes.CDLL(None).exit(code)
    os._exit(code)


def _exit_late(code: int) -> None:
    """Exit by force if the libraries' exit handlers take too long."""
    time.sleep(EXIT)
    os._exit(code)
