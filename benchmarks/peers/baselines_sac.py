"""SAC of SBX with its own default settings: its curve over a number of seconds, then greedy episodes of the last policy."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import gymnasium
import torch
from baselines import Iterations
from measure import Measure, arguments
from sbx import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

EVERY = 1_000  # environment steps between two points of the curve


class Curve(Iterations):
    """A point of the curve, with the mean of the last training episodes, every `EVERY` steps."""

    def __init__(self, measure: Measure) -> None:
        super().__init__(measure)
        self.points: list[dict[str, float]] = []

    def _on_rollout_start(self) -> None:
        if self.num_timesteps % EVERY:
            return
        super()._on_rollout_start()
        if self.measure.return_mean is not None:
            self.points.append(
                {
                    "steps": self.num_timesteps,
                    "seconds": time.monotonic() - self.measure.points[0][0],
                    "return": self.measure.return_mean,
                }
            )


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--env", required=True)
    own.add_argument("--episodes", type=int, default=10)
    mine, rest = own.parse_known_args()
    sys.argv[1:] = rest
    args = arguments(__doc__)
    measure = Measure(args.seconds, None, mine.env)
    torch.set_num_threads(1)
    model: Any = SAC("MlpPolicy", make_vec_env(mine.env, n_envs=1, seed=args.seed), seed=args.seed)
    curve = Curve(measure)
    model.learn(total_timesteps=100_000_000, callback=curve, log_interval=None)
    judged = Monitor(gymnasium.make(mine.env))
    judged.reset(seed=10_000 + args.seed)
    mean, deviation = evaluate_policy(model, judged, n_eval_episodes=mine.episodes, deterministic=True)
    settings = {"n_envs": 1, "batch_size": model.batch_size, "learning_rate": model.learning_rate}
    thinned = curve.points[:: max(1, len(curve.points) // 40)]
    more = {"curve": thinned, "eval_mean": mean, "eval_sd": deviation, "eval_episodes": mine.episodes}
    measure.report("sbx-rl", settings, model.batch_size, 1.0, more=more)


if __name__ == "__main__":
    main()
