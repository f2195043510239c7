"""One contract a port, over every runtime that makes it. A further runtime is one more entry of `WORLDS` and `CONCURRENT`."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pool_roles
import port_roles
import pytest

from shoal.core.ports import NOT_YET, Op
from shoal.core.program import (
    BoardSpec,
    CallSpec,
    GroupSpec,
    PoolSpec,
    PortSpec,
    Report,
    RosterSpec,
    StreamSpec,
    TableSpec,
)
from shoal.core.record import Field, Record
from shoal.runtimes import RUNTIMES
from shoal.runtimes.inline import inline_ports
from shoal.runtimes.memory import Place, arena_size, plain_ports, private_arena
from shoal.runtimes.processes import EventfdBell, file_locks
from shoal.runtimes.threads import EventBell, Locks

Ends = dict[str, dict[str, Any]]  # role -> the ports as that role sees them
World = Callable[[Mapping[str, PortSpec], list[str]], Ends]


def inline_world(specs: Mapping[str, PortSpec], roles: list[str]) -> Ends:
    return dict.fromkeys(roles, inline_ports(specs, roles))


def threads_world(specs: Mapping[str, PortSpec], roles: list[str]) -> Ends:
    arena, bells = private_arena(specs), {role: EventBell() for role in roles}
    locks = Locks()
    return {role: plain_ports(specs, arena, Place(role, bells, locks)) for role in roles}


def processes_world(specs: Mapping[str, PortSpec], roles: list[str]) -> Ends:
    """Each role has a mapping of its own over one memory without a name, as each process has."""
    size = arena_size(specs)
    arena = os.memfd_create("test")
    os.ftruncate(arena, size)
    bells = {role: EventfdBell(os.eventfd(0, os.EFD_NONBLOCK)) for role in roles}
    # One process here: record locks do not exclude it from itself, which the tests with real processes do.
    return {
        role: plain_ports(specs, memoryview(mmap.mmap(arena, size)), Place(role, bells, file_locks(arena)))
        for role in roles
    }


WORLDS: dict[str, World] = {"inline": inline_world, "threads": threads_world, "processes": processes_world}
CONCURRENT = ("inline", "threads", "processes")


def answer(op: Op[Any], seconds: float = 5.0) -> Any:
    """What a role would get, which may sleep meanwhile."""
    deadline = time.monotonic() + seconds
    while (got := op.attempt()) is NOT_YET:
        assert time.monotonic() < deadline, f"still waiting for {op.what}"
        if op.wait is not None:
            op.wait(0.01)
    return got


def waits(op: Op[Any]) -> bool:
    return op.attempt() is NOT_YET


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
class TestStream:
    """`core.ports.Stream`."""

    DEPTH = 3
    RECORD = Record((Field("number", (4,), "int64"), Field("image", (5, 2), "uint8")))

    def ends(self, world: World, lanes: int = 2) -> tuple[list[Any], Any]:
        names = tuple(f"p{i}" for i in range(lanes))
        spec = StreamSpec(producers=names, consumer="c", depth=self.DEPTH, record=self.RECORD)
        ends = world({"s": spec}, [*names, "c"])
        return [ends[name]["s"] for name in names], ends["c"]["s"]

    def push(self, end: Any, lane: int, number: int) -> None:
        slot = answer(end.claim(lane))
        slot["number"][...] = number
        slot["image"][...] = number % 251
        end.push(lane)

    def take(self, end: Any, lane: int) -> int:
        slot = answer(end.take(lane))
        assert (slot["number"] == slot["number"][0]).all() and (slot["image"] == slot["number"][0] % 251).all()
        return int(slot["number"][0])

    def test_first_in_first_out_in_each_lane(self, world: World) -> None:
        (p0, p1), c = self.ends(world)
        for number in range(self.DEPTH):
            self.push(p0, 0, number)
            self.push(p1, 1, 100 + number)
        assert [self.take(c, 1) for _ in range(self.DEPTH)] == [100, 101, 102]
        assert [self.take(c, 0) for _ in range(self.DEPTH)] == [0, 1, 2]

    def test_claim_waits_while_the_lane_is_full_and_lanes_do_not_share(self, world: World) -> None:
        (p0, p1), c = self.ends(world)
        for number in range(self.DEPTH):
            self.push(p0, 0, number)
        assert waits(p0.claim(0)) and not waits(p1.claim(1))
        self.take(c, 0)
        assert waits(p0.claim(0)), "taken is not released: the consumer still reads it"
        c.release(0)
        self.push(p0, 0, 3)
        assert waits(p0.claim(0))

    def test_a_taken_slot_keeps_its_data_until_released(self, world: World) -> None:
        (p0, _), c = self.ends(world)
        self.push(p0, 0, 7)
        slot = answer(c.take(0))
        for number in range(self.DEPTH - 1):
            self.push(p0, 0, 50 + number)
        assert (slot["number"] == 7).all()

    def test_claiming_twice_gives_the_same_slot(self, world: World) -> None:
        (p0, _), c = self.ends(world)
        self.push(p0, 0, 1)
        answer(p0.claim(0))["number"][...] = 2  # its producer dies here
        again = answer(p0.claim(0))
        assert (again["number"] == 2).all()
        assert c.depth(0) == 1 and c.pushed(0) == 1
        again["number"][...], again["image"][...] = 3, 3
        p0.push(0)
        assert [self.take(c, 0), self.take(c, 0)] == [1, 3]

    def test_take_waits_while_the_lane_is_empty(self, world: World) -> None:
        (_, p1), c = self.ends(world)
        self.push(p1, 1, 5)
        assert waits(c.take(0)) and self.take(c, 1) == 5 and waits(c.take(1))

    def test_take_any_answers_the_first_lane_in_order_that_has_a_slot(self, world: World) -> None:
        (p0, p1), c = self.ends(world)
        assert waits(c.take_any([0, 1]))
        self.push(p1, 1, 5)
        assert waits(c.take_any([0]))
        lane, slot = answer(c.take_any([0, 1]))
        assert lane == 1 and (slot["number"] == 5).all() and waits(c.take_any([0, 1]))
        self.push(p1, 1, 6)
        self.push(p0, 0, 7)
        assert answer(c.take_any([1, 0]))[0] == 1 and answer(c.take_any([1, 0]))[0] == 0

    def test_depth_and_pushed_count(self, world: World) -> None:
        (p0, _), c = self.ends(world)
        counts = [(c.depth(0), p0.pushed(0))]
        for number in range(3):
            self.push(p0, 0, number)
        counts.append((c.depth(0), p0.pushed(0)))
        self.take(c, 0)
        counts.append((c.depth(0), p0.pushed(0)))
        c.release(0)
        self.push(p0, 0, 9)
        counts.append((c.depth(0), p0.pushed(0)))
        assert counts == [(0, 0), (3, 3), (2, 3), (3, 4)]
        assert c.lanes == 2 and c.pushed(1) == 0

    def test_release_without_take_is_refused(self, world: World) -> None:
        (p0, _), c = self.ends(world)
        self.push(p0, 0, 1)
        with pytest.raises(RuntimeError, match="release without take"):
            c.release(0)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
class TestBoard:
    """`core.ports.Board`."""

    HISTORY = 2

    def ends(self, world: World, size: int = 5) -> tuple[Any, list[Any]]:
        spec = BoardSpec(writer="w", readers=("a", "b"), size=size, history=self.HISTORY)
        ends = world({"w": spec}, ["w", "a", "b"])
        return ends["w"]["w"], [ends["a"]["w"], ends["b"]["w"]]

    def vector(self, version: int, size: int = 5) -> np.ndarray:
        return np.arange(size, dtype=np.float32) + 10 * version

    def test_read_waits_for_exactly_its_version(self, world: World) -> None:
        writer, (a, b) = self.ends(world)
        assert waits(a.read(0))
        writer.publish(0, self.vector(0))
        writer.publish(1, self.vector(1))
        assert waits(b.read(2))
        np.testing.assert_array_equal(answer(a.read(0)), self.vector(0))
        np.testing.assert_array_equal(answer(b.read(1)), self.vector(1))

    def test_an_overwritten_version_is_a_lookup_error(self, world: World) -> None:
        writer, (a, _) = self.ends(world)
        for version in range(3):
            writer.publish(version, self.vector(version))
        with pytest.raises(LookupError, match="version 0 is gone"):
            a.read(0).attempt()
        np.testing.assert_array_equal(answer(a.read(1)), self.vector(1))

    def test_a_resumed_writer_may_begin_anywhere(self, world: World) -> None:
        writer, (a, _) = self.ends(world)
        writer.publish(41, self.vector(41))
        np.testing.assert_array_equal(answer(a.read(41)), self.vector(41))
        with pytest.raises(LookupError):
            a.read(40).attempt()

    def test_versions_only_rise(self, world: World) -> None:
        writer, (a, _) = self.ends(world)
        writer.publish(3, self.vector(3))
        for version in (3, 2):
            with pytest.raises(ValueError, match="only rise"):
                writer.publish(version, self.vector(0))
        assert a.latest()[0] == 3
        np.testing.assert_array_equal(a.latest()[1], self.vector(3))

    def test_latest_is_zeros_before_the_first(self, world: World) -> None:
        _, (a, _) = self.ends(world)
        version, vector = a.latest()
        assert version == -1 and vector.dtype == np.float32 and not vector.any() and vector.shape == (5,)

    @pytest.mark.parametrize("size", [4, 6])
    def test_another_size_is_refused(self, world: World, size: int) -> None:
        writer, (a, _) = self.ends(world)
        with pytest.raises(ValueError, match=r"holds \(5,\)"):
            writer.publish(0, np.zeros(size, np.float32))
        assert a.latest()[0] == -1

    def test_what_is_published_and_read_is_copied(self, world: World) -> None:
        writer, (a, b) = self.ends(world)
        given = self.vector(0)
        writer.publish(0, given)
        given[:] = -1
        got = answer(a.read(0))
        got[:] = -2
        np.testing.assert_array_equal(answer(b.read(0)), self.vector(0))
        a.latest()[1][:] = -3
        np.testing.assert_array_equal(b.latest()[1], self.vector(0))


@pytest.mark.parametrize("world", [threads_world, processes_world], ids=["threads", "processes"])
class TestWaking:
    """Whoever sleeps is woken by the other side, and a ring before the wait is not lost."""

    def ends(self, world: World) -> Ends:
        specs: dict[str, PortSpec] = {
            "s": StreamSpec(producers=("p",), consumer="c", depth=1, record=Record((Field("x", (1,), "int64"),))),
            "w": BoardSpec(writer="c", readers=("p",), size=1, history=2),
        }
        return world(specs, ["p", "c"])

    def slept(self, op: Op[Any], act: Callable[[], None], early: bool) -> float:
        """Seconds that a wait for `op` took when the other side acts before it, or during it."""
        assert waits(op) and op.wait is not None
        timer = threading.Timer(0.05, act)
        if early:
            act()
        else:
            timer.start()
        before = time.monotonic()
        op.wait(10.0)
        took = time.monotonic() - before
        if not early:
            timer.join()
        assert not waits(op)
        return took

    @pytest.mark.parametrize("early", [True, False])
    def test_push_wakes_take(self, world: World, early: bool) -> None:
        ends = self.ends(world)
        assert self.slept(ends["c"]["s"].take(0), lambda: ends["p"]["s"].push(0), early) < 5

    @pytest.mark.parametrize("early", [True, False])
    def test_release_wakes_claim(self, world: World, early: bool) -> None:
        ends = self.ends(world)
        ends["p"]["s"].push(0)
        answer(ends["c"]["s"].take(0))
        assert self.slept(ends["p"]["s"].claim(0), lambda: ends["c"]["s"].release(0), early) < 5

    @pytest.mark.parametrize("early", [True, False])
    def test_publish_wakes_read(self, world: World, early: bool) -> None:
        ends = self.ends(world)
        publish = ends["c"]["w"].publish
        assert self.slept(ends["p"]["w"].read(0), lambda: publish(0, np.ones(1, np.float32)), early) < 5

    def test_a_wait_ends_by_itself(self, world: World) -> None:
        op = self.ends(world)["c"]["s"].take(0)
        before = time.monotonic()
        assert op.wait is not None
        op.wait(0.05)
        assert 0.02 < time.monotonic() - before < 5 and waits(op)


LANES = 2


@pytest.fixture(scope="module", params=CONCURRENT)
def seen(request: pytest.FixtureRequest) -> Iterator[list[list[tuple[int, int, bool, bool]]]]:
    """Two producers and a consumer on the runtime itself: what came out of each lane."""
    runtime = RUNTIMES[request.param]
    session = runtime(runtime.Config()).start(port_roles.hammer(LANES), lambda: False)
    try:
        event = next(iter(session))
        assert isinstance(event, Report), event
        yield event.state
    finally:
        session.close()


class TestConcurrently:
    """Thousands of slots and versions between roles that run at the same time, with delays on both sides."""

    def test_nothing_is_lost_doubled_or_reordered(self, seen: Any) -> None:
        whole = list(range(port_roles.PUSHES + 1 + port_roles.LOCKSTEP))
        assert [[number for number, *_ in lane] for lane in seen] == [whole] * LANES

    def test_slots_arrive_whole(self, seen: Any) -> None:
        assert all(whole for lane in seen for *_, whole in lane)

    def test_no_reader_sees_half_of_two_versions(self, seen: Any) -> None:
        assert not any(torn for lane in seen for _, _, torn, _ in lane)

    def test_versions_never_go_back(self, seen: Any) -> None:
        for lane in seen:
            versions = [version for _, version, _, _ in lane[: port_roles.PUSHES]]
            assert versions == sorted(versions)
            assert len(set(versions)) > 100, "the reader hardly saw the writer move: this proves nothing"

    def test_read_gives_exactly_the_version_asked_for(self, seen: Any) -> None:
        for lane in seen:
            assert [version for _, version, _, _ in lane[port_roles.PUSHES + 1 :]] == list(range(port_roles.LOCKSTEP))


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
class TestTable:
    """`core.ports.Table`."""

    def ends(self, world: World, consistency: Any = "lock", size: int = 3, rows: int = 1) -> tuple[Any, Any]:
        spec = TableSpec(workers=("a", "b"), size=size, consistency=consistency, rows=rows)
        ends = world({"t": spec}, ["a", "b"])
        return ends["a"]["t"], ends["b"]["t"]

    @pytest.mark.parametrize("consistency", ["hogwild", "lock"])
    def test_pushes_add_up_and_are_counted(self, world: World, consistency: str) -> None:
        a, b = self.ends(world, consistency)
        assert a.pull()[0] == 0 and not a.pull()[1].any()
        b.put(np.array([10, 0, 0], np.float32))
        assert answer(a.push(0, np.array([1, 2, 3], np.float32))) == 1
        assert answer(b.push(1, np.array([0, 0, 0.5], np.float32))) == 2
        pushes, vector = a.pull()
        assert pushes == 2
        np.testing.assert_array_equal(vector, np.array([11, 2, 3.5], np.float32))
        np.testing.assert_array_equal(b.pull(most=2)[1], np.array([11, 2], np.float32))

    @pytest.mark.parametrize("consistency", ["hogwild", "lock"])
    def test_a_push_is_applied_once_however_often_it_is_attempted(self, world: World, consistency: str) -> None:
        table, _ = self.ends(world, consistency)
        op = table.push(0, np.ones(3, np.float32))
        assert [op.attempt(), op.attempt()] == [1, 1]
        assert (table.pull()[1] == 1).all()

    @pytest.mark.parametrize("consistency", ["hogwild", "lock"])
    def test_a_pulled_vector_is_a_copy(self, world: World, consistency: str) -> None:
        table, _ = self.ends(world, consistency)
        table.pull()[1][:] = 5
        assert not table.pull()[1].any()

    @pytest.mark.parametrize("consistency", ["hogwild", "lock"])
    def test_another_size_is_refused(self, world: World, consistency: str) -> None:
        table, _ = self.ends(world, consistency)
        with pytest.raises(ValueError, match=r"holds \(3,\)"):
            table.push(0, np.zeros(4, np.float32)).attempt()

    def test_change_sees_the_newest_and_replaces_it_exactly(self, world: World) -> None:
        a, b = self.ends(world)
        answer(b.push(1, np.ones(3, np.float32)))
        new, seen = np.array([0.1, 0.2, 0.3], np.float32), []

        def by(versions: Any, vectors: Any) -> Any:
            seen.append((list(versions), vectors[0].tolist()))
            return [new]

        assert answer(a.change([0], by)) == 2
        assert seen == [([1], [1, 1, 1])]
        assert b.pull()[1].tobytes() == new.tobytes()

    def test_rows_change_by_themselves_and_in_pairs(self, world: World) -> None:
        a, b = self.ends(world, rows=3)
        for row in range(3):
            a.put(np.full(3, row, np.float32), row)
        assert answer(b.change([2, 0], lambda _, rows: [rows[0] + 10, rows[1] + 20])) == 1
        pulled = [a.pull(row) for row in range(3)]
        assert [(version, vector.tolist()) for version, vector in pulled] == [
            (1, [20] * 3),
            (0, [1] * 3),
            (1, [12] * 3),
        ]

    def test_what_is_changed_by_a_mistake_stays_and_the_lock_is_free(self, world: World) -> None:
        a, b = self.ends(world)
        with pytest.raises(ValueError, match="holds"):
            a.change([0], lambda _, vectors: [np.zeros(9, np.float32)]).attempt()
        assert answer(b.push(1, np.ones(3, np.float32))) == 1

    def test_hogwild_has_one_row_and_no_lock(self, world: World) -> None:
        with pytest.raises(ValueError, match="has one"):
            self.ends(world, "hogwild", rows=2)
        with pytest.raises(RuntimeError, match="no locks"):
            self.ends(world, "hogwild")[0].change([0], lambda _, vectors: vectors)

    def test_what_races_lose_is_seen(self, world: World) -> None:
        a, b = self.ends(world, "hogwild", size=5000)
        a.put(np.full(5000, 2, np.float32))
        for _ in range(4):
            answer(a.push(0, np.full(5000, 0.25, np.float32)))
            answer(b.push(1, np.full(5000, -0.5, np.float32)))
        assert a.lost() == 0
        a.put(a.pull()[1])
        a._vectors[0, 0] -= 0.25  # as if one push of a had been undone
        assert a.lost() > 0.05


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
class TestRoster:
    """`core.ports.Roster`."""

    def ends(self, world: World, start: int = 0, end: int = 4) -> tuple[Any, Any, Any]:
        spec = RosterSpec(workers=("a", "b"), watcher="main", start=start, end=end)
        ends = world({"r": spec}, ["a", "b", "main"])
        return ends["a"]["r"], ends["b"]["r"], ends["main"]["r"]

    def test_turns_wait_until_it_is_open_and_end(self, world: World) -> None:
        a, b, main = self.ends(world, start=6, end=8)
        first = a.turn(0)
        assert waits(first)
        main.open()
        assert answer(first) == 6 and answer(b.turn(1)) == 7
        a.finish(0)
        b.finish(1)
        assert main.finished() == 2 and main.turns(0) == 1 and waits(a.turn(0)) and waits(b.turn(1))

    def test_a_turn_that_was_not_finished_is_the_successors(self, world: World) -> None:
        a, b, main = self.ends(world)
        main.open()
        assert answer(a.turn(0)) == 0 and answer(b.turn(1)) == 1 and answer(a.turn(0)) == 0
        a.finish(0)
        assert answer(a.turn(0)) == 2
        b.finish(1)
        with pytest.raises(RuntimeError, match="no turn"):
            b.finish(1)

    def test_they_meet(self, world: World) -> None:
        a, b, _ = self.ends(world)
        early = a.meet(0)
        assert waits(early)
        assert not waits(b.meet(1)) and not waits(early)
        assert waits(b.meet(1))


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
        assert 0.05 < time.monotonic() - before < 5

    @pytest.mark.parametrize("early", [True, False])
    def test_both_sides_wake_each_other(self, world: World, early: bool) -> None:
        test = TestCall()
        ends = test.ends(world)
        call, slept = ends["server"]["call"], TestWaking().slept
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


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
class TestGroup:
    """`core.ports.Group`."""

    # Their sum depends on its order: 1e8 swallows 1 unless the big ones cancel first.
    VECTORS = tuple(np.array([x, x + 1], np.float32) for x in (1e8, 1.0, -1e8))

    def group(self, world: World) -> Any:
        return world({"g": GroupSpec(members=3, size=2)}, ["a"])["a"]["g"]

    @pytest.mark.parametrize("arrival", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
    def test_all_leave_with_the_same_bits_whoever_comes_first(self, world: World, arrival: tuple[int, ...]) -> None:
        group = self.group(world)
        ops: dict[int, Op[Any]] = {}
        for member in arrival:
            assert all(waits(op) for op in ops.values())
            ops[member] = group.mean(member, self.VECTORS[member])
        expected = ((self.VECTORS[0] + self.VECTORS[1]) + self.VECTORS[2]) / np.float32(3)
        means = [answer(ops[member]) for member in range(3)]
        assert {mean.tobytes() for mean in means} == {expected.tobytes()}

    def test_rounds_do_not_mix(self, world: World) -> None:
        group = self.group(world)
        first = [group.mean(member, np.full(2, 1, np.float32)) for member in range(3)]
        assert answer(first[0])[0] == 1
        early = group.mean(
            0, np.full(2, 4, np.float32)
        )  # member 0 is in the next round, the others still leave this one
        assert waits(early)
        assert answer(first[1])[0] == 1 and answer(first[2])[0] == 1
        rest = [group.mean(member, np.full(2, 4, np.float32)) for member in (1, 2)]
        assert [answer(op)[0] for op in (early, *rest)] == [4, 4, 4]

    def test_coming_twice_to_one_round_is_refused(self, world: World) -> None:
        group = self.group(world)
        group.mean(1, self.VECTORS[1])
        with pytest.raises(RuntimeError, match="member 1 came twice"):
            group.mean(1, self.VECTORS[1])
        assert group.members == 3


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
class TestPool:
    """`core.ports.Pool`. How rings turn is tested where they live, in tests/replay."""

    ROW = Record((Field("number", (), "int64"), Field("image", (5, 2), "uint8")))

    def ends(self, world: World) -> list[Any]:
        ends = world({"p": PoolSpec(workers=2, slots=4, record=self.ROW)}, ["a", "b"])
        return [ends[name]["p"] for name in ("a", "b")]

    def rows(self, *numbers: int) -> dict[str, np.ndarray]:
        return {"number": np.array(numbers), "image": np.array([np.full((5, 2), n % 251) for n in numbers], np.uint8)}

    def test_everybody_reads_all_and_each_writes_its_own(self, world: World) -> None:
        a, b = self.ends(world)
        a.write(0, self.rows(1, 2))
        b.write(1, self.rows(11, 12, 13))
        for end in (a, b):
            assert (end.rings, end.slots) == (2, 4)
            assert end.counts().tolist() == end.sizes().tolist() == [2, 3]
            rows, whole = end.read(np.array([0, 1, 4, 5, 6]), end.counts())
            assert whole.all() and rows["number"].tolist() == [1, 2, 11, 12, 13]
            assert (rows["image"] == rows["number"][:, None, None]).all()

    def test_a_full_ring_loses_its_oldest_and_readers_are_told(self, world: World) -> None:
        a, b = self.ends(world)
        a.write(0, self.rows(1, 2, 3, 4))
        counts = b.counts()
        a.write(0, self.rows(5))
        rows, whole = b.read(np.arange(4), counts)
        assert whole.tolist() == [False, True, True, True] and rows["number"].tolist() == [5, 2, 3, 4]
        assert b.counts().tolist() == [5, 0] and b.sizes().tolist() == [4, 0]

    def test_a_snapshot_can_be_taken_in_elsewhere(self, world: World) -> None:
        a, _ = self.ends(world)
        a.write(0, self.rows(1, 2, 3, 4, 5))
        c, d = self.ends(world)
        c.restore(a.snapshot())
        rows, whole = d.read(np.arange(4), d.counts())
        assert whole.all() and rows["number"].tolist() == [5, 2, 3, 4] and d.counts().tolist() == [5, 0]


@pytest.mark.parametrize("name", CONCURRENT)
def test_no_row_of_a_pool_is_read_torn_while_its_writer_writes(name: str) -> None:
    runtime = RUNTIMES[name]
    session = runtime(runtime.Config()).start(pool_roles.hammer(), lambda: False)
    try:
        event = next(iter(session))
        assert isinstance(event, Report), event
        seen = event.state
    finally:
        session.close()
    assert seen["rows"] > 10_000 and seen["torn"] == seen["foreign"] == seen["missing"] == 0, seen
    if name != "inline":
        assert seen["overwritten"] > 0, "writer and reader never met: this proves nothing"
