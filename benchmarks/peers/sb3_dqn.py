"""Stable-Baselines3's DQN on LunarLander: batches of 128, one gradient for four environment steps, two layers of 64.

The rest is the RL Zoo's for this environment; epsilon falls over the 12,000 steps of its budget. With several environments
`train_freq` counts steps of all of them at once, so as many gradients follow as there are environments: the ratio stays.
"""

from __future__ import annotations

import argparse
import sys

import torch
from baselines import Iterations
from measure import ENV, Measure, arguments
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

ZOO = {
    "learning_rate": 6.3e-4,
    "buffer_size": 50_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "target_update_interval": 250,
    "exploration_final_eps": 0.1,
}
BUDGET = 100_000_000  # more than is ever measured


class Rounds(Iterations):
    """A point after a number of rollouts: DQN's are four steps long, too short to be measured one by one."""

    def __init__(self, measure: Measure, every: int) -> None:
        super().__init__(measure)
        self._every, self._count = every, 0

    def _on_rollout_start(self) -> None:
        self._count += 1
        if self._count % self._every == 0 and self.num_timesteps > ZOO["learning_starts"]:
            super()._on_rollout_start()


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--envs", type=int, default=1)
    mine, rest = own.parse_known_args()
    sys.argv[1:] = rest
    args = arguments(__doc__)
    measure = Measure(args.seconds, args.until_return)
    torch.set_num_threads(1)  # the quicker choice for nets of this size
    same = {"batch_size": 128, "train_freq": 4, "gradient_steps": mine.envs}
    model = DQN(
        "MlpPolicy",
        make_vec_env(ENV, n_envs=mine.envs, seed=args.seed),
        seed=args.seed,
        device="cpu",
        policy_kwargs={"net_arch": [64, 64]},
        exploration_fraction=12_000 / BUDGET,
        **ZOO,
        **same,
    )
    model.learn(total_timesteps=BUDGET, callback=Rounds(measure, max(1, 400 // mine.envs)), log_interval=None)
    measure.report("stable-baselines3", {"n_envs": mine.envs, "net": "64-64", **ZOO, **same}, 128, 4.0)
