"""Dyna-Q beside the same DQN: how many real episodes each needs."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
from shoal_runs import train
from targets import Result, Target, ratio

# The same for both, so that the world model alone makes the difference; one real actor of eight environments.
SAME = {
    "envs": 8,
    "algo.learning-rate": 1e-3,
    "algo.final-rate": 0.05,
    "algo.gamma": 0.99,
    "algo.unroll": 8,
    "algo.batch-size": 64,
    "algo.every": 8,
    "algo.n-step": 1,
    "algo.warmup": 500,
    "algo.epsilon-end": 0.01,
    "algo.target-every": 1,
    "algo.tau": 0.01,
    "algo.reward-scale": 0.1,
    "net.hidden": "64,64",
}
ACTORS = {"dqn": 1, "dyna_q": 2}
BUDGETS = {195: 60_000, 475: 120_000}  # of real steps, by the return that counts as solved: of CartPole-v0, and of v1
EXPLORED = 1500  # real steps over which actions become less random


def dyna_cartpole(quick: bool) -> Result:
    """CartPole-v1: real episodes until the mean return of the last 100 training episodes is 195 (within 60,000 steps) and 475
    (120,000), by DQN and by Dyna-Q (one planner), everything else the same. Medians over the seeds, with their intervals. Who
    does not get there counts with no end if it is Dyna-Q, and with the episodes that it had if it is DQN."""
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for goal, budget in ({30: 20_000} if quick else BUDGETS).items():
        found: dict[str, list[float]] = {algo: [] for algo in ACTORS}
        for seed in range(1 if quick else 5):
            for algo, actors in ACTORS.items():
                row = _run(algo, actors, goal, budget, seed)
                rows.append(row)
                found[algo].append(row["real_episodes"] or (row.get("episodes", 0) if algo == "dqn" else math.inf))
        for algo, values in found.items():
            low, high = interval(values)
            case = f"{algo}, to {goal}, median (95 %: {low:,.0f} to {high:,.0f})"
            rows.append({"who": "Shoal", "case": case, "real_episodes": statistics.median(values)})
        middle = {algo: statistics.median(values) for algo, values in found.items()}
        what = f"real episodes of Dyna-Q / of the same DQN, medians, to {goal}"
        targets.append(Target(what, ratio(middle["dyna_q"], middle["dqn"]), "<= 1"))
    return Result(rows, targets)


def _run(algo: str, actors: int, goal: int, budget: int, seed: int) -> dict[str, Any]:
    settings = {**SAME, "steps": budget, "algo.explore": EXPLORED / budget, "actors": actors, "seed": seed}
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    row = train("CartPole-v1", "--algo", algo, "--until-return", str(goal), *flags, "--eval-episodes", "20")
    solved = row.get("solved_at_s") is not None
    case = f"{algo}, to {goal}, seed {seed}" + ("" if solved else f": not solved in {row.get('episodes')} episodes")
    return row | {"case": case, "real_episodes": row.get("episodes") if solved else None}


def interval(values: list[float]) -> tuple[float, float]:
    """Of the median, by drawing the seeds anew."""
    rng = np.random.default_rng(0)
    again = sorted(statistics.median(rng.choice(values, len(values))) for _ in range(2000))
    return float(again[50]), float(again[1949])
