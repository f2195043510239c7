"""One contract over every backend: whatever steps environments, rows of a trajectory look the same."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from shoal.core.trajectory import trajectory_record
from shoal.envs.autoreset import Rows
from shoal.envs.source import EnvSource, find

B, T = 3, 60


class Walk(gymnasium.Env[Any, Any]):
    """A random walk that terminates at +-4 and is truncated after 15 steps; actions begin at 1."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = float(self.np_random.uniform(-1, 1)), 0
        return np.array([self.at, 0.0]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert action in (1, 2)
        self.steps += 1
        self.at += (2 * action - 3) + 0.1 * float(self.np_random.normal())
        return np.array([self.at, self.steps]), self.at, abs(self.at) > 4, self.steps >= 15, {}


CASES = {
    "envpool-CartPole": ("CartPole-v1", "envpool"),
    "envpool-LunarLander": ("LunarLander-v3", "envpool"),
    "gymnasium-CartPole": ("CartPole-v1", "gymnasium"),
    "jax-CartPole": ("CartPole-v1", "jax"),
    "own": (Walk, "auto"),
}
SAVING = ("gymnasium-CartPole", "jax-CartPole", "own")


@pytest.fixture(scope="module")
def sources() -> dict[str, EnvSource]:
    pytest.importorskip("envpool")
    return {name: find(target, backend) for name, (target, backend) in CASES.items()}


def fail(kind: str, detail: str) -> None:
    raise AssertionError(f"{kind}: {detail}")


def play(
    source: EnvSource,
    unrolls: int,
    seed: int = 0,
    actor: int = 0,
    fresh: bool = False,
    rows: Rows | None = None,
    noise: int = 0,
) -> dict[str, np.ndarray]:
    """Random play over several unrolls: their rows one after another, observations [rows + 1]."""
    own = rows is None
    rows = rows or Rows(source.batch(B, seed, actor), fail)
    rng = np.random.default_rng(noise)
    spec = source.spec()
    slots = []
    for _ in range(unrolls):
        slot = trajectory_record(spec, T, B).empty()
        rows.begin(slot, fresh)
        for t in range(T):
            assert np.array_equal(slot["obs"][t], rows.obs) and np.array_equal(slot["first"][t], rows.first)
            rows.step(slot, t, rng.integers(0, 2, (B, *spec.action.shape)).astype(spec.action.dtype))
        slots.append(slot)
    if own:
        rows.batch.close()
    joined = {
        name: np.concatenate([slot[name] for slot in slots])
        for name in ("action", "reward", "discount", "boundary", "valid")
    }
    for name in ("obs", "first"):
        joined[name] = np.concatenate([slot[name][:-1] for slot in slots] + [slots[-1][name][-1:]])
    return joined


@pytest.mark.parametrize("name", CASES)
class TestEnvContract:
    def test_shows_what_its_spec_says(self, sources: dict[str, EnvSource], name: str) -> None:
        source = sources[name]
        batch, spec = source.batch(B, 0, 0), source.spec()
        obs = np.asarray(batch.reset())
        step = batch.step(np.zeros((B, *spec.action.shape), spec.action.dtype))
        batch.close()
        assert batch.spec == spec and batch.size == B
        assert obs.shape == (B, *spec.obs.shape) == np.asarray(step.obs).shape and obs.dtype == spec.obs.dtype
        assert np.asarray(step.reward).dtype == np.float32
        assert all(np.asarray(a).dtype == bool and np.asarray(a).shape == (B,) for a in step[2:5])
        assert step.cut is None or np.asarray(step.cut).shape == (B,)

    def test_rows(self, sources: dict[str, EnvSource], name: str) -> None:
        rows = play(sources[name], 4)
        ended, valid = rows["boundary"], rows["valid"]
        assert ended.any()
        reset_row = np.zeros_like(ended)
        reset_row[1:] = ended[:-1]
        assert np.array_equal(~valid, reset_row)
        assert not ended[reset_row].any()
        assert not rows["reward"][reset_row].any() and not rows["discount"][reset_row].any()
        starts = np.zeros_like(rows["first"])
        starts[0] = True
        starts[2:] = ended[:-1]
        assert np.array_equal(rows["first"], starts)
        assert np.isin(rows["discount"], (0.0, 1.0)).all()
        assert rows["discount"][valid & ~ended].all()

    def test_the_last_observation_follows_the_end(self, sources: dict[str, EnvSource], name: str) -> None:
        rows = play(sources[name], 4)
        last = rows["obs"][1:][rows["boundary"]]
        first = rows["obs"][rows["first"]]
        if "CartPole" in name:
            over = (np.abs(last[:, 0]) > 2.4) | (np.abs(last[:, 2]) > 12 * 2 * np.pi / 360)
            assert over.all() and (np.abs(first) <= 0.05).all()
            assert not rows["discount"][rows["boundary"]].any()
        if name == "own":
            terminated = rows["discount"][rows["boundary"]] == 0
            assert np.array_equal(terminated, np.abs(last[:, 0]) > 4)
            assert (last[~terminated][:, 1] == 15).all() and len(last[~terminated])
            assert (first[:, 1] == 0).all()

    def test_same_seed_same_rows(self, sources: dict[str, EnvSource], name: str) -> None:
        once, again = play(sources[name], 2), play(sources[name], 2)
        other, another = play(sources[name], 2, seed=1), play(sources[name], 2, actor=1)
        assert all(np.array_equal(once[field], again[field]) for field in once)
        assert not np.array_equal(once["obs"], other["obs"]) and not np.array_equal(once["obs"], another["obs"])
        assert len(np.unique(once["obs"][0], axis=0)) == B

    def test_fresh_begins_anew(self, sources: dict[str, EnvSource], name: str) -> None:
        rows = play(sources[name], 3, fresh=True)
        assert rows["first"][[0, T, 2 * T]].all() and rows["valid"][[0, T, 2 * T]].all()
        assert not np.array_equal(rows["obs"][0], rows["obs"][T])

    def test_restart_gives_up_one_episode(self, sources: dict[str, EnvSource], name: str) -> None:
        source = sources[name]
        batch, spec = source.batch(B, 0, 0), source.spec()
        batch.reset()
        action = np.zeros((B, *spec.action.shape), spec.action.dtype)
        for _ in range(3):
            before = np.array(batch.step(action).obs)
        first = np.asarray(batch.restart(1))
        after = batch.step(action)
        batch.close()
        assert first.shape == spec.obs.shape and not np.array_equal(first, before[1])
        assert not np.asarray(after.dropped).any() and np.isfinite(np.asarray(after.obs)).all()

    def test_goes_on_from_a_snapshot(self, sources: dict[str, EnvSource], name: str) -> None:
        source = sources[name]
        rows = Rows(source.batch(B, 0, 0), fail)
        play(source, 1, rows=rows)
        saved = rows.snapshot()
        assert bool(saved) == (name in SAVING)
        assert all(isinstance(array, np.ndarray) for array in saved.values())
        saved = {key: array.copy() for key, array in saved.items()}
        going_on = play(source, 2, rows=rows, noise=1)
        later = Rows(source.batch(B, 0, 0), fail)
        later.restore(saved)
        resumed = play(source, 2, rows=later, noise=1)
        if saved:
            assert all(np.array_equal(going_on[field], resumed[field]) for field in resumed)
        else:
            assert resumed["first"][0].all()

    def test_evaluation_has_the_same_spaces(self, sources: dict[str, EnvSource], name: str) -> None:
        source = sources[name]
        env = source.single()
        obs = env.reset(3)
        again = env.reset(3)
        after, reward, terminated, truncated = env.step(
            np.zeros(source.spec().action.shape, source.spec().action.dtype)
        )
        env.close()
        assert env.spec == source.spec() and np.array_equal(obs, again)
        assert after.shape == source.spec().obs.shape and after.dtype == source.spec().obs.dtype
        assert isinstance(reward, float) and terminated is False and truncated is False


@pytest.mark.parametrize("backend", ["envpool", "gymnasium", "jax"])
def test_a_time_limit_truncates(backend: str) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool")
    source = find("Pendulum-v1", backend)
    rows = Rows(source.batch(2, 0, 0), fail)
    slot = trajectory_record(source.spec(), 203, 2).empty()
    rows.begin(slot)
    for t in range(203):
        rows.step(slot, t, np.full((2, 1), 0.3, np.float32))
    rows.batch.close()
    assert np.array_equal(np.flatnonzero(slot["boundary"][:, 0]), [199])
    assert slot["discount"][199].all() and not slot["discount"][200].any()
    assert not slot["valid"][200].any() and slot["first"][201].all()
