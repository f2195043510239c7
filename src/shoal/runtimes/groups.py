"""Group on plain memory: each member writes its own row, and all members add up all rows in the same order.

Two sets of rows alternate: a member that enters a round has left the previous one, so none can be two rounds ahead. A
dead member's successor, which joins under the same number, begins a new generation: the others leave their rounds with
`GroupBroken`, and all meet in the new generation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.ports import NOT_YET, GroupBroken, Op
from shoal.core.program import GroupSpec
from shoal.core.record import Field, Record

if TYPE_CHECKING:
    from shoal.runtimes.memory import Place


class MemoryGroup:
    """`arrived`, `joined`, `length` and the rows of a member are written by it alone; `generation` only rises."""

    def __init__(self, spec: GroupSpec, buffer: Any, offset: int, place: Place) -> None:
        self.members, self._size = spec.members, spec.size
        views = _layout(spec).views(buffer, offset)
        self._generation, self._joined, self._arrived, self._length, self._rows = (
            views[f.name] for f in _layout(spec).fields
        )
        self._mine: dict[int, int] = {}  # the generation of each member that uses this end
        self._bells = [place.bells[name] for name in (spec.roles or place.bells)]
        self._waits = None if place.me is None else place.bells[place.me].wait

    @staticmethod
    def nbytes(spec: GroupSpec) -> int:
        return _layout(spec).nbytes

    def mean(self, member: int, vector: np.ndarray) -> Op[np.ndarray]:
        if vector.ndim != 1 or vector.size > self._size:
            raise ValueError(f"a vector of shape {vector.shape}; this group's have at most {self._size} numbers")
        if member not in self._mine:
            self._join(member)
        generation, mine = self._mine[member], int(self._arrived[member])
        if generation == self._generation[0] and mine > self._complete(generation):
            raise RuntimeError(f"member {member} entered one round twice")
        rows, length = self._rows[mine % 2], vector.size
        rows[member, :length] = vector
        self._length[mine % 2, member] = length
        self._arrived[member] = mine + 1
        self._ring()

        def attempt() -> Any:
            if self._generation[0] == generation and self._complete(generation) <= mine:
                return NOT_YET
            lengths = self._length[mine % 2].tolist()
            total = rows[0, :length].copy()
            for other in range(1, self.members):
                total += rows[other, :length]
            if self._generation[0] != generation:  # checked last: a successor writes only after it has begun a new one
                self._mine.pop(member, None)
                raise GroupBroken(f"a member of the group was restarted in round {mine}")
            if len(set(lengths)) > 1:
                raise RuntimeError(f"round {mine}: vectors of {lengths} numbers in one round")
            return np.asarray(total / np.float32(self.members))

        return Op(attempt, self._waits, f"the other members of round {mine}")

    def _join(self, member: int) -> None:
        generation = int(self._generation[0])
        if self._joined[member] == generation + 1:  # zero means never: a member of this number has joined before
            generation += 1
            self._generation[0] = generation
            self._ring()
        self._arrived[member] = 0
        self._joined[member] = generation + 1
        self._mine[member] = generation

    def _complete(self, generation: int) -> int:
        """Number of rounds that every member has entered."""
        return int(self._arrived.min()) if (self._joined == generation + 1).all() else 0

    def _ring(self) -> None:
        for bell in self._bells:
            bell.ring()


def _layout(spec: GroupSpec) -> Record:
    return Record(
        (
            Field("generation", (1,), "int64"),
            Field("joined", (spec.members,), "int64"),
            Field("arrived", (spec.members,), "int64"),
            Field("length", (2, spec.members), "int64"),
            Field("rows", (2, spec.members, spec.size), "float32"),
        )
    )
