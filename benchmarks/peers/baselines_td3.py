"""TD3 of Stable-Baselines3 or SBX on Pendulum: one environment, a gradient of 256 rows for each step."""

from __future__ import annotations

import argparse
import sys

import torch
from baselines import Iterations
from measure import Measure, arguments
from stable_baselines3.common.env_util import make_vec_env

ENV = "Pendulum-v1"
WARMUP = 1_000
SETTINGS = {"batch_size": 256, "learning_starts": WARMUP, "train_freq": 1, "gradient_steps": 1, "learning_rate": 1e-3}


class Rounds(Iterations):
    """A point every 200 steps, once gradients are made."""

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > WARMUP and self.num_timesteps % 200 == 0:
            super()._on_rollout_start()


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--library", choices=("sb3", "sbx"), required=True)
    own.add_argument("--net", default="64,64")
    mine, rest = own.parse_known_args()
    sys.argv[1:] = rest
    args = arguments(__doc__)
    measure = Measure(args.seconds, args.until_return, ENV)
    torch.set_num_threads(1)
    if mine.library == "sbx":
        from sbx import TD3
    else:
        from stable_baselines3 import TD3
    layers = [int(width) for width in mine.net.split(",")]
    model = TD3(
        "MlpPolicy",
        make_vec_env(ENV, n_envs=1, seed=args.seed),
        seed=args.seed,
        policy_kwargs={"net_arch": layers},
        **SETTINGS,
    )
    model.learn(total_timesteps=100_000_000, callback=Rounds(measure), log_interval=None)
    package = "sbx-rl" if mine.library == "sbx" else "stable-baselines3"
    measure.report(package, {"n_envs": 1, "net": mine.net, **SETTINGS}, SETTINGS["batch_size"], 1.0)
