"""The Pool port on plain memory: `replay.Rings` laid over it. It needs neither locks nor bells."""

from __future__ import annotations

from typing import Any

from shoal.core.program import PoolSpec
from shoal.replay import Rings


class MemoryPool(Rings):
    """Rings in memory that all roles see."""

    def __init__(self, spec: PoolSpec, buffer: Any, offset: int, place: Any) -> None:
        views = self.record(spec.record, spec.workers, spec.slots).views(buffer, offset)
        super().__init__(views["counters"], self.rows_of(views))

    @staticmethod
    def nbytes(spec: PoolSpec) -> int:
        return Rings.record(spec.record, spec.workers, spec.slots).nbytes
