"""Stable-Baselines3's PPO with the RL Zoo's settings for LunarLander."""

from __future__ import annotations

from baselines import ppo_on_lunar_lander
from measure import Measure, arguments

if __name__ == "__main__":
    args = arguments(__doc__)
    measure = Measure(args.seconds, args.until_return)
    from stable_baselines3 import PPO

    measure.report("stable-baselines3", ppo_on_lunar_lander(PPO, measure, args.seed))
