"""Group: one contract over every runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import WORLDS, World, answer, waits

from shoal.core.ports import Op
from shoal.core.program import (
    GroupSpec,
)


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
        with pytest.raises(RuntimeError, match="member 1 entered one round twice"):
            group.mean(1, self.VECTORS[1])
        assert group.members == 3
