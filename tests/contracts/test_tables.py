"""Table and Roster: one contract over every runtime.

Between roles that run at the same time nothing is lost under a lock, and what is lost without one is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import table_roles
from table_roles import TURNS
from worlds import WORLDS, World, answer, waits

from shoal.core.program import Fault, Report, RosterSpec, TableSpec
from shoal.runtimes import RUNTIMES


def outcome(runtime: str, consistency: str, pusher: Any = table_roles.Pusher) -> tuple[Any, list[Fault]]:
    """What the table holds after two workers have pushed, and what broke meanwhile."""
    made = RUNTIMES[runtime]
    session = made(made.Config()).start(table_roles.program(consistency, pusher), lambda: False)
    faults = []
    try:
        for event in session:
            if isinstance(event, Report):
                return event.state, faults
            faults.append(event)
    finally:
        session.close()
    raise AssertionError("the session ended without a report")


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_under_a_lock_nothing_is_lost_and_nobody_sees_half_a_version(runtime: str) -> None:
    state, faults = outcome(runtime, "lock")
    assert state["count"] == TURNS and (state["vector"] == TURNS).all()
    assert state["torn"] == 0 and state["lost"] == 0 and not faults
    assert sum(state["turns"]) == TURNS and min(state["turns"]) > 0
    if runtime == "inline":
        assert state["turns"] == [TURNS // 2] * 2


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_hogwild_knows_what_it_loses(runtime: str) -> None:
    state, _ = outcome(runtime, "hogwild")
    assert state["count"] == TURNS, "pushes are counted exactly, whatever becomes of what they add"
    missing = TURNS - state["vector"]
    # A worker that the kernel stops between reading and writing one block overwrites there all that the other adds meanwhile.
    assert (missing >= 0).all() and (missing < TURNS).all() and missing.mean() < TURNS / 2
    np.testing.assert_allclose(state["lost"], missing[::20].mean() / TURNS, rtol=1e-6)
    if runtime == "inline":
        assert state["lost"] == 0


def test_a_worker_that_dies_inside_a_push_leaves_nothing_and_its_turn_to_the_next() -> None:
    state, faults = outcome("processes", "lock", table_roles.Dying)
    assert [fault.kind for fault in faults] == ["actor_died"]
    assert state["count"] == TURNS and (state["vector"] == TURNS).all() and state["torn"] == 0


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

    @pytest.mark.parametrize("consistency", ["hogwild", "lock"])
    def test_move_is_exact_where_nothing_was_pushed_since_and_adds_the_difference_elsewhere(
        self, world: World, consistency: str
    ) -> None:
        a, b = self.ends(world, consistency)
        old, new = np.array([0.1, 0.2, 0.3], np.float32), np.array([0.7, 1e-9, -3.3], np.float32)
        a.put(old)
        answer(b.move(old, new))
        assert a.pull()[1].tobytes() == new.tobytes()
        answer(a.push(0, np.array([0, 0, 1], np.float32)))
        answer(b.move(new, old))
        moved = a.pull()[1]
        assert moved[:2].tobytes() == old[:2].tobytes() and moved[2] == pytest.approx(1.3)
        if consistency == "hogwild":
            assert a.lost() == pytest.approx(0, abs=1e-6), "what is moved is not counted as lost"

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

    def test_one_that_waits_for_the_others_leaves_the_turns_to_them(self, world: World) -> None:
        a, b, main = self.ends(world)
        main.open()
        early = a.meet(0)
        for number in (0, 1):
            assert answer(b.turn(1)) == number
            b.finish(1)
        assert waits(early)
        assert not waits(b.meet(1)) and not waits(early)
        assert answer(a.turn(0)) == 2 and answer(b.turn(1)) == 3
