"""Run by mpiexec: the contract tests of the ports with every end on a rank of its own, then roles that hammer them.

Prints a line of JSON a test: its name, and the traceback where it failed.
"""

from __future__ import annotations

import inspect
import itertools
import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import port_roles
import test_calls
import test_groups
import test_pools
import test_ports
import test_shared_streams
import test_tables
from far_ends import Stage
from worlds import answer, waits

from shoal.core.program import GroupSpec
from shoal.runtimes import mpi
from shoal.runtimes.ranks import leave, ranks

RMA = (test_ports.TestStream, test_ports.TestBoard, test_shared_streams.TestSharedStream)
SHARED = (
    *RMA,
    test_tables.TestTable,
    test_tables.TestRoster,
    test_calls.TestCall,
    test_groups.TestGroup,
    test_pools.TestPool,
)
# Tests that look behind an end, which is on another rank here, or that have two worlds at once.
BEHIND = {
    "test_change_sees_the_newest_and_replaces_it_exactly",
    "test_what_races_lose_is_seen",
    "test_a_snapshot_can_be_taken_in_elsewhere",
}
PUSHES, LOCKSTEP = 200, 30  # waiting ranks nap: the thousands of the other runtimes would take long


class TestGroupOfRanks:
    """Members on ranks of their own: the bits are those of every other runtime, whoever comes first."""

    ROLES = ("a", "b", "c")

    def ends(self, world: Any) -> list[Any]:
        ends = world({"g": GroupSpec(members=3, size=2, roles=self.ROLES)}, list(self.ROLES))
        return [ends[role]["g"] for role in self.ROLES]

    def test_all_leave_with_the_same_bits(self, world: Any) -> None:
        groups, vectors = self.ends(world), test_groups.TestGroup.VECTORS
        for arrival in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            ops: dict[int, Any] = {}
            for member in arrival:
                assert all(waits(op) for op in ops.values())
                ops[member] = groups[member].mean(member, vectors[member])
            expected = ((vectors[0] + vectors[1]) + vectors[2]) / np.float32(3)
            assert {answer(ops[member]).tobytes() for member in range(3)} == {expected.tobytes()}

    def test_another_round_may_be_shorter(self, world: Any) -> None:
        for size in (2, 1):
            ops = [group.mean(i, np.full(size, i, np.float32)) for i, group in enumerate(self.ends(world))]
            assert [answer(op).tolist() for op in ops] == [[1.0] * size] * 3

    def test_a_round_to_which_not_all_came_ends_with_the_ports(self, world: Any) -> None:
        self.ends(world)[2].mean(2, np.ones(2, np.float32))
        ops = [group.mean(i, np.full(2, i, np.float32)) for i, group in enumerate(self.ends(world))]
        assert [answer(op).tolist() for op in ops] == [[1.0] * 2] * 3


def cases(group: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Its tests with their parameters, as pytest would call them."""
    for name, test in inspect.getmembers(group, inspect.isfunction):
        if not name.startswith("test_") or name in BEHIND:
            continue
        choices = []
        for mark in getattr(test, "pytestmark", []):
            names, values = mark.args
            names = [word.strip() for word in names.split(",")] if isinstance(names, str) else names
            choices.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in values])
        for chosen in itertools.product(*choices):
            yield name, {key: value for one in chosen for key, value in one.items()}


def report(name: str, failure: str) -> None:
    print(json.dumps({"test": name, "failure": failure}), flush=True)


def contracts(stage: Stage, windows: str) -> None:
    for group in (*(RMA if windows == "rma" else SHARED), TestGroupOfRanks):
        for name, words in cases(group):
            failure = ""
            try:
                getattr(group(), name)(world=stage, **words)
            except Exception:
                failure = f"{words}\n{traceback.format_exc()}"
            report(f"{group.__name__}.{name}", failure)


def hammer(windows: str) -> None:
    """Three producers, each on its rank, and a consumer that publishes as fast as it can."""
    session = mpi.Mpi(mpi.MpiConfig(windows=windows)).start(port_roles.hammer(3), lambda: False)  # type: ignore[arg-type]
    seen = next(iter(session)).state  # type: ignore[union-attr]
    session.close()
    whole = list(range(PUSHES + 1 + LOCKSTEP))
    wrong = [lane for lane, got in enumerate(seen) if [number for number, *_ in got] != whole]
    report("hammer: nothing is lost, doubled or reordered", f"lanes {wrong}" if wrong else "")
    torn = sum(torn or not complete for lane in seen for _, _, torn, complete in lane)
    report("hammer: slots and versions arrive whole", f"{torn} torn" if torn else "")
    versions = [[version for _, version, _, _ in lane[:PUSHES]] for lane in seen]
    moved = all(v == sorted(v) and len(set(v)) > PUSHES // 4 for v in versions)
    report("hammer: versions rise, and readers see them move", "" if moved else str(versions))
    read = [[version for _, version, _, _ in lane[PUSHES + 1 :]] for lane in seen]
    report("hammer: read gives the version asked for", "" if read == [list(range(LOCKSTEP))] * 3 else str(read))


def main(windows: str) -> None:
    port_roles.PUSHES, port_roles.LOCKSTEP = PUSHES, LOCKSTEP
    here = ranks()
    stage = Stage(here, windows)
    if here.rank == 0:
        contracts(stage, windows)
        stage.close()
        hammer(windows)
    else:
        stage.serve()
        mpi._serve(here)
    leave(0)


if __name__ == "__main__":
    main(sys.argv[1])
