"""The replay inside a compiled loop: one ring of rows on the device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from shoal.core.keys import key_data
from shoal.core.trajectory import as_trajectory
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning import fused_replay
from shoal.learning.replay_update import row_record
from shoal.replay import Rings

T, B, SLOTS = 6, 3, 60


def make() -> Any:
    algo = {"name": "dqn", "unroll": T, "batch_size": 8, "capacity": SLOTS, "warmup": 0, "every": 4, "n_step": 1}
    loose = {"backend": "jax", "envs": B, "algo": {**algo, "reward_scale": 1}, "net": {"hidden": (8,)}, "steps": 10_000}
    return make_blueprint(resolve("CartPole-v1", {**loose, "runtime": "fused"}), None, None)


@pytest.mark.parametrize("before", [0, SLOTS - 1, 2**31 - 5, 2**31 + 7])
def test_rows_find_their_slots_however_many_there_have_been(before: int) -> None:
    """A count of all rows does not fit into 32 bits after a day of a small net."""
    blueprint = make()
    saved = Rings.over(Rings.record(row_record(blueprint), 1, SLOTS).empty()).snapshot()
    saved |= {name: np.zeros((1, SLOTS, *array.shape[2:]), array.dtype) for name, array in saved.items() if "/" in name}
    replay = fused_replay.restored(blueprint, {**saved, "counters": np.array([[before, before]])})
    state, slot = blueprint.initial_state(), blueprint.record.empty()
    slot["valid"][...], slot["discount"][...] = True, 1.0
    acted = blueprint.algorithm.actor_state(state)
    update = jax.jit(
        lambda replay, state, trajectory: fused_replay.replay_update(
            blueprint, replay, state, acted, trajectory, key_data(0), np.float32(0)
        )
    )
    for number in range(3):
        slot["reward"][...] = 1 + np.arange(T * B).reshape(T, B) + number * T * B
        state, replay, metrics = update(replay, state, as_trajectory(slot))
    count = 3 * T * B
    found = np.asarray(replay.rows.reward)[(before + np.arange(count)) % SLOTS]
    np.testing.assert_array_equal(found, 1 + np.arange(count))
    assert metrics["replay/rows"] == min(before + count, SLOTS)
    assert int(state.step) > 0, "it still learns"
    counters = fused_replay.snapshot(replay)["counters"]
    assert (counters % SLOTS == (before + count) % SLOTS).all() and (counters < 2 * SLOTS).all()
