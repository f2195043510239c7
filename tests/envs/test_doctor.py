"""The doctor: one broken environment for each mistake, and a healthy one."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.envs import doctor
from shoal.envs.doctor import Finding, examine


class Healthy(gymnasium.Env[Any, Any]):
    """Counts towards a random length, then terminates; each broken one below spoils one thing."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(5, 20))
        return self.look(), {}

    def look(self) -> Any:
        return np.array([self.steps, self.length], np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.look(), 1.0, self.steps >= self.length, False, {}


class IgnoresSeed(Healthy):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset()
        self.length = int(np.random.default_rng().integers(5, 10**9)) % 90 + 5
        return self.look(), {}


class Random(Healthy):
    def look(self) -> Any:
        if not self.steps:
            return super().look()
        return np.array([self.steps, np.random.default_rng().uniform()], np.float32)


class OldStep(Healthy):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class OldReset(Healthy):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class TimeLimitAsEnd(Healthy):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length = 12
        return self.look(), {}


class Endless(Healthy):
    def step(self, action: Any) -> Any:
        self.steps = (self.steps + 1) % 50
        return self.look(), 1.0, False, False, {}


class NanObs(Healthy):
    def look(self) -> Any:
        return np.array([np.nan if self.steps == 3 else self.steps, self.length], np.float32)


class InfReward(Healthy):
    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, np.inf, terminated, truncated, info


class Outside(Healthy):
    def look(self) -> Any:
        return super().look() * (1000 if self.steps else 1)


class WrongDtype(Healthy):
    def look(self) -> Any:
        return super().look().astype(np.float64)


class HugeReward(Healthy):
    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 1e7, terminated, truncated, info


class Slow(Healthy):
    def step(self, action: Any) -> Any:
        time.sleep(0.006)
        return super().step(action)


class Spiky(Healthy):
    calls = 0

    def step(self, action: Any) -> Any:
        type(self).calls += 1
        if self.calls % 25 == 0:
            time.sleep(0.05)
        return super().step(action)


class Wordy(Healthy):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Text(3)


class ResetsItself(Healthy):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated:
            obs, info = self.reset()
        return obs, reward, terminated, truncated, info


class TellsFinal(ResetsItself):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {"final_observation": obs} if terminated else info


class Raises(Healthy):
    def step(self, action: Any) -> Any:
        raise RuntimeError("the cable is out")


class Unmakable(Healthy):
    def __init__(self) -> None:
        raise OSError("no display")


def serious(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.level != "info"]


@pytest.mark.parametrize("target", ["CartPole-v1", "Pendulum-v1", Healthy, "shoal.envs.cartpole:CartPole"])
def test_a_healthy_one(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SPIKE", 1.0)  # a busy machine stalls healthy environments too
    found = examine(target, seconds=1.0)
    assert serious(found) == []


@pytest.mark.parametrize(
    ("target", "level", "what", "fix"),
    [
        (IgnoresSeed, "warning", "ignores the seed", "super().reset(seed=seed)"),
        (Random, "warning", "not deterministic", "self.np_random"),
        (OldStep, "error", "step returns a tuple of 4", "terminated, truncated, info"),
        (OldReset, "error", "reset returns ndarray", "(obs, info)"),
        (TimeLimitAsEnd, "warning", "after exactly 12 steps", "truncated=True"),
        (NanObs, "error", "an observation is NaN or infinite", "Guard"),
        (InfReward, "error", "a reward is NaN or infinite", "Guard"),
        (Outside, "warning", "does not belong to observation_space", "clip"),
        (WrongDtype, "warning", "its dtype is float64, the space's float32", "cast"),
        (HugeReward, "warning", "the largest reward is 1e+07", "Scale"),
        (Slow, "warning", "a step takes", "--runtime processes"),
        (Spiky, "warning", "there are spikes", "stall"),
        (Wordy, "error", "action space Text", "fixed width"),
        (ResetsItself, "error", "it resets itself", "last observation"),
        (TellsFinal, "error", "it resets itself", "last observation"),
        (Raises, "error", "random play raised RuntimeError: the cable is out", "Fix the exception"),
        (Unmakable, "error", "OSError: no display", "constructor"),
        ("no_such:Env", "error", "'no_such:Env' cannot be imported", "name"),
    ],
)
def test_finds_the_mistake(target: Any, level: str, what: str, fix: str) -> None:
    found = examine(target, seconds=1.0)
    hits = [finding for finding in found if what in finding.what]
    assert hits, found
    assert hits[0].level == level and fix in hits[0].fix
    assert all(finding.fix and "\n" not in finding.what for finding in found)
    order = [("error", "warning", "info").index(finding.level) for finding in found]
    assert order == sorted(order)


def test_an_episode_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MANY_STEPS", 500)
    (finding,) = serious(examine(Endless, seconds=5.0))
    assert "no episode ended within 500 steps" in finding.what and "TimeLimit" in finding.fix


def test_what_cannot_be_sent_to_another_process() -> None:
    generator = (n for n in range(3))  # like an open file or a socket, it cannot be pickled

    def make() -> Healthy:
        next(generator, None)
        return Healthy()

    (finding,) = serious(examine(make, seconds=0.5))
    assert "cannot be sent to another process" in finding.what and "import path" in finding.fix


def test_a_name_that_nobody_has_is_bad_input() -> None:
    with pytest.raises(BadInput, match="'NoSuch-v0' is not known"):
        examine("NoSuch-v0")
