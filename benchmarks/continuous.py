"""Continuous control: TD3's speed beside SB3's and SBX's, and the time to solve small environments."""

from __future__ import annotations

from typing import Any

import rooms
from shoal_runs import solved_after, train
from targets import Result, Target, median, ratio

NETS = ("64,64", "256,256", "400,300")
# What all of them do: a gradient of 256 rows for each environment step. Stated here, so that no table can change it.
SAME = ("--algo.batch-size", "256", "--algo.updates-per-step", "1", "--algo.warmup", "1000")
PEERS = (("sbx", {"64,64": ">= 3", "256,256": ">= 1.3", "400,300": ">= 1.3"}),)
PEERS += (("sb3", {"64,64": ">= 7", "256,256": ">= 1.6", "400,300": ">= 1.6"}),)
# (environment, algorithm, greedy return that counts as solved, seconds promised)
GOALS = (
    ("Pendulum-v1", "td3", -160, 4),
    ("Pendulum-v1", "sac", -160, 4),
    ("MountainCarContinuous-v0", "sac", 90, 12),
    ("LunarLanderContinuous-v3", "sac", 200, 40),
)


def td3_speed(quick: bool) -> Result:
    """Pendulum-v1, TD3, one gradient of 256 rows for each environment step, nets of three sizes, on one thread: environment steps
    per second while training. Shoal: 4 environments, 64 gradients per call, inline. SB3 and SBX: one environment."""
    seconds = 8 if quick else 30
    rows: list[dict[str, Any]] = []
    targets = []
    for net in NETS:
        small = net == "64,64"
        steps = (4_000 if quick else 30_000) if small else (2_000 if quick else 8_000)
        words = (
            "Pendulum-v1",
            "--algo",
            "td3",
            *SAME,
            "--net.hidden",
            net,
            "--steps",
            str(steps),
            "--runtime",
            "inline",
        )
        own = train(*words, "--eval-episodes", "0") | {"case": f"[{net}]", "minibatch": 256, "steps_per_gradient": 1.0}
        rows.append(own)
        for peer, rules in PEERS:
            found = rooms.run_peer(
                peer, seconds=seconds, script="baselines_td3.py", words=("--library", peer, "--net", net)
            )
            rows.append(found | {"case": f"[{net}]"})
            value = ratio(own.get("steps_per_s"), found.get("steps_per_s"))
            targets.append(Target(f"[{net}]: times the steps/s of {found['who']}", value, rules[net]))
    return Result(rows, targets)


def continuous_solve(quick: bool) -> Result:
    """Seconds of running until three greedy evaluations of 25 fresh episodes in a row reach the goal (`--until-eval`), then 100
    further greedy episodes in Gymnasium's own environment."""
    seeds = range(1 if quick else 5)
    rows: list[dict[str, Any]] = []
    targets = []
    for env, algo, goal, limit in GOALS[:1] if quick else GOALS:
        runs = []
        train(env, "--algo", algo, "--steps", "6000", "--eval-episodes", "1")  # fills the cache of compiled code
        for seed in seeds:
            row = train(env, "--algo", algo, f"--until-eval={goal}", "--seed", str(seed))
            runs.append(row | {"case": f"{algo} on {env}, to {goal}, seed {seed}", "solved_after_s": solved_after(row)})
        rows += runs
        there = [row.get("eval_mean") is not None and row["eval_mean"] >= goal for row in runs]
        targets += [
            Target(f"{algo} on {env}: share of seeds at {goal} greedily", sum(there) / len(runs), ">= 1"),
            Target(
                f"{algo} on {env}: median seconds of running",
                median([r.get("solved_at_s") for r in runs], 1),
                f"<= {limit}",
            ),
        ]
    return Result(rows, targets)
