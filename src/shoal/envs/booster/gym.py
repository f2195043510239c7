"""The booster as a Gymnasium environment, for any library: the same functions as `task`, compiled, one episode at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from shoal.core.trajectory import Array
from shoal.envs.booster.plant import CHANNELS
from shoal.envs.booster.task import ACTIONS, FAR, WINDOW, Booster, State


class BoosterEnv(gymnasium.Env[np.ndarray, Any]):
    """See `Booster`. Continuous actions go from -1 to 1: the quartiles of the recorded change of VIMIN.

    `info` holds the newest value of each channel in its own units.
    """

    def __init__(self, data: str | None = None, continuous: bool = False, plant: bool = False) -> None:
        self.booster = Booster(data, continuous, plant)
        columns = WINDOW if continuous else 1
        self.observation_space = spaces.Box(-FAR, FAR, (columns * len(CHANNELS),), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(ACTIONS)
        self._state: State | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, float]]:
        super().reset(seed=seed)
        self._state, obs = _reset(self.booster, draw_key(self.np_random))
        return np.asarray(obs), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, float]]:
        if self._state is None:
            raise RuntimeError("step before reset")
        self._state, obs, reward, terminated = _step(
            self.booster, self._state, np.asarray(action), draw_key(self.np_random)
        )
        truncated = int(self._state.steps) >= self.booster.max_steps
        return np.asarray(obs), float(reward), bool(terminated), truncated, self._info()

    def _info(self) -> dict[str, float]:
        assert self._state is not None
        newest = np.asarray(self._state.window)[-1]
        return {channel: float(value) for channel, value in zip(CHANNELS, newest, strict=True)}


def draw_key(rng: np.random.Generator) -> np.uint32:
    """The seed of one reset's or one step's randomness."""
    return np.uint32(rng.integers(2**32))


@partial(jax.jit, static_argnums=0)
def _reset(env: Booster, seed: Array) -> tuple[State, Array]:
    return env.reset(jax.random.key(seed))


@partial(jax.jit, static_argnums=0)
def _step(env: Booster, state: State, action: Array, seed: Array) -> tuple[State, Array, Array, Array]:
    return env.step(state, action, jax.random.key(seed))
