"""The collector: steps one actor's environments with a policy and fills slots with unrolls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shoal.acting.compiled_act import compiled_act, compiled_earned, compiled_starts
from shoal.core.blueprint import Blueprint, fitting, named_leaves, restore_leaves
from shoal.core.keys import ACTING, STARTS, key_data, successor_of
from shoal.core.ports import Slot
from shoal.core.program import Context
from shoal.core.trajectory import EARNED


class Collector:
    """One actor's environments and the policy's recurrent state. `collect` fills a slot with the next unroll.

    `again` is a suffix of its key paths, for runs in which unrolls of the same numbers may have been made before a resume.
    """

    def __init__(self, blueprint: Blueprint, index: int, context: Context, again: tuple[int, ...] = ()) -> None:
        self._blueprint, self._index, self._context = blueprint, index, context
        self._again = (*again, *successor_of(context.deaths))
        self._rows = blueprint.make_rows(index, context)
        self._act = compiled_act(blueprint.algorithm)
        self._carry = {n: np.array(a) for n, a in blueprint.algorithm.initial_carry(blueprint.envs).items()}
        self._earned = np.zeros(blueprint.envs, np.float32) if blueprint.earns else None
        # Put on the device once: a call with NumPy arrays or Python numbers would transfer them each time.
        self._explore = jax.device_put(np.ones(blueprint.envs, np.float32))
        self._times = [jax.device_put(np.int32(t)) for t in range(blueprint.unroll)]
        self._starts: Any = blueprint.starts[index] if blueprint.starts else None
        if self._starts is not None:
            self._remembered = self._starts.init(
                jax.random.wrap_key_data(jax.numpy.asarray(key_data(blueprint.seed, STARTS, index)))
            )
        name = f"actor-{index}"
        if name in blueprint.snapshots:
            self.restore(blueprint.snapshots[name])
        self._warm()

    def _warm(self) -> None:
        """Compile `act` before the first weights arrive and before the first step is timed."""
        rows, layout = self._rows, self._blueprint.layout
        actor = jax.device_put(layout.tree(np.zeros(layout.size, np.float32)))
        self._act(actor, rows.obs, self._carry, rows.first, key_data(0), self._times[0], self._explore)

    def collect(self, actor: Any, version: int, unroll: int, slot: Slot) -> None:
        """Fill `slot` with unroll number `unroll`, acting with `actor`."""
        blueprint, rows = self._blueprint, self._rows
        key = jax.device_put(key_data(blueprint.seed, ACTING, self._index, unroll, *self._again))
        slot["clock"][0] = time.monotonic()
        rows.begin(slot, blueprint.algorithm.experience.fresh, self._next_starts(actor, unroll))
        for name, array in self._carry.items():
            slot[f"carry/{name}"][...] = array
        if self._earned is not None:
            slot[f"carry/{EARNED}"][...] = self._earned
        slot["version"][...] = version
        carry: Any = self._carry
        for t, time_step in enumerate(self._times):
            action, extras, carry = self._act(actor, rows.obs, carry, rows.first, key, time_step, self._explore)
            for name, array in extras.items():
                slot[f"extras/{name}"][t] = array
            rows.step(slot, t, np.asarray(action))
            self._context.beat()
        self._carry = {name: np.asarray(array) for name, array in carry.items()}
        if self._earned is not None:
            earned = compiled_earned(blueprint.algorithm)
            self._earned = np.asarray(earned(self._earned, slot["reward"], slot["boundary"], slot["valid"]))
        slot["clock"][1] = time.monotonic()

    def _next_starts(self, actor: Any, unroll: int) -> np.ndarray | None:
        """The initial states of this unroll's episodes; None if the environments choose them."""
        if self._starts is None:
            return None
        key = key_data(self._blueprint.seed, STARTS, self._index, unroll, *self._again)
        sample = compiled_starts(self._starts, self._blueprint.envs)
        starts, self._remembered = sample(self._remembered, actor, key)
        return np.asarray(starts)

    def snapshot(self) -> dict[str, np.ndarray]:
        rows = self._rows.snapshot()
        if not rows:
            return {}
        remembered = named_leaves(self._remembered) if self._starts is not None else {}
        return {
            **rows,
            **{f"carry/{n}": a for n, a in self._carry.items()},
            **({} if self._earned is None else {EARNED: self._earned}),
            **{f"starts/{n}": a for n, a in remembered.items()},
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        def under(prefix: str) -> dict[str, np.ndarray]:
            return {n.removeprefix(prefix): np.array(a) for n, a in arrays.items() if n.startswith(prefix)}

        # The carry depends on settings that may change in a resumed run, such as the kind of noise.
        self._carry = fitting(under("carry/"), self._carry)
        if self._earned is not None and EARNED in arrays:  # missing in a snapshot taken without normalised rewards
            self._earned = np.array(arrays[EARNED])
        if self._starts is not None:
            self._remembered = restore_leaves(self._remembered, under("starts/"))
        self._rows.restore({n: a for n, a in arrays.items() if not n.startswith(("carry/", "starts/", EARNED))})

    def close(self) -> None:
        self._rows.close()
