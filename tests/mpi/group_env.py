"""An environment that a group of ranks steps together: its reward is the sum of what every rank has."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

from shoal.runtimes.mpi import env_comm

LENGTH = 10


class SumEnv(gym.Env[np.ndarray, Any]):
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._comm = env_comm()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._comm.bcast(int(action))
        total = self._comm.allreduce(self._comm.rank + 1)
        self._steps += 1
        return np.full(2, total, np.float32), float(total), False, self._steps >= LENGTH, {}

    def close(self) -> None:
        self._comm.bcast(None)

    @staticmethod
    def serve(comm: Any) -> None:
        """The other ranks of the group, until the environment closes."""
        while comm.bcast(None) is not None:
            comm.allreduce(comm.rank + 1)


class Raises(SumEnv):
    """Raises at its hundredth step: the learner has used some unrolls by then."""

    age = 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        if self.age == 100:
            raise RuntimeError("out of order")
        return super().step(action)


class Hangs(SumEnv):
    """Its fortieth step does not return, where an actor makes it."""

    age = 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        if self.age == 40:
            time.sleep(1000)
        return super().step(action)
