"""PPO's settings for environments without an entry: candidates side by side on eight of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shoal_runs import train
from targets import Result, Target

# (environment, a score that shows that it was learnt, environment steps)
ENVS = (
    ("Acrobot-v1", -100, 300_000),
    ("MountainCar-v0", -130, 500_000),
    ("MountainCarContinuous-v0", 80, 300_000),
    ("LunarLanderContinuous-v3", 150, 400_000),
    ("BipedalWalker-v3", 150, 500_000),
    ("Hopper-v5", 1_500, 400_000),
    ("HalfCheetah-v5", 1_500, 400_000),
    ("Walker2d-v5", 1_000, 400_000),
)
# All have 16 environments. Libraries differ most in the rows of a gradient and in the passes over each batch.
TABLE = "10 epochs of 64, the table's"
CANDIDATES: dict[str, tuple[str, ...]] = {
    TABLE: ("--algo.epochs", "10", "--algo.batch-size", "64", "--algo.learning-rate", "3e-4"),
    "8 epochs of 128": ("--algo.epochs", "8", "--algo.batch-size", "128", "--algo.learning-rate", "5e-4"),
    "4 epochs of 256": ("--algo.epochs", "4", "--algo.batch-size", "256", "--algo.learning-rate", "3e-4"),
}


def _reached(run: Path, goal: float) -> tuple[float | None, float | None]:
    """(seconds, steps) after which the mean of the last 100 training episodes, or of all, was at least `goal`."""
    returns: list[tuple[float, float]] = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "episode/return" in row:
            returns += [(row["episode/return"], row.get("episode/count", 1))]
            recent, left = [], 100.0
            for mean, count in reversed(returns):
                recent.append((mean, min(count, left)))
                left -= count
                if left <= 0:
                    break
            if left <= 0 and sum(m * c for m, c in recent) / sum(c for _, c in recent) >= goal:
                return row["speed/seconds"], row["speed/env_steps"]
    return None, None


def _one(env: str, goal: float, steps: int, words: Sequence[str], seed: int) -> dict[str, Any]:
    # One thread each, two at a time: seconds are those of one core.
    fixed = ("--runtime", "inline", "--actors", "1", "--envs", "16", "--eval-episodes", "20")
    row = train(env, *fixed, "--steps", str(steps), "--seed", str(seed), *words, keep=True, timeout=1800)
    if "error" not in row:
        row["solved_at_s"], row["goal_steps"] = _reached(Path(row["run"]), goal)
    return row


def generic(quick: bool) -> Result:
    """PPO on eight environments, one core each, with candidates for those without an entry of their own: seconds and steps to a
    score, and the greedy return after a fixed number of steps; medians of three seeds. The choice was made on other seeds, 0 to 2
    among them."""
    seeds = (3,) if quick else (3, 4, 5)
    envs = ENVS[:2] if quick else ENVS
    jobs = [(env, name, seed) for env in envs for name in CANDIDATES for seed in seeds]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda job: _one(*job[0], CANDIDATES[job[1]], job[2]), jobs))
    rows, wins = [], dict.fromkeys(CANDIDATES, 0)
    for env in envs:
        times = {}
        for name in CANDIDATES:
            runs = [run for job, run in zip(jobs, found, strict=True) if job[0] == env and job[1] == name]
            there = [run["solved_at_s"] for run in runs if run.get("solved_at_s") is not None]
            late = [float("inf")] * (len(runs) - len(there))
            times[name] = statistics.median(there + late)
            scores = [run["eval_mean"] for run in runs if run.get("eval_mean") is not None]
            steps = [run["goal_steps"] for run in runs if run.get("goal_steps") is not None]
            rows.append(
                {
                    "who": name,
                    "case": f"{env[0]} to {env[1]:,}, {len(there)} of {len(runs)}",
                    "solved_at_s": None if times[name] == float("inf") else times[name],
                    "env_steps": int(statistics.median(steps)) if len(steps) > len(runs) / 2 else None,
                    "eval_mean": statistics.median(scores) if scores else None,
                    "steps_per_s": statistics.median(run.get("steps_per_s", 0.0) for run in runs),
                }
            )
        best = min(times.values())
        for name, time in times.items():
            wins[name] += time <= 1.25 * best
    return Result(
        rows,
        [
            Target(
                "environments on which the table's settings are the quickest, or within a quarter of it",
                wins[TABLE],
                ">= 5",
            )
        ],
    )
