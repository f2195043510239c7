"""Dyna-Q beside the same DQN: how many real episodes each needs."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from shoal_runs import train
from targets import Result, Target, median, ratio

# The same for both, so that the world model alone makes the difference; one real actor of eight environments.
SAME = {
    "envs": 8,
    "steps": 60_000,
    "algo.learning-rate": 1e-3,
    "algo.final-rate": 0.2,
    "algo.gamma": 0.99,
    "algo.unroll": 8,
    "algo.batch-size": 64,
    "algo.every": 8,
    "algo.n-step": 1,
    "algo.warmup": 500,
    "algo.explore": 0.025,
    "algo.epsilon-end": 0.01,
    "algo.target-every": 1,
    "algo.tau": 0.01,
    "algo.reward-scale": 0.1,
    "net.hidden": "64,64",
}
ACTORS = {"dqn": 1, "dyna_q": 2}


def dyna_cartpole(quick: bool) -> Result:
    """CartPole-v1: real episodes until the mean return of the last 100 training episodes is 195, by DQN and by Dyna-Q (one
    planner), everything else the same. Medians over the seeds, with the interval of their difference."""
    seeds, goal = (1, "30") if quick else (5, "195")
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        for algo, actors in ACTORS.items():
            flags = [word for name, value in SAME.items() for word in (f"--{name}", str(value))]
            words = ("--algo", algo, "--actors", str(actors), "--seed", str(seed), "--until-return", goal, *flags)
            row = train("CartPole-v1", *words, "--eval-episodes", "20")
            solved = row.get("solved_at_s") is not None
            rows.append(
                row | {"case": f"{algo}, seed {seed}", "real_episodes": row.get("episodes") if solved else None}
            )
    needed = {algo: [row["real_episodes"] for row in rows if row["case"].startswith(f"{algo},")] for algo in ACTORS}
    middle = {algo: median(values, seeds // 2 + 1) for algo, values in needed.items()}
    for algo, values in needed.items():
        told = interval([value for value in values if value is not None])
        case = f"{algo}, median" + (f" (95 %: {told[0]:,.0f} to {told[1]:,.0f})" if told else "")
        rows.append({"who": "Shoal", "case": case, "real_episodes": middle[algo]})
    return Result(
        rows,
        [
            Target(
                "real episodes of Dyna-Q / of the same DQN, medians", ratio(middle["dyna_q"], middle["dqn"]), "<= 1"
            ),
            Target("share of Dyna-Q's seeds solved", sum(v is not None for v in needed["dyna_q"]) / seeds, ">= 1"),
        ],
    )


def interval(values: list[float]) -> tuple[float, float] | None:
    """Of the median, by drawing the seeds anew; None for a single one."""
    if len(values) < 2:
        return None
    rng = np.random.default_rng(0)
    again = [statistics.median(rng.choice(values, len(values))) for _ in range(2000)]
    low, high = np.quantile(again, [0.025, 0.975])
    return float(low), float(high)
