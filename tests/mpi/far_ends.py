"""Ends of ports that live on other ranks, used from rank 0 as if they were here: so the contract tests run over real ranks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import cloudpickle
import numpy as np

from shoal.core.ports import NOT_YET, Op
from shoal.core.program import PortSpec
from shoal.runtimes.memory import Place, arena_size, plain_ports
from shoal.runtimes.mpi_ports import RmaGroup, rma_ports, rma_window
from shoal.runtimes.processes import file_locks
from shoal.runtimes.ranks import Ranks
from shoal.runtimes.windows import Nap, SharedWindow

TAG = 77
DATA = ("lanes", "members", "rows", "waited", "rings", "slots")  # of ports: read, never called
COPIED = ("snapshot", "read")  # of a Pool: arrays that nobody else sees


class Stage:
    """Every rank has one: the ports of the roles that are placed here, and what was got from them."""

    def __init__(self, here: Ranks, windows: str) -> None:
        self.here, self.windows = here, windows
        self._things: dict[int, Any] = {}
        self._names = itertools.count()
        self._window: Any = None
        self._ends: dict[str, dict[str, Any]] = {}

    def build(self, specs: Mapping[str, PortSpec], roles: list[str]) -> None:
        """Collective: role i is on rank i, and on from 0 again."""
        here = self.here
        rank_of = {role: i % here.size for i, role in enumerate(roles)}
        mine = [role for role in roles if rank_of[role] == here.rank] or [""]
        self._free()
        if self.windows == "rma":
            self._window, at = rma_window(specs, here, rank_of)
            self._ends = {role: rma_ports(specs, here, rank_of, self._window, at) for role in mine}
        else:
            self._window = SharedWindow(here, arena_size(specs))
            bells = dict.fromkeys(roles, Nap(self._window.fence))
            self._ends = {
                role: plain_ports(specs, self._window.memory, Place(role, bells, file_locks(self._window.locks)))
                for role in mine
                if role
            }

    def _free(self) -> None:
        for port in (port for ends in self._ends.values() for port in ends.values()):
            if isinstance(port, RmaGroup):
                port.free()
        self._things, self._ends = {}, {}
        if self._window is not None:
            self._window.free()
        self._window = None

    def do(self, thing: Any, what: str, args: Any, kwargs: Any) -> Any:
        """What the call came to; things that cannot travel stay here and are named."""
        target = self._ends[thing[0]][thing[1]] if isinstance(thing, tuple) else self._things[thing]
        if what == "fill":  # of a slot: in place, where the other side looks
            name, at, value = args
            target[name][at] = value
            return None
        found = getattr(target, what)
        answer = found(*args, **kwargs) if callable(found) else found
        return answer if what in COPIED and not isinstance(answer, Op) else self._sent(answer)

    def _sent(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._sent(item) for item in value)
        kind = None
        if value is NOT_YET:
            return ("not yet", self.here.rank, 0)
        if isinstance(value, Op):
            kind = "op"
        elif isinstance(value, dict):
            kind = "slot"
        elif hasattr(value, "end_of"):
            kind = "port"
        if kind is None:
            return value
        name = next(self._names)
        self._things[name] = value
        return (kind, self.here.rank, name)

    def serve(self) -> None:
        """A rank that is not the first: do what is asked, until told to stop."""
        while True:
            while not self.here.world.Iprobe(0, TAG):
                time.sleep(1e-4)
            kind, *rest = cloudpickle.loads(self.here.world.recv(source=0, tag=TAG))
            if kind == "end":
                self._free()
                return
            try:
                answer = ("done", getattr(self, kind)(*rest))
            except Exception as error:
                answer = ("raised", error)
            if kind == "do":
                self.here.world.send(cloudpickle.dumps(answer), 0, TAG)

    def __call__(self, specs: Mapping[str, PortSpec], roles: list[str]) -> dict[str, dict[str, Any]]:
        """The world of the contract tests, on rank 0."""
        self.tell(("build", specs, roles))
        self.build(specs, roles)
        places = {role: i % self.here.size for i, role in enumerate(roles)}
        return {role: {port: Far(self, rank, (role, port)) for port in specs} for role, rank in places.items()}

    def tell(self, message: Any) -> None:
        for rank in range(1, self.here.size):
            self.here.world.send(cloudpickle.dumps(message), rank, TAG)

    def close(self) -> None:
        self.tell(("end",))
        self._free()

    def ask(self, rank: int, thing: Any, what: str, *args: Any, **kwargs: Any) -> Any:
        if rank == 0:
            return self._here(self.do(thing, what, args, kwargs))
        self.here.world.send(cloudpickle.dumps(("do", thing, what, args, kwargs)), rank, TAG)
        while not self.here.world.Iprobe(rank, TAG):
            time.sleep(1e-4)
        kind, answer = cloudpickle.loads(self.here.world.recv(source=rank, tag=TAG))
        if kind == "raised":
            raise answer
        return self._here(answer)

    def _here(self, value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == 3 and value[0] in ("not yet", "op", "slot", "port"):
            kind, rank, name = value
            made = {"op": FarOp, "slot": FarSlot, "port": Far}
            return NOT_YET if kind == "not yet" else made[kind](self, rank, name)
        if isinstance(value, tuple | list):
            return type(value)(self._here(item) for item in value)
        return value


class Far:
    """A port on another rank."""

    def __init__(self, stage: Stage, rank: int, thing: Any) -> None:
        self._stage, self._rank, self._thing = stage, rank, thing

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._stage.ask(self._rank, self._thing, name, *args, **kwargs)

        return call() if name in DATA else call


class FarOp(Far):
    what = "an answer from another rank"

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 1e-3))


class FarSlot:
    """A slot on another rank: filled and read through it."""

    def __init__(self, stage: Stage, rank: int, thing: Any) -> None:
        self._ask = lambda what, *args: stage.ask(rank, thing, what, *args)

    def __getitem__(self, name: str) -> FarArray:
        return FarArray(self._ask, name)


class FarArray:
    def __init__(self, ask: Any, name: str) -> None:
        self._ask, self._name = ask, name

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self._ask("__getitem__", self._name), dtype)

    def __setitem__(self, at: Any, value: Any) -> None:
        self._ask("fill", self._name, at, value)

    def __getitem__(self, at: Any) -> Any:
        return np.asarray(self)[at]

    def copy(self) -> np.ndarray:
        return np.array(self)

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == other

    __hash__ = None  # type: ignore[assignment]
