"""Call: one contract over every runtime, and between roles that run at the same time."""

from __future__ import annotations

import threading
import time
from typing import Any

import call_roles
import numpy as np
import pytest
from worlds import WORLDS, Ends, World, answer, processes_world, slept, threads_world, waits

from shoal.core.ports import Op
from shoal.core.program import CallSpec, PortSpec, Report
from shoal.core.record import Field, Record
from shoal.runtimes import RUNTIMES
from shoal.runtimes.memory import Place, plain_ports, private_arena
from shoal.runtimes.threads import EventBell, Locks


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
class TestCall:
    """`core.ports.Call`."""

    CLIENTS = ("a", "b", "c")

    def ends(self, world: World, servers: tuple[str, ...] = ("server",)) -> Ends:
        question = Record((Field("obs", (2,), "float32"),))
        answers = Record((Field("action", (), "int64"),))
        spec = CallSpec(clients=self.CLIENTS, servers=servers, question=question, answer=answers)
        return world({"call": spec}, [*self.CLIENTS, *servers])

    def ask(self, ends: Ends, client: int, number: int | None = None) -> Op[Any]:
        obs = np.full(2, client if number is None else number, np.float32)
        op: Op[Any] = ends[self.CLIENTS[client]]["call"].ask(client, {"obs": obs})
        return op

    def clients(self, gathered: list[tuple[int, Any]]) -> list[int]:
        return [client for client, _ in gathered]

    def reply(self, call: Any, clients: list[int], plus: int = 0) -> None:
        call.answer(clients, [{"action": np.array(10 * client + plus)} for client in clients])

    def test_gather_waits_for_a_question(self, world: World) -> None:
        ends = self.ends(world)
        call = ends["server"]["call"]
        assert waits(call.gather(2))
        asked = self.ask(ends, 0)
        assert waits(asked)
        assert self.clients(answer(call.gather(2))) == [0]

    def test_batches_hold_questions_in_order_of_arrival(self, world: World) -> None:
        ends = self.ends(world)
        call = ends["server"]["call"]
        for client in (2, 0, 1):
            self.ask(ends, client)
        first, second = answer(call.gather(2)), answer(call.gather(2))
        assert self.clients(first) == [2, 0] and self.clients(second) == [1]
        assert all((question["obs"] == client).all() for client, question in [*first, *second])
        assert waits(call.gather(2))

    def test_a_full_batch_is_not_kept_waiting(self, world: World) -> None:
        ends = self.ends(world)
        call = ends["server"]["call"]
        for client in (0, 1):
            self.ask(ends, client)
        assert self.clients(answer(call.gather(1, least=3, patience=60.0))) == [0], (
            "a batch holds one, and one is there"
        )

    def test_everybody_gets_his_own_answer(self, world: World) -> None:
        ends = self.ends(world)
        call = ends["server"]["call"]
        asked = {client: self.ask(ends, client) for client in (1, 0, 2)}
        clients = self.clients(answer(call.gather(3)))
        self.reply(call, clients[:2])
        assert answer(asked[1])["action"] == 10 and answer(asked[0])["action"] == 0 and waits(asked[2])
        self.reply(call, [2])
        assert answer(asked[2])["action"] == 20

    def test_questions_and_answers_are_copied(self, world: World) -> None:
        ends, obs = self.ends(world), np.ones(2, np.float32)
        op = ends["a"]["call"].ask(0, {"obs": obs})
        obs[:] = 9
        call = ends["server"]["call"]
        assert (answer(call.gather(1))[0][1]["obs"] == 1).all()
        self.reply(call, [0], plus=3)
        got = answer(op)["action"]
        again = self.ask(ends, 0)
        answer(call.gather(1))
        self.reply(call, [0], plus=4)
        assert answer(again)["action"] == 4 and got == 3

    def test_a_dead_clients_question_is_answered_into_the_void(self, world: World) -> None:
        ends = self.ends(world)
        call = ends["server"]["call"]
        self.ask(ends, 0, 5)  # its client dies here
        answer(call.gather(1))
        successor = self.ask(ends, 0, 6)
        self.reply(call, [0], plus=1)
        assert waits(successor), "this answer belongs to the question before"
        assert (answer(call.gather(1))[0][1]["obs"] == 6).all()
        self.reply(call, [0], plus=2)
        assert answer(successor)["action"] == 2

    def test_a_question_goes_to_one_server(self, world: World) -> None:
        ends = self.ends(world, ("server", "other"))
        one, other = ends["server"]["call"], ends["other"]["call"]
        asked = [self.ask(ends, client) for client in (0, 1, 2)]
        assert self.clients(answer(one.gather(2))) == [0, 1]
        assert self.clients(answer(other.gather(2))) == [2] and waits(one.gather(3))
        self.reply(other, [2])
        self.reply(one, [0, 1])
        assert [answer(op)["action"] for op in asked] == [0, 10, 20]


@pytest.mark.parametrize("world", [threads_world, processes_world], ids=["threads", "processes"])
class TestCallBetweenRoles:
    """What takes roles that run at the same time: patience, and waking each other."""

    def test_it_waits_for_enough_questions_but_not_for_ever(self, world: World) -> None:
        test = TestCall()
        ends = test.ends(world)
        call = ends["server"]["call"]
        test.ask(ends, 0)
        few = call.gather(3, least=2, patience=10)
        assert waits(few)
        test.ask(ends, 1)
        assert test.clients(answer(few)) == [0, 1]
        before = time.monotonic()
        test.ask(ends, 2)
        assert test.clients(answer(call.gather(3, least=2, patience=0.1))) == [2]
        assert time.monotonic() - before > 0.05

    @pytest.mark.parametrize("early", [True, False])
    def test_both_sides_wake_each_other(self, world: World, early: bool) -> None:
        test = TestCall()
        ends = test.ends(world)
        call = ends["server"]["call"]
        ops: list[Op[Any]] = []
        assert slept(call.gather(1), lambda: ops.append(test.ask(ends, 0)), early) < 5
        # The look at the end of `slept` took the question.
        assert slept(ops[0], lambda: test.reply(call, [0]), early) < 5


@pytest.mark.parametrize("servers", [("server",), ("other", "server")])
def test_a_successor_finds_the_questions_that_were_taken_and_not_answered(servers: tuple[str, ...]) -> None:
    number = Record((Field("n", (), "int64"),))
    specs: dict[str, PortSpec] = {"call": CallSpec(clients=("c",) * 4, servers=servers, question=number, answer=number)}
    arena, bells, locks = private_arena(specs), {name: EventBell() for name in ("c", *servers)}, Locks()
    ends = {name: plain_ports(specs, arena, Place(name, bells, locks))["call"] for name in ("c", *servers)}
    asked = [ends["c"].ask(client, {"n": np.array(client)}) for client in range(4)]
    if "other" in servers:
        answer(ends["other"].gather(1))
    answer(ends["server"].gather(2))
    gone = 0 if "other" not in servers else 1
    ends["server"].answer([gone], [{"n": np.array(7)}])
    successor = plain_ports(specs, arena, Place("server", bells, locks))["call"]
    found = [client for client, _ in answer(successor.gather(4))]
    assert found == list(range(gone + 1, 4)), "all but what was answered, and what another server holds"
    successor.answer(found, [{"n": np.array(client)} for client in found])
    assert [int(answer(asked[client])["n"]) for client in (gone, *found)] == [7, *found]


class Naps:
    """A thread that naps for a millisecond at a time until it is asked how many of its naps were as long as a pause."""

    def __init__(self) -> None:
        self._over, self._made, self._long = threading.Event(), 0, 0
        self._thread = threading.Thread(target=self._nap, daemon=True)
        self._thread.start()

    def _nap(self) -> None:
        while True:
            began = time.monotonic()
            over = self._over.wait(0.001)
            self._made += 1
            self._long += time.monotonic() - began > call_roles.SLOW
            if over:
                return

    def late(self) -> float:
        """The share of long naps."""
        self._over.set()
        self._thread.join()
        return self._long / self._made


@pytest.mark.parametrize("name", ["inline", "threads", "processes"])
def test_every_question_is_answered_once_and_nobody_is_forgotten(name: str) -> None:
    """Four clients and two servers on the runtime itself: a lost ring would show as a wait of a whole pause.

    On a busy machine other waits are as long. Naps in this process tell how many: an answer takes a few wake-ups.
    """
    runtime, naps = RUNTIMES[name], Naps()
    session = runtime(runtime.Config()).start(call_roles.hammer(), lambda: False)
    try:
        event = next(iter(session))
        assert isinstance(event, Report), event
        found = event.state
    finally:
        late = naps.late()
        session.close()
    assert [one["wrong"] for one in found] == [0] * call_roles.CLIENTS
    assert sum(one["slow"] for one in found) <= (0.02 + 10 * late) * call_roles.CLIENTS * call_roles.QUESTIONS
    assert np.mean([one["batches"] for one in found]) > 1.2, "questions are put together"
