"""Stream and Board: one contract over every runtime, waking, and roles that run at the same time.

Other ports have files of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import port_roles
import pytest
from worlds import CONCURRENT, WORLDS, Ends, World, answer, processes_world, slept, threads_world, waits

from shoal.core.program import (
    BoardSpec,
    PortSpec,
    Report,
    StreamSpec,
)
from shoal.core.record import Field, Record
from shoal.runtimes import RUNTIMES


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

    def test_what_was_taken_and_not_released_can_be_full_again(self, world: World) -> None:
        (p0, _), c = self.ends(world)
        for number in range(self.DEPTH):
            self.push(p0, 0, number)
        assert [self.take(c, 0) for _ in range(2)] == [0, 1]
        c.release(0)
        c.untake(0)
        assert c.depth(0) == 2 and [self.take(c, 0) for _ in range(2)] == [1, 2]

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

    @pytest.mark.parametrize("early", [True, False])
    def test_push_wakes_take(self, world: World, early: bool) -> None:
        ends = self.ends(world)
        assert slept(ends["c"]["s"].take(0), lambda: ends["p"]["s"].push(0), early) < 5

    @pytest.mark.parametrize("early", [True, False])
    def test_release_wakes_claim(self, world: World, early: bool) -> None:
        ends = self.ends(world)
        ends["p"]["s"].push(0)
        answer(ends["c"]["s"].take(0))
        assert slept(ends["p"]["s"].claim(0), lambda: ends["c"]["s"].release(0), early) < 5

    @pytest.mark.parametrize("early", [True, False])
    def test_publish_wakes_read(self, world: World, early: bool) -> None:
        ends = self.ends(world)
        publish = ends["c"]["w"].publish
        assert slept(ends["p"]["w"].read(0), lambda: publish(0, np.ones(1, np.float32)), early) < 5

    def test_a_wait_ends_by_itself(self, world: World) -> None:
        op = self.ends(world)["c"]["s"].take(0)
        before = time.monotonic()
        assert op.wait is not None
        op.wait(0.05)
        assert time.monotonic() - before > 0.02 and waits(op)


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
