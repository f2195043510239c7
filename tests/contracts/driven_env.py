"""Environments that show which weights acted: every step is an episode, whose return is the action that was preferred."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Levers(gymnasium.Env[np.ndarray, Any]):
    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), float(action), True, False, {}


class Dials(Levers):
    """The same for continuous actions: the return says which of two entries was the larger."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(int(action[1] > action[0]))
