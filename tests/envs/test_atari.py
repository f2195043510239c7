"""Atari: evaluation on ale-py shows, pixel for pixel, the game that EnvPool trains on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.envs import atari
from shoal.envs.source import find

pytest.importorskip("envpool")
pytest.importorskip("ale_py")


class _Idle:
    """Stands in for the generator that draws the number of idle frames."""

    def __init__(self, frames: int) -> None:
        self.frames = frames

    def integers(self, low: int, high: int) -> int:
        assert (low, high) == (1, 31)
        return self.frames


def test_pixel_for_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    source = find("Breakout-v5")
    assert (source.backend, source.judge, source.spec().obs.shape) == ("envpool", "gymnasium", (84, 84, 4))
    actions = np.random.default_rng(0).integers(0, 4, 60).astype(np.int32)
    batch = source.batch(1, 0, 0)
    theirs: list[Any] = [np.array(batch.reset()[0])]
    for action in actions:
        step = batch.step(np.array([action]))
        theirs.append((np.array(step.obs[0]), float(step.reward[0]), bool(step.terminated[0])))
    batch.close()
    env, matches = source.single(), 0
    for frames in range(1, 31):  # EnvPool drew one of these
        monkeypatch.setattr(atari._IdleStart, "np_random", _Idle(frames), raising=False)
        if not np.array_equal(env.reset(0), theirs[0]):
            continue
        equal = True
        for action, (obs, reward, terminated) in zip(actions, theirs[1:], strict=True):
            mine = env.step(action)
            equal = equal and np.array_equal(mine[0], obs) and mine[1:3] == (reward, terminated)
        if equal:
            matches = frames
            break
    env.close()
    assert matches


def test_both_names_are_one_game() -> None:
    assert find("ALE/Breakout-v5").spec().obs == find("Breakout-v5", "gymnasium").spec().obs
    assert find("ALE/Breakout-v5").backend == "envpool"


def test_idle_starts_differ_by_seed() -> None:
    env = find("ALE/SpaceInvaders-v5", "gymnasium").single()
    first = {env.reset(seed).tobytes() for seed in range(6)}
    again = {env.reset(seed).tobytes() for seed in range(6)}
    env.close()
    assert len(first) > 1 and first == again
