"""Dyna-Q beside DQN: scores after the same number of real steps, and the number of gradients."""

from __future__ import annotations

import json
import statistics
from typing import Any

from rooms import HERE, Failed, run_json
from shoal_runs import PYTHON
from targets import NEVER, Result, Target, median, ratio

BUDGET = 6_000  # real steps; the learning rate falls over them
SEEDS = range(100, 110)  # the settings were chosen on seeds 0 to 4
GOALS = ("195", "475")  # mean returns at which CartPole-v0 and v1 count as solved
EXPLORED = 300  # real steps over which actions become less random
SAME: dict[str, Any] = {"envs": 4, "net": {"hidden": [64, 64]}}
DQN: dict[str, Any] = {
    "name": "dqn",
    "learning_rate": 1e-3,
    "final_rate": 0.05,
    "gamma": 0.99,
    "unroll": 8,
    "batch_size": 64,
    "every": 1,
    "n_step": 1,
    "warmup": 500,
    "epsilon_end": 0.01,
    "target_every": 1,
    "tau": 0.01,
    "reward_scale": 0.1,
}
DYNA: dict[str, Any] = DQN | {
    "name": "dyna_q",
    "ratio": 3.0,
    "final_ratio": 3.0,
    "tolerance": 1.0,
    "mix": 0.5,
    "horizon": 3,
    "starts": 64,
    "random_share": 0.1,
    "imagined": 10_000,
    "model_gradients": 32,
    "model_batch": 64,
}
# All make one gradient per step on real rows. Some make three more: on rows of which half are imagined, or on real rows again.
RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "Dyna-Q": (2, DYNA),
    "DQN": (1, DQN),
    "DQN, 4 gradients a step": (1, DQN | {"repeats": 4}),
    "DQN, n-step 3": (1, DQN | {"n_step": 3}),
    "DQN, n-step 3, 4 gradients a step": (1, DQN | {"n_step": 3, "repeats": 4}),
}


def dyna_cartpole(quick: bool) -> Result:
    """CartPole-v1 within 6,000 real steps, ten seeds, by Dyna-Q with one planner and by DQN, with one gradient per step and with as
    many as Dyna-Q. Real steps and episodes until 20 greedy episodes, played every 512 steps, reach a mean of 195 and 475: medians,
    in which a seed that does not get there is later than all others. Then 100 greedy episodes."""
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    budget = 1_000 if quick else BUDGET
    found: dict[str, list[dict[str, Any]]] = {}
    for who in RUNS:
        found[who] = [_run(who, budget, seed) for seed in (SEEDS[:1] if quick else SEEDS)]
        rows += [*found[who], _summary(who, budget, found[who])]
    for goal in GOALS:
        steps = {who: _median(runs, goal) for who, runs in found.items()}
        best = min((steps[who] for who in list(RUNS)[1:] if steps[who] is not None), default=None)
        what = f"real steps of Dyna-Q / of the best DQN to a greedy mean of {goal}, budget {budget:,}"
        targets.append(Target(what, ratio(steps["Dyna-Q"], best), "<= 0.7"))
    return Result(rows, targets)


def _run(who: str, budget: int, seed: int) -> dict[str, Any]:
    actors, algo = RUNS[who]
    settings = SAME | {"steps": budget, "actors": actors, "algo": algo | {"explore": EXPLORED / budget}}
    row = {"who": who, "case": f"budget {budget:,}, seed {seed}"}
    command = [PYTHON, str(HERE / "dyna_run.py"), json.dumps(settings), "--seeds", str(seed)]
    try:
        return row | run_json(command, timeout=1800)
    except Failed as failure:
        return row | {"error": str(failure)}


def _summary(who: str, budget: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row for all seeds: medians, and how many seeds got there."""
    row: dict[str, Any] = {"who": who, "case": f"budget {budget:,}, median of {len(runs)} seeds"}
    for goal in GOALS:
        row[f"greedy_{goal}"] = _cell(runs, goal)
    done = [run for run in runs if "error" not in run]
    if done:
        row["gradients_per_step"] = statistics.mean(run["gradients_per_step"] for run in done)
        row["eval_mean"] = statistics.mean(run["eval_mean"] for run in done)
        good = [sum(run["eval_mean"] >= float(goal) for run in done) for goal in GOALS]
        row["seeds_good"] = " and ".join(
            f"{count} of {len(runs)} at {goal}" for count, goal in zip(good, GOALS, strict=True)
        )
    return row


def _median(runs: list[dict[str, Any]], goal: str, entry: int = 0) -> float | None:
    """The median of real steps (entry 0) or episodes (entry 1) to a goal."""
    return median([(run.get("greedy", {}).get(goal) or [None, None])[entry] for run in runs], least=1)


def _cell(runs: list[dict[str, Any]], goal: str) -> str:
    there = sum(bool(run.get("greedy", {}).get(goal)) for run in runs)
    steps, episodes = (_median(runs, goal, entry) for entry in (0, 1))
    medians = "" if steps in (None, NEVER) else f"{steps:,.0f} steps, {episodes:,.0f} episodes, "
    return f"{medians}{there} of {len(runs)} seeds"
