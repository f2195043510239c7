"""Rules of a federation side by side on a JAX-native environment: all seeds and children at once, in one process.

    python benchmarks/federation_lanes.py                                   # CartPole-v1, PPO, 30 seeds, two and three children
    python benchmarks/federation_lanes.py --seeds 2 --steps 8192            # does it run?

The federations are those of `shoal.federation.lanes`, whose result does not depend on the machine's load. A row's budget is the
number of environment steps of all its children together; `alone` is a run without a parent.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import numpy as np

from shoal.core.config import build
from shoal.federation.lanes import Lanes
from shoal.federation.rules import RULES
from shoal.process.device import settle_process
from shoal.studies.statistics import summarise

TWO = (
    "alpha_beta:alpha=0.5,beta=0.5",
    "alpha_beta:alpha=0.9,beta=0",
    "alpha_beta:alpha=0.9,beta=0.5",
    "alpha_beta:alpha=0.9,beta=0.9",
    "alpha_beta:alpha=0.5,beta=0.9",
    "fedavg",
    "staleness",
    "fedbuff",
    "diloco",
)
THREE = ("alpha_beta:alpha=0.5,beta=0.5", "fedavg", "clipped_mean", "trimmed_mean", "median")
ALONE = "alpha_beta:alpha=1,beta=1"  # with one child: a run without a parent, bit for bit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--envs", type=int, default=32, help="environments of a child")
    parser.add_argument("--steps", type=int, default=98_304, help="environment steps over all children of a seed")
    parser.add_argument("--every", type=int, default=1, help="updates of a child between two exchanges")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--from-seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=50, help="greedy episodes of each evaluation")
    parser.add_argument("--points", type=int, default=8, help="evaluations along the budget")
    parser.add_argument("--rules", default="", help="instead of all; separated by semicolons")
    parser.add_argument("--children", type=int, default=0, help="instead of two and three")
    chosen = parser.parse_args()
    chosen.numbers = range(chosen.from_seed, chosen.from_seed + chosen.seeds)
    settle_process()
    given = tuple(rule for rule in chosen.rules.split(";") if rule)
    sizes = {chosen.children: given or TWO} if chosen.children else {1: (ALONE,), 2: given or TWO, 3: THREE}
    print(
        f"{chosen.env}, {chosen.algo}, {chosen.envs} environments a child, {chosen.steps:,} steps over all children,"
        f" an exchange every {chosen.every} updates; seeds {chosen.numbers.start} to {chosen.numbers.stop - 1}\n"
    )
    print("| children | rule | along the budget | standard error | at the end | standard error | worst at the end |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for children, rules in sizes.items():
        made = Lanes(
            chosen.env,
            {"algo": chosen.algo, "envs": chosen.envs},
            steps=chosen.steps,
            children=children,
            seeds=chosen.numbers,
            episodes=chosen.episodes,
        )
        for rule in rules:
            began = time.monotonic()
            kind, _, given_fields = rule.partition(":")
            fields = {key: float(value) for key, value in (one.split("=") for one in given_fields.split(",") if one)}
            found = made.compare(build(RULES[kind], fields, "rule."), every=chosen.every, points=chosen.points)
            along, end = summarise(found.mean(axis=1).tolist()), summarise(found[:, -1].tolist())
            errors = [one.sd / np.sqrt(one.n) for one in (along, end)]
            name = "alone" if children == 1 and rule == ALONE else rule
            print(
                f"| {children} | {name} | {along.mean:.1f} | {errors[0]:.1f} | {end.mean:.1f} | {errors[1]:.1f} |"
                f" {found[:, -1].min():.1f} |",
                flush=True,
            )
            path = " ".join(f"{value:.0f}" for value in found.mean(axis=0))
            print(
                f"{children} {name}: {path}; {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    main()
