"""Queues, stacks and windows with several consumers, and a group whose member comes anew: one contract over every runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import WORLDS, World, answer, waits

from shoal.core.ports import GroupBroken
from shoal.core.program import GroupSpec, StreamSpec
from shoal.core.record import Field, Record

RECORD = Record((Field("number", (4,), "int64"), Field("image", (5, 2), "uint8")))
DEPTH = 3


class Ends:
    """Two producers and three consumers."""

    def __init__(self, world: World, order: Any, reread: bool = False) -> None:
        names = ("p0", "p1")
        others = ("c1", "c2")
        spec = StreamSpec(producers=names, consumer="c0", others=others, depth=DEPTH, record=RECORD, order=order)
        ends = world({"s": spec}, [*names, "c0", *others])
        self.producers = [ends[name]["s"] for name in names]
        self.consumers = [ends[f"c{i}"]["s"].end_of(i, reread) for i in range(3)]

    def push(self, lane: int, number: int) -> None:
        slot = answer(self.producers[lane].claim(lane))
        slot["number"][...], slot["image"][...] = number, number % 251
        self.producers[lane].push(lane)

    def take(self, consumer: int, lane: int) -> int:
        end = self.consumers[consumer]
        slot = answer(end.take(lane))
        assert (slot["number"] == slot["number"][0]).all() and (slot["image"] == slot["number"][0] % 251).all()
        number = int(slot["number"][0])
        end.release(lane)
        return number


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
class TestSharedStream:
    """`core.ports.SharedStream`."""

    @pytest.mark.parametrize(("order", "expected"), [("queue", [0, 1, 2]), ("stack", [2, 1, 0])])
    def test_each_slot_goes_to_one_consumer_in_order(self, world: World, order: str, expected: list[int]) -> None:
        ends = Ends(world, order)
        for number in range(DEPTH):
            ends.push(0, number)
        assert ends.consumers[1].depth(0) == DEPTH and ends.consumers[1].depth(1) == 0
        assert [ends.take(consumer, 0) for consumer in (2, 0, 1)] == expected
        assert all(waits(end.take(0)) for end in ends.consumers)
        assert ends.consumers[0].collisions().tolist() == [[1, 0]] * 3

    @pytest.mark.parametrize("order", ["queue", "stack"])
    def test_claim_waits_while_full_and_a_copy_frees_the_slot(self, world: World, order: str) -> None:
        ends = Ends(world, order)
        for number in range(DEPTH):
            ends.push(0, number)
        assert waits(ends.producers[0].claim(0)) and not waits(ends.producers[1].claim(1))
        kept = answer(ends.consumers[0].take(0))
        before = kept["number"].copy()
        ends.push(0, 9)
        assert waits(ends.producers[0].claim(0))
        np.testing.assert_array_equal(kept["number"], before, "what was taken is a copy")

    def test_a_stack_takes_what_came_last_after_a_push_in_between(self, world: World) -> None:
        ends = Ends(world, "stack")
        ends.push(0, 1)
        ends.push(0, 2)
        assert ends.take(0, 0) == 2
        ends.push(0, 3)
        assert [ends.take(1, 0), ends.take(2, 0)] == [3, 1]

    def test_what_is_discarded_is_the_last_that_was_taken(self, world: World) -> None:
        ends = Ends(world, "stack")
        end = ends.consumers[0]
        for number in (1, 2, 3):
            ends.push(0, number)
        newest, middle = answer(end.take(0)), answer(end.take(0))
        assert [newest["number"][0], middle["number"][0]] == [3, 2]
        end.discard(0)
        oldest = answer(end.take(0))
        assert [newest["number"][0], oldest["number"][0]] == [3, 1], "the newest was not what was discarded"
        with pytest.raises(RuntimeError, match="a copy cannot be given back"):
            end.untake(0)

    def test_a_window_never_fills_and_holds_the_newest(self, world: World) -> None:
        ends = Ends(world, "window")
        assert waits(ends.consumers[0].take(0))
        for number in range(10):
            ends.push(0, number)
        assert ends.take(0, 0) == 9 and ends.producers[0].pushed(0) == 10
        assert ends.producers[0].lost() == 9, "nobody had read the nine before"
        assert waits(ends.consumers[0].take(0)), "the same consumer takes a version once"
        ends.push(0, 10)
        assert ends.take(0, 0) == 10 and ends.producers[0].lost() == 9

    def test_a_window_read_by_two_is_a_collision(self, world: World) -> None:
        ends = Ends(world, "window")
        ends.push(0, 5)
        ends.push(1, 6)
        assert ends.take(1, 0) == ends.take(2, 0) == 5 and ends.take(0, 1) == 6
        assert ends.consumers[0].collisions().tolist() == [[1, 0], [1, 0], [1, 1]]

    def test_a_window_may_be_read_again_where_that_is_asked_for(self, world: World) -> None:
        ends = Ends(world, "window", reread=True)
        ends.push(0, 5)
        assert ends.take(0, 0) == ends.take(0, 0) == 5
        assert ends.consumers[0].collisions()[0].tolist() == [1, 0], "one consumer does not collide with itself"

    def test_a_half_filled_window_shows_what_was_there_before(self, world: World) -> None:
        ends = Ends(world, "window")
        ends.push(0, 5)
        half = answer(ends.producers[0].claim(0))
        half["number"][:2] = 99  # its producer dies here
        assert ends.take(0, 0) == 5 and ends.take(1, 0) == 5
        again = answer(ends.producers[0].claim(0))
        assert (again["number"][:2] == 99).all(), "the successor fills the same slot"
        again["number"][...], again["image"][...] = 7, 7
        ends.producers[0].push(0)
        assert ends.take(0, 0) == 7

    def test_take_any_answers_the_first_lane_in_order(self, world: World) -> None:
        ends = Ends(world, "queue")
        assert waits(ends.consumers[1].take_any([0, 1]))
        ends.push(1, 4)
        assert waits(ends.consumers[1].take_any([0]))
        lane, slot = answer(ends.consumers[1].take_any([0, 1]))
        assert lane == 1 and (slot["number"] == 4).all()

    @pytest.mark.parametrize("order", ["queue", "stack", "window"])
    def test_a_lane_is_active_until_it_ended_and_is_empty(self, world: World, order: str) -> None:
        ends = Ends(world, order)
        ends.push(1, 4)
        ends.producers[1].finish(1)
        assert ends.consumers[0].active().tolist() == [True, True]
        assert ends.take(0, 1) == 4
        assert ends.consumers[0].active().tolist() == [True, False]

    def test_release_without_take_and_push_without_claim_are_refused(self, world: World) -> None:
        ends = Ends(world, "queue")
        with pytest.raises(RuntimeError, match="release without take"):
            ends.consumers[0].release(0)
        with pytest.raises(RuntimeError, match="push without claim"):
            ends.producers[0].push(0)


# In one thread all members share one end, and nobody dies alone.
APART = {name: world for name, world in WORLDS.items() if name != "inline"}


@pytest.mark.parametrize("world", APART.values(), ids=APART)
class TestGroupThatBreaks:
    """A member dies and comes anew: the others learn of it once, then all meet again."""

    def test_a_successor_breaks_the_round_and_all_meet_in_a_new_one(self, world: World) -> None:
        names = ["m0", "m1", "m2"]
        spec = GroupSpec(members=3, size=2, roles=tuple(names))
        # A successor has an end of its own over the same memory: a fourth role stands in for it.
        ends = world({"g": spec}, [*names, "successor"])
        groups = [ends[name]["g"] for name in names]
        one = np.ones(2, np.float32)
        first = [group.mean(i, one) for i, group in enumerate(groups)]
        assert all(answer(op)[0] == 1 for op in first)
        pending = [groups[0].mean(0, one), groups[1].mean(1, one)]
        assert all(waits(op) for op in pending)  # member 2 is dead
        again = ends["successor"]["g"]
        anew = again.mean(2, 7 * one)
        for op in pending:
            with pytest.raises(GroupBroken):
                op.attempt()
        assert waits(anew)
        rejoined = [groups[i].mean(i, 4 * one) for i in (0, 1)]
        assert [answer(op)[0] for op in (anew, *rejoined)] == [5, 5, 5]
        assert answer_all([g.mean(i, i * one) for i, g in enumerate([*groups[:2], again])]) == [1, 1, 1]

    def test_a_member_that_was_away_is_told_when_it_comes(self, world: World) -> None:
        ends = world({"g": GroupSpec(members=2, size=1)}, ["m0", "m1", "successor"])
        m0, m1, again = (ends[name]["g"] for name in ("m0", "m1", "successor"))
        one = np.ones(1, np.float32)
        assert answer_all([m0.mean(0, one), m1.mean(1, one)]) == [1, 1]
        anew = again.mean(1, 3 * one)  # while m0 is busy elsewhere
        late = m0.mean(0, one)
        with pytest.raises(GroupBroken):
            late.attempt()
        assert answer_all([anew, m0.mean(0, one)]) == [2, 2]

    def test_vectors_of_one_round_have_one_length(self, world: World) -> None:
        ends = world({"g": GroupSpec(members=2, size=3)}, ["m0", "m1"])
        m0, m1 = ends["m0"]["g"], ends["m1"]["g"]
        assert answer_all([m0.mean(0, np.ones(2, np.float32)), m1.mean(1, np.ones(2, np.float32))]) == [1, 1]
        ops = [m0.mean(0, np.ones(1, np.float32)), m1.mean(1, np.ones(2, np.float32))]
        with pytest.raises(RuntimeError, match=r"vectors of \[1, 2\] numbers"):
            ops[0].attempt()
        with pytest.raises(ValueError, match="at most 3 numbers"):
            m0.mean(0, np.ones(4, np.float32))


def answer_all(ops: list[Any]) -> list[float]:
    return [float(answer(op)[0]) for op in ops]
