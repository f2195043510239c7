"""Stable-Baselines3's PPO with the RL Zoo's settings for LunarLander, or with Shoal's; on Gymnasium's physics or EnvPool's."""

from __future__ import annotations

from baselines import ppo_on_lunar_lander
from measure import Measure, arguments

if __name__ == "__main__":
    args = arguments(__doc__)
    measure = Measure(args.seconds, args.until_return)
    from stable_baselines3 import PPO

    settings = ppo_on_lunar_lander(PPO, measure, args)
    measure.report("stable-baselines3", settings, settings["batch_size"], settings["batch_size"] / settings["n_epochs"])
