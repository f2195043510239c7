"""An environment whose step costs one millisecond of CPU, as a simulator written in Python would."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

BURN_S = 1e-3
LENGTH = 200


class BurnEnv(gym.Env[np.ndarray, Any]):
    """Reward 1 for choosing the sign of the first entry. Truncated after `LENGTH` steps."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._obs = self._draw()
        return self._obs, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        began = time.thread_time()  # CPU, not wall: a core that is shared counts for half
        while time.thread_time() - began < BURN_S:
            pass
        reward = float(int(action) == int(self._obs[0] > 0))
        self._steps += 1
        self._obs = self._draw()
        return self._obs, reward, False, self._steps >= LENGTH, {}

    def _draw(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


class BurnBoxEnv(BurnEnv):
    """The same with one continuous action, whose sign counts."""

    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return super().step(int(action[0] > 0))
