"""DQN beside Stable-Baselines3's, and the time that it takes to solve LunarLander."""

from __future__ import annotations

import rooms
from shoal_runs import PYTHON, solved_after, train
from targets import Result, Target, median, ratio

LUNAR = ("LunarLander-v3", "--algo", "dqn")
# Settings of both, stated here so that a change of the tuned table cannot change the comparison.
SAME = ("--algo.batch-size", "128", "--algo.every", "4", "--net.hidden", "64,64")


def dqn_speed(quick: bool) -> Result:
    """LunarLander-v3, DQN, batches of 128, one gradient per four environment steps, two layers of 64: environment steps per second
    while training. Shoal: 32 environments, 64 gradients per call. SB3: one environment, or eight with eight gradients after every
    four steps of each; the quicker one counts."""
    seconds = 10 if quick else 60
    words = (*LUNAR, *SAME, "--steps", str(100_000 if quick else 600_000), "--eval-episodes", "1")
    rows, shoal = [], [train(*words)]
    for envs in (1, 8):
        peer = rooms.run_peer("sb3", seconds=seconds, words=("--envs", str(envs)), script="sb3_dqn.py")
        rows.append(peer | {"case": f"{envs} environment{'s' * (envs > 1)}"})
        shoal.append(train(*words))
    for number, row in enumerate(shoal):
        row["case"] = f"run {number + 1} of {len(shoal)}"
    best = max((row["steps_per_s"] for row in rows if "error" not in row), default=None)
    times = ratio(median([row.get("steps_per_s") for row in shoal], len(shoal)), best)
    return Result([*rows, *shoal], [Target("times SB3's steps/s, median", times, ">= 15")])


def dqn_solve(quick: bool) -> Result:
    """LunarLander-v3, DQN: seconds from the command's start to a mean of 200 over 100 episodes, set-up included; then 100
    greedy episodes in Gymnasium's own environment."""
    train(*LUNAR, *SAME, "--steps", "20000", "--eval-episodes", "1")  # fills the cache of compiled code, not counted
    rows = []
    for seed in range(1 if quick else 5):
        row = train(*LUNAR, *SAME, "--until-return", "200", "--seed", str(seed))
        rows.append(row | {"solved_after_s": solved_after(row), "case": f"seed {seed}"})
    solved = [row["solved_after_s"] for row in rows]
    good = [row.get("eval_mean") is not None and row["eval_mean"] >= 200 for row in rows]
    targets = [
        Target("median seconds to 200, set-up included", median(solved, 0), "<= 25"),
        Target("share of seeds solved", sum(s is not None for s in solved) / len(rows), ">= 1"),
        Target("share of seeds >= 200 in 100 greedy episodes", sum(good) / len(rows), ">= 1"),
    ]
    return Result(rows, targets)


def replay_draw(quick: bool) -> Result:
    """Microseconds that a sampler adds to a gradient of 256 rows (noting a new row, drawing, storing errors), in calls of 1 or 64
    gradients, on a full replay of 131 thousand, 1 million and 10 million rows: uniform, the seeded tree, and cpprb's up to a
    million. Means over all calls."""
    script = str(rooms.HERE / "replay_speed.py")
    words = ["--times", "5", "--sizes", str(1 << 17)] if quick else []
    found = rooms.run_json([PYTHON, script, *words], timeout=600)["rows"]
    rows, cost = [], {}
    for row in found:
        cost[row["sampler"], row["rows"], row["gradients"]] = row["us"]
        case = f"calls of {row['gradients']}, {row['rows']:,} rows"
        us = {"us_per_gradient": row["us"], "median_us": row["median_us"], "slowest_us": row["slowest_us"]}
        rows.append({"who": row["sampler"], "case": case, **us})
    seeded, uniform = "prioritized, seeded", "uniform"
    small, large = 1 << 17, 10_000_000
    more = cost[seeded, small, 64] - cost[uniform, small, 64]
    times = ratio(cost["prioritized, cpprb", small, 64], cost[seeded, small, 64])
    targets = [
        Target("us more than uniform, 131,072 rows, calls of 64", more, "<= 15"),
        Target("times quicker than cpprb, 131,072 rows, calls of 64", times, ">= 1"),
    ]
    if not quick:  # logarithms: 23.3 levels to 17; a cost that is linear in the rows would be 76 times as high
        growth = ratio(cost[seeded, large, 1], cost[seeded, small, 1])
        targets.append(Target("10 million rows: times the cost of 131,072, calls of 1", growth, "<= 4"))
    return Result(rows, targets)
