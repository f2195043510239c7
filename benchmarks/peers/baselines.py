"""Shared code of SB3 and SBX: their callback, settings of PPO for LunarLander, and its environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from measure import ENV, Measure
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

ENVS = 16
ZOO = {
    "n_steps": 1024,
    "batch_size": 64,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.01,
}


class Iterations(BaseCallback):
    """A point at the start of each rollout but the first: between two lie one rollout and one training phase."""

    def __init__(self, measure: Measure) -> None:
        super().__init__()
        self.measure = measure
        self.complete = False

    def _on_rollout_start(self) -> None:
        if self.num_timesteps == 0:
            return
        returns = [float(episode["r"]) for episode in self.model.ep_info_buffer or ()]
        self.complete = self.measure.iteration(self.num_timesteps, returns)

    def _on_step(self) -> bool:
        return not self.complete


# Shoal's own: 64 environments of 64 steps, minibatches of 256, four epochs, its rate (which falls over the budget there).
SHOAL = {
    "n_steps": 64,
    "batch_size": 256,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.003,
    "learning_rate": 2.5e-3,
    "clip_range": 0.3,
}


def pool_of(size: int, seed: int) -> Any:
    """EnvPool as a vector of environments: it resets at the step after an end, which is played here at once."""
    from pools import pool
    from stable_baselines3.common.vec_env import VecEnv, VecMonitor

    class Pool(VecEnv):
        def __init__(self) -> None:
            self._pool = pool(size, seed)
            self._ids = np.arange(size)
            super().__init__(size, self._pool.observation_space, self._pool.action_space)

        def reset(self) -> Any:
            return self._pool.reset()[0]

        def step_async(self, actions: Any) -> None:
            self._actions = np.asarray(actions, np.int32)

        def step_wait(self) -> Any:
            obs, reward, terminated, truncated, _ = self._pool.step(self._actions)
            done = terminated | truncated
            infos: list[dict[str, Any]] = [{} for _ in range(size)]
            if done.any():
                ended = np.flatnonzero(done)
                for i in ended:
                    infos[i] = {"terminal_observation": obs[i].copy(), "TimeLimit.truncated": bool(truncated[i])}
                obs = obs.copy()
                obs[ended] = self._pool.step(self._actions[ended], ended.astype(np.int32))[0]
            return obs, reward, done, infos

        def close(self) -> None:
            self._pool.close()

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * size

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            raise AttributeError(method_name)

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * size

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise AttributeError(attr_name)

    return VecMonitor(Pool())


def ppo_on_lunar_lander(ppo: Any, measure: Measure, args: Any) -> dict[str, Any]:
    """Train until the measurement is complete. Returns the settings."""
    torch.set_num_threads(1)  # the quicker choice for nets of this size; two threads wait for each other
    settings, envs = (SHOAL, 64) if args.hyper == "shoal" else (ZOO, ENVS)
    vector = pool_of(envs, args.seed) if args.physics == "envpool" else make_vec_env(ENV, n_envs=envs, seed=args.seed)
    model = ppo("MlpPolicy", vector, seed=args.seed, device="cpu", **settings)
    model.learn(total_timesteps=100_000_000, callback=Iterations(measure))
    return {"n_envs": envs, "vec_env": args.physics, **settings}
