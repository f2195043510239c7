"""Python environments that raise, cannot be rebuilt, or are too long to play again."""

from __future__ import annotations

import logging
import sys
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from shoal.core.errors import EnvFault
from shoal.core.trajectory import trajectory_record
from shoal.envs import gymnasium as ours
from shoal.envs.autoreset import Rows
from shoal.envs.gymnasium import GymnasiumBatch, GymnasiumSingle

NOTHING = np.zeros(2, np.int32)


class Fragile(gymnasium.Env[Any, Any]):
    """Raises in `step` when told to by action 1; its observation is (seed's number, steps)."""

    made = 0
    closed = 0
    reset_fails = 0  # so many resets to come will raise

    def __init__(self) -> None:
        type(self).made += 1
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if type(self).reset_fails:
            type(self).reset_fails -= 1
            raise OSError("no such simulator")
        self.tag, self.steps = float(self.np_random.uniform()), 0
        return np.array([self.tag, 0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if action == 1:
            raise ZeroDivisionError("the physics exploded")
        self.steps += 1
        return np.array([self.tag, self.steps], np.float32), 1.0, False, False, {}

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def batch() -> Any:
    Fragile.made = Fragile.closed = Fragile.reset_fails = 0
    return GymnasiumBatch("fragile", Fragile, 2, 0, 0)


def test_an_env_that_raises_is_made_anew(batch: GymnasiumBatch) -> None:
    first = batch.reset().copy()
    batch.step(NOTHING)
    step = batch.step(np.array([1, 0], np.int32))
    assert step.dropped.tolist() == [True, False] and step.reward.tolist() == [0, 1]
    assert step.obs[0, 1] == 0 and step.obs[0, 0] != first[0, 0] and step.obs[1, 1] == 2
    ((kind, detail),) = batch.faults
    assert kind == "env_raised" and "ZeroDivisionError: the physics exploded" in detail and "in step" in detail
    assert Fragile.made == 3 and Fragile.closed == 1
    assert batch.step(NOTHING).obs[0, 1] == 1
    batch.close()
    assert Fragile.closed == 3


def test_an_env_that_ends_the_program_ends_its_episode(batch: GymnasiumBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: Any, action: int) -> Any:
        sys.exit("the licence has expired")

    batch.reset()
    monkeypatch.setattr(Fragile, "step", step)
    assert batch.step(NOTHING).dropped.all()
    assert [kind for kind, _ in batch.faults] == ["env_raised"] * 2
    assert "SystemExit: the licence has expired" in batch.faults[0][1]


def test_a_failing_reset_is_tried_again(batch: GymnasiumBatch) -> None:
    batch.reset()
    Fragile.reset_fails = 2
    assert batch.step(np.array([1, 0], np.int32)).dropped[0]
    assert batch.step(NOTHING).dropped[0]
    step = batch.step(NOTHING)
    assert step.dropped[0] and step.obs[0, 1] == 0
    assert not batch.step(NOTHING).dropped[0]
    assert [kind for kind, _ in batch.faults] == ["env_raised"] * 3
    assert "no such simulator" in batch.faults[1][1]


def test_after_ten_failures_in_a_row_it_gives_up(batch: GymnasiumBatch) -> None:
    batch.reset()
    Fragile.reset_fails = 1000
    for _ in range(9):
        batch.step(np.array([1, 0], np.int32))
    with pytest.raises(EnvFault, match="'fragile' failed 10 times in a row to start again: OSError: no such simulator"):
        batch.step(np.array([1, 0], np.int32))
    assert len([1 for _, detail in batch.faults if "no such simulator" in detail]) == 10


def test_restart_survives_a_failing_reset(batch: GymnasiumBatch) -> None:
    batch.reset()
    Fragile.reset_fails = 3
    assert np.isfinite(batch.restart(0)).all() and len(batch.faults) == 3
    assert not batch.step(NOTHING).dropped.any()


def test_restart_right_after_an_end_steps_at_once() -> None:
    class Short(Fragile):
        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, True, truncated, info

    batch = GymnasiumBatch("short", Short, 2, 0, 0)
    batch.reset()
    assert batch.step(NOTHING).terminated.all()
    batch.restart(0)
    after = batch.step(NOTHING)
    assert after.terminated.tolist() == [True, False] and after.obs[:, 1].tolist() == [1, 0]
    batch.reset()
    assert batch.step(NOTHING).terminated.all()


def test_wrong_arity_is_a_fault() -> None:
    class Old(Fragile):
        def step(self, action: int) -> Any:
            return np.zeros(2, np.float32), 1.0, False, {}

    batch = GymnasiumBatch("old", Old, 1, 0, 0)
    batch.reset()
    assert batch.step(NOTHING[:1]).dropped.all() and "not enough values" in batch.faults[0][1]


def test_a_constructor_that_fails_half_way_leaves_nothing_open() -> None:
    Fragile.made = Fragile.closed = 0

    def make() -> Fragile:
        if Fragile.made == 2:
            raise MemoryError("no more")
        return Fragile()

    with pytest.raises(MemoryError):
        GymnasiumBatch("fragile", make, 4, 0, 0)
    assert Fragile.closed == 2


def test_close_closes_all_even_if_one_fails() -> None:
    class Sticky(Fragile):
        def close(self) -> None:
            super().close()
            raise OSError("sticky")

    Sticky.made = Sticky.closed = 0
    batch = GymnasiumBatch("sticky", Sticky, 3, 0, 0)
    with pytest.raises(OSError, match="sticky"):
        batch.close()
    assert Sticky.closed == 3


def test_every_episode_has_its_own_seed(batch: GymnasiumBatch) -> None:
    tags = [batch.reset()[:, 0].copy() for _ in range(5)]
    assert len(np.unique(tags)) == 10


def test_a_snapshot_plays_the_actions_again(batch: GymnasiumBatch) -> None:
    batch.reset()
    for _ in range(4):
        batch.step(NOTHING)
    saved = batch.snapshot()
    expected = batch.step(NOTHING).obs.copy()
    again = GymnasiumBatch("fragile", Fragile, 2, 0, 0)
    again.restore(saved)
    assert np.array_equal(again.step(NOTHING).obs, expected) and again.snapshot()["lengths"].tolist() == [5, 5]


def test_too_long_an_episode_begins_anew(
    batch: GymnasiumBatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ours, "REPLAYED", 5)
    spec = batch.spec
    rows = Rows(batch, lambda kind, detail: None)
    slot = trajectory_record(spec, 7, 2).empty()
    rows.begin(slot)
    for t in range(7):
        if t == 4:
            batch.restart(1)
        rows.step(slot, t, NOTHING)
    saved = rows.snapshot()
    later = Rows(GymnasiumBatch("fragile", Fragile, 2, 0, 0), lambda kind, detail: None)
    with caplog.at_level(logging.WARNING, "shoal"):
        later.restore(saved)
    assert "too long to replay" in caplog.text
    slot = trajectory_record(spec, 2, 2).empty()
    later.begin(slot)
    for t in range(2):
        later.step(slot, t, NOTHING)
    assert slot["valid"][:, 0].tolist() == [False, True] and slot["first"][:, 0].tolist() == [False, True, False]
    assert slot["obs"][1, 0, 1] == 0 and slot["obs"][:, 1, 1].tolist() == [3, 4, 5]
    assert slot["valid"][:, 1].all()


def test_mixed_actions_arrive_as_the_space_says() -> None:
    seen: list[Any] = []

    class Picky(Fragile):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Dict(
                {"gear": gymnasium.spaces.Discrete(3, start=1), "gas": gymnasium.spaces.Box(0, 10, (1,))}
            )

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            seen.append(action)
            return super().step(0)

    batch = GymnasiumBatch("picky", Picky, 2, 0, 0)
    batch.reset()
    batch.step(np.array([[-1.0, 2.0], [1.0, 0.0]], np.float32))
    assert batch.faults == []
    assert [(float(a["gas"][0]), int(a["gear"])) for a in seen] == [(0.0, 3), (10.0, 1)]


class Painted(gymnasium.Env[Any, Any]):
    """Draws what it was given, which may be no picture."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"
    picture: Any = None

    def render(self) -> Any:
        return self.picture


@pytest.mark.parametrize("picture", [None, np.full((4, 4, 3), 0.9, np.float32), np.full((4, 4, 3), 9, np.uint8)])
def test_a_picture_is_passed_on_as_it_is(picture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Painted, "picture", picture)
    assert GymnasiumSingle("Painted", Painted(), True).render() is picture
