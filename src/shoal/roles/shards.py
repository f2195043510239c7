"""The server of one slice of the weights: takes gradients from its workers, runs the optimiser on its slice, publishes."""

from __future__ import annotations

import contextlib

import jax
import numpy as np

from shoal.core.ports import Stream, Table
from shoal.core.program import Context, Ports, Snapshot, Steps
from shoal.roles.packing import Packing
from shoal.roles.parts import Parts


class Shard:
    """Row `index` of the table is this server's: params, moments and single numbers of its slice."""

    def __init__(self, parts: Parts, index: int, ports: Ports, context: Context) -> None:
        packing = Packing(parts.algorithm, share_moments=True)
        self._index = index
        self._table: Table = ports["weights"]
        self._stream: Stream = ports[f"gradients-{index}"]
        size = packing.slice_size(self._table.rows)
        row, gradient = np.zeros(packing.shard_width(self._table.rows), np.float32), np.zeros(size, np.float32)
        self._apply = jax.jit(packing.apply_slice).lower(row, gradient, np.float32(0)).compile()
        for lane in range(self._stream.lanes):  # what a predecessor had taken is lost with it: its slots are free again
            with contextlib.suppress(RuntimeError):
                while True:
                    self._stream.release(lane)

    def run(self) -> Steps:
        lanes, index = list(range(self._stream.lanes)), self._index
        while True:
            lane, slot = yield from self._stream.take_any(lanes)
            _, row = self._table.pull(index)
            new = np.asarray(self._apply(row, slot["gradient"], slot["progress"][0]))
            self._stream.release(lane)
            yield from self._table.change([index], lambda _, rows, new=new: [new])  # type: ignore[misc]
            lanes.append(lanes.pop(lanes.index(lane)))  # whoever was served last comes last

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        return None
