"""The server of one slice of the weights: takes gradients from its workers, runs the optimiser on its slice, publishes."""

from __future__ import annotations

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.blueprint import Blueprint
from shoal.core.ports import Stream, Table
from shoal.core.program import Context, Ports, Snapshot, Steps
from shoal.core.weights import moved
from shoal.learning.shared_layout import SharedLayout
from shoal.learning.soundness import Watch, is_sound, weight_norm


class Shard:
    """Row `index` of the table is this server's: params, moments and single numbers of its slice."""

    def __init__(self, blueprint: Blueprint, index: int, ports: Ports, context: Context) -> None:
        layout = SharedLayout(blueprint.algorithm, share_moments=True)
        self._blueprint, self._index, self._watch = blueprint, index, Watch(context)
        self._table: Table = ports["weights"]
        self._stream: Stream = ports[f"gradients-{index}"]
        self._size = layout.slice_size(self._table.rows)
        row, gradient = np.zeros(layout.shard_width(self._table.rows), np.float32), np.zeros(self._size, np.float32)
        apply = partial(layout.apply_slice, layout.group_slice(index, self._table.rows))
        moved = np.zeros(max(1, len(blueprint.algorithm.groups)), bool)
        self._apply = jax.jit(apply).lower(row, gradient, np.float32(0), moved).compile()
        for lane in range(self._stream.lanes):  # gradients that a predecessor had taken are lost: free their slots
            with contextlib.suppress(RuntimeError):
                while True:
                    self._stream.release(lane)

    def run(self) -> Steps:
        lanes, index = list(range(self._stream.lanes)), self._index
        while True:
            lane, slot = yield from self._stream.take_any(lanes)
            pulled, row = self._table.pull(index)
            progress = slot["progress"][0].copy()
            new = np.asarray(self._apply(row, slot["gradient"], progress, slot["moved"]))
            self._stream.release(lane)
            new = self._judged(row, new, progress)
            # Only the server writes here, unless a driver hands in weights meanwhile.
            yield from self._table.change(
                [index],
                lambda versions, rows, new=new, row=row, pulled=pulled: [  # type: ignore[misc]
                    new if versions[0] == pulled else moved(rows[0], row, new)
                ],
            )
            lanes.append(lanes.pop(lanes.index(lane)))  # the lane served last goes to the end

    def _judged(self, row: np.ndarray, new: np.ndarray, progress: float) -> np.ndarray:
        """The new row, or the old one if the new weights are not sound: then the gradient is dropped."""
        if is_sound(new[: self._size], {}) and np.isfinite(new).all():
            self._watch.good()
            return new
        now = self._blueprint.initial_state()._replace(progress=jnp.float32(progress))
        rate, weights = float(self._blueprint.algorithm.rate(now)), weight_norm(new[: self._size])
        self._watch.bad({"seen/rate": rate, "seen/weights": weights})
        return row

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        return None
