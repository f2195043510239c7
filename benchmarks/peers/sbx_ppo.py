"""SBX (Stable-Baselines in JAX): PPO with the same settings as SB3's."""

from __future__ import annotations

from baselines import ppo_on_lunar_lander
from measure import Measure, arguments

if __name__ == "__main__":
    args = arguments(__doc__)
    measure = Measure(args.seconds, args.until_return)
    from sbx import PPO

    settings = ppo_on_lunar_lander(PPO, measure, args)
    measure.report("sbx-rl", settings, settings["batch_size"], settings["batch_size"] / settings["n_epochs"])
