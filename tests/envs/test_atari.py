"""Atari: evaluation on ale-py shows, pixel for pixel, the game that EnvPool trains on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.core.trajectory import trajectory_record
from shoal.envs import atari
from shoal.envs import envpool as pool
from shoal.envs.autoreset import Rows
from shoal.envs.source import Source, find
from shoal.experiment import resolve

pytest.importorskip("envpool")
pytest.importorskip("ale_py")


class _Idle:
    """Stands in for the generator that draws the number of idle frames."""

    def __init__(self, frames: int) -> None:
        self.frames = frames

    def integers(self, low: int, high: int) -> int:
        assert (low, high) == (1, 31)
        return self.frames


@pytest.mark.parametrize(
    "game", [pytest.param("Breakout-v5", marks=pytest.mark.slow), "Pong-v5", "MsPacman-v5"]
)  # the last has no FIRE
def test_pixel_for_pixel(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1 to 30 idle frames, the last of them FIRE: for each start of EnvPool's there is the same one here."""
    source = find(game)
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


def test_rewards_are_raw_and_a_lost_life_does_not_end_the_episode() -> None:
    """Breakout's five lives in one episode of both, and a score that is the sum of its bricks, some worth more than 1."""
    source = find("Breakout-v5")
    batch, single, rng = source.batch(1, 0, 0), source.single(), np.random.default_rng(0)
    batch.reset()
    single.reset(0)
    lengths = []
    for step in (
        lambda action: bool(batch.step(np.array([action], np.int32)).terminated[0]),
        lambda action: single.step(np.int32(action))[2],
    ):
        lengths.append(next(t for t in range(1, 2000) if step(int(rng.integers(0, 4)))))
    batch.close()
    single.close()
    assert min(lengths) > 5 * 18, "a ball takes 18 steps to fall at least"
    assert (pool.ATARI["reward_clip"], pool.ATARI["episodic_life"]) == (False, False)


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_training_counts_nothing_after_a_lost_life(backend: str) -> None:
    """The value is cut five times an episode, the episode ends once, and its score is that of all lives."""
    source = replace(find("Breakout-v5", backend), life_ends=True)  # type: ignore[type-var]
    rows, steps = Rows(source.batch(1, 0, 0), lambda kind, detail: None), 400
    slot = trajectory_record(source.spec(), steps, 1).empty()
    rows.begin(slot)
    rng = np.random.default_rng(1)
    for t in range(steps):
        rows.step(slot, t, rng.integers(0, 4, 1).astype(np.int32))
    rows.close()
    end = int(np.flatnonzero(slot["boundary"][:, 0])[0])
    cuts = np.flatnonzero(slot["discount"][: end + 1, 0] == 0)
    assert len(cuts) == 5 and cuts[-1] == end
    assert slot["valid"][: end + 1].all() and not slot["first"][1 : end + 1].any()


def test_lives_are_for_atari() -> None:
    assert find("Breakout-v5").atari and find("ALE/Breakout-v5", "gymnasium").atari and not find("CartPole-v1").atari
    with pytest.raises(BadInput, match="CartPole-v1 is not an Atari game"):
        resolve("CartPole-v1", {"life_ends": True})
    source, names = find("Breakout-v5"), [name for name in dir(Source) if not name.startswith("_")]
    own = SimpleNamespace(**{name: getattr(source, name) for name in names})
    assert isinstance(own, Source)
    with pytest.raises(BadInput, match="Breakout-v5 is a source of its own"):
        resolve(own, {"life_ends": True})
