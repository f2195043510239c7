"""Rows: what is written when episodes end, are dropped, or say NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import EnvFault
from shoal.core.spec import ActionSpec, Categorical, EnvSpec, ObsSpec
from shoal.core.trajectory import trajectory_record
from shoal.envs.autoreset import Rows
from shoal.envs.batch import Step

SPEC = EnvSpec("scripted", ObsSpec((1,)), ActionSpec((Categorical((2,)),), scalar=True))


class Scripted:
    """Two environments; what each step returns is written down, one tuple per environment."""

    def __init__(self, script: list[list[tuple[float, float, str]]], restarts: list[float] | None = None) -> None:
        self.spec, self.size, self.faults = SPEC, 2, list[tuple[str, str]]()
        self.script, self.restarts, self.resets = iter(script), iter(restarts or []), 0
        self.restarted: list[int] = []

    def reset(self) -> np.ndarray:
        self.resets += 1
        return np.full((2, 1), 100.0 * self.resets, np.float32)

    def step(self, action: np.ndarray) -> Step:
        now = next(self.script)
        kinds = [kind for _, _, kind in now]
        if "dropped" in kinds:
            self.faults.append(("env_raised", "the traceback"))
        flags = [np.array([kind == name for kind in kinds]) for name in ("terminated", "truncated", "dropped")]
        obs, reward = (np.array([row[i] for row in now], np.float32) for i in (0, 1))
        obs = obs[:, None]
        obs.flags.writeable = False
        return Step(obs, reward, *flags)

    def restart(self, index: int) -> np.ndarray:
        self.restarted.append(index)
        return np.array([next(self.restarts)], np.float32)

    def snapshot(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        raise AssertionError

    def close(self) -> None: ...


def run(batch: Any, steps: int, faults: list[tuple[str, str]] | None = None) -> dict[str, np.ndarray]:
    rows = Rows(batch, lambda kind, detail: (faults if faults is not None else []).append((kind, detail)))
    slot = trajectory_record(SPEC, steps, 2).empty()
    for array in slot.values():
        array.fill(77)  # whatever was in the slot before must not shine through
    rows.begin(slot)
    for t in range(steps):
        rows.step(slot, t, np.array([t % 2, 1]))
    return slot


def column(slot: dict[str, np.ndarray], name: str, env: int = 0) -> list[Any]:
    return slot[name][:, env].reshape(-1).tolist()


def test_terminated_and_truncated() -> None:
    script = [
        [(1, 0.5, ""), (1, 1, "")],
        [(2, 0.5, "terminated"), (2, 1, "")],
        [(9, 0, ""), (3, 1, "truncated")],
        [(10, 0.5, ""), (9, 0, "")],
    ]
    slot = run(Scripted(script), 4)
    assert column(slot, "obs") == [100, 1, 2, 9, 10]
    assert column(slot, "boundary") == [False, True, False, False]
    assert column(slot, "discount") == [1, 0, 0, 1]
    assert column(slot, "valid") == [True, True, False, True]
    assert column(slot, "first") == [True, False, False, True, False]
    assert column(slot, "reward") == [0.5, 0.5, 0, 0.5]
    assert column(slot, "action") == [0, 1, 0, 1]
    assert column(slot, "discount", 1) == [1, 1, 1, 0]
    assert column(slot, "boundary", 1) == [False, False, True, False]
    assert column(slot, "valid", 1) == [True, True, True, False]
    assert column(slot, "first", 1) == [True, False, False, False, True]


def test_a_cut_ends_the_value_and_not_the_episode() -> None:
    class Cut(Scripted):
        def step(self, action: np.ndarray) -> Step:
            out = super().step(action)
            return out._replace(cut=np.asarray(out.obs)[:, 0] == 2)

    script = [[(1, 1, ""), (1, 1, "")], [(2, 1, ""), (7, 1, "")], [(3, 1, ""), (2, 1, "terminated")]]
    slot = run(Cut(script), 3)
    assert column(slot, "discount") == [1, 0, 1] and column(slot, "discount", 1) == [1, 1, 0]
    assert not any(column(slot, "boundary")) and all(column(slot, "valid"))
    assert column(slot, "first") == [True, False, False, False]


def test_a_dropped_step() -> None:
    script = [[(1, 1, ""), (1, 1, "")], [(50, 3, "dropped"), (2, 1, "")], [(51, 1, ""), (3, 1, "")]]
    faults: list[tuple[str, str]] = []
    slot = run(Scripted(script), 3, faults)
    assert column(slot, "obs") == [100, 1, 50, 51]
    assert column(slot, "valid") == [True, False, True]
    assert column(slot, "boundary") == [False, True, False]
    assert column(slot, "discount") == [1, 0, 1]
    assert column(slot, "reward") == [1, 0, 1]
    assert column(slot, "first") == [True, False, True, False]
    assert column(slot, "valid", 1) == [True] * 3 and not any(column(slot, "boundary", 1))
    assert faults == [("env_raised", "the traceback")]


@pytest.mark.parametrize("bad", [(np.nan, 1.0), (2.0, np.inf), (-np.inf, np.nan)])
def test_nan_drops_the_running_episode(bad: tuple[float, float]) -> None:
    script = [
        [(1, 1, "terminated"), (1, 1, "")],
        [(9, 0, ""), (2, 1, "")],
        [(10, 1, ""), (3, 1, "")],
        [(*bad, "terminated"), (4, 1, "")],
        [(61, 1, ""), (5, 1, "")],
    ]
    faults: list[tuple[str, str]] = []
    batch = Scripted(script, [60])
    slot = run(batch, 5, faults)
    assert batch.restarted == [0]
    assert column(slot, "valid") == [True, False, False, False, True]  # the episode before stays
    assert column(slot, "boundary") == [True, False, False, True, False]
    assert column(slot, "discount") == [0, 0, 1, 0, 1]
    assert column(slot, "obs") == [100, 1, 9, 10, 60, 61]
    assert column(slot, "first") == [True, False, True, False, True, False]
    assert column(slot, "valid", 1) == [True] * 5
    assert all(np.isfinite(slot[name]).all() for name in ("obs", "reward", "discount"))
    assert [kind for kind, _ in faults] == ["env_nan"] and "environment 0 of scripted" in faults[0][1]


def test_nan_in_the_next_unroll_leaves_the_last_one_alone() -> None:
    batch = Scripted([[(1, 1, ""), (1, 1, "")], [(np.nan, 1, ""), (2, 1, "")]], [60])
    rows = Rows(batch, lambda kind, detail: None)
    slots = [trajectory_record(SPEC, 1, 2).empty() for _ in range(2)]
    for slot in slots:
        rows.begin(slot)
        rows.step(slot, 0, np.array([0, 0]))
    assert slots[0]["valid"].all() and column(slots[1], "valid") == [False]
    assert column(slots[1], "obs") == [1, 60] and batch.resets == 1


def test_nan_on_the_autoreset_row() -> None:
    script = [[(1, 1, "terminated"), (1, 1, "")], [(np.nan, 0, ""), (2, 1, "")], [(61, 1, ""), (3, 1, "")]]
    slot = run(Scripted(script, [60]), 3)
    assert column(slot, "valid") == [True, False, True]
    assert column(slot, "obs") == [100, 1, 60, 61]
    assert column(slot, "first") == [True, False, True, False]


def test_nan_for_ever() -> None:
    with pytest.raises(EnvFault, match="'scripted' began 10 episodes"):
        run(Scripted([[(np.nan, 1, ""), (1, 1, "")]], [np.nan] * 10), 1)


def test_fresh_resets_every_time() -> None:
    batch = Scripted([[(1, 1, "terminated"), (1, 1, "")], [(2, 1, ""), (2, 1, "")]])
    rows = Rows(batch, lambda kind, detail: None)
    slot = trajectory_record(SPEC, 1, 2).empty()
    for _ in range(2):
        rows.begin(slot, fresh=True)
        rows.step(slot, 0, np.array([0, 0]))
        assert slot["valid"].all() and slot["first"][0].all()
    assert batch.resets == 2 and column(slot, "obs") == [200, 2]
