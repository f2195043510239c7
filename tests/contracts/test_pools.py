"""Pool: one contract over every runtime, and while its writer writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pool_roles
import pytest
from worlds import CONCURRENT, WORLDS, World

from shoal.core.program import (
    PoolSpec,
    Report,
)
from shoal.core.record import Field, Record
from shoal.runtimes import RUNTIMES


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
