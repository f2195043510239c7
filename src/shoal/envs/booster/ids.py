"""Gymnasium's ids of the booster. Light: an environment's module is imported when one is made."""

from __future__ import annotations

import gymnasium

NAMESPACE = "shoal/"
STEPS = 100
IDS: dict[str, dict[str, bool]] = {
    "shoal/Booster-v0": {},
    "shoal/BoosterContinuous-v0": {"continuous": True},
    "shoal/BoosterPlant-v0": {"plant": True},
    "shoal/BoosterContinuousPlant-v0": {"continuous": True, "plant": True},
}
JUDGED_ON = {
    "shoal/Booster-v0": "shoal/BoosterPlant-v0",
    "shoal/BoosterContinuous-v0": "shoal/BoosterContinuousPlant-v0",
}


def register() -> None:
    """Add the ids to Gymnasium's registry, unless they are there."""
    for name, options in IDS.items():
        if name not in gymnasium.registry:
            entry = "shoal.envs.booster.gym:BoosterEnv"
            gymnasium.register(name, entry, max_episode_steps=STEPS, kwargs=options)
