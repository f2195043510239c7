"""What SB3 and SBX share: their common callback, and the RL Zoo's settings for PPO on LunarLander (16 environments)."""

from __future__ import annotations

from typing import Any

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


def ppo_on_lunar_lander(ppo: Any, measure: Measure, seed: int) -> dict[str, Any]:
    """Train until the measurement is complete; answers the settings."""
    torch.set_num_threads(1)  # the quicker choice for nets of this size; two threads wait for each other
    model = ppo("MlpPolicy", make_vec_env(ENV, n_envs=ENVS, seed=seed), seed=seed, device="cpu", **ZOO)
    model.learn(total_timesteps=100_000_000, callback=Iterations(measure))
    return {"n_envs": ENVS, "vec_env": "DummyVecEnv, the Zoo's default", **ZOO}
