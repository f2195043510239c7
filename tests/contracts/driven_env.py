"""An environment that shows which weights acted: every step is an episode, whose return is the action."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Levers(gymnasium.Env[np.ndarray, int]):
    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), float(action), True, False, {}
