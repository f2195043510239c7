"""A hundred ticks of the booster's regulation on its synthetic plant: PI regulators and, if given, a trained agent.

python examples/booster_regulation.py [--run runs/…] [picture.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import shoal
from shoal.envs.booster.regulator import BASELINES, follow, regulate
from shoal.envs.booster.task import Booster
from shoal.observe.drawing import render
from shoal.observe.regulation import regulation

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("picture", nargs="?", default="booster.png")
parser.add_argument("--run", help="folder of a training on shoal/Booster-v0 or shoal/BoosterContinuous-v0")
parser.add_argument("--seed", type=int, default=0)
words = parser.parse_args()

run = shoal.load(words.run) if words.run else None
continuous = run is not None and "Continuous" in str(run.summary.get("env"))
plant = Booster(continuous=continuous, plant=True)
played = {name: regulate(plant, gains, 1, words.seed) for name, gains in BASELINES.items()}
if run is not None:
    played[f"agent ({run.summary['algo']})"] = follow(plant, run.policy, words.seed)
for name, episode in played.items():
    print(f"{name}: {episode.returns[0]:.1f}")
figure = regulation({name: (episode.errors[0], episode.settings[0]) for name, episode in played.items()})
Path(words.picture).write_bytes(render(figure, "png"))
print(f"drawn: {words.picture}")
