"""Workers on shared parameters: the cost of each consistency, and the time in which A3C and DQN solve LunarLander."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from shoal_runs import solved_after, train
from targets import NEVER, Result, Target, median, ratio

A3C = ("LunarLander-v3", "--algo", "a2c", "--topology", "shared_params")
DQN = ("LunarLander-v3", "--algo", "dqn", "--topology", "shared_params")
# Both see the same policy: it does not move.
STILL = ("--algo.learning-rate", "1e-30", "--algo.batch-size", "0", "--eval-episodes", "1")
NETS = {"10 thousand": "64,64", "1 million": "700,700"}


def _run(case: str, *words: str, runtime: str = "processes") -> dict[str, Any]:
    """One training, with its waiting times."""
    row = train(*A3C, *words, "--runtime", runtime, keep=True) | {"case": case}
    if "error" in row:
        return row
    folder = Path(row["run"])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(folder.parent, ignore_errors=True)
    each = row["updates"] / row["actors"]
    row["gradients_per_s"] = row["updates"] / row["wall_s"]
    row["lag"] = row.get("lag_mean")
    row["wait_us"] = 1e6 * sum(line.get("time/lock", 0.0) for line in lines) / each
    row["barrier_us"] = 1e6 * sum(line.get("time/barrier", 0.0) for line in lines) / each
    row["lost"] = lines[-1].get("table/lost")
    return row


def shared_params(quick: bool) -> Result:
    """LunarLander-v3, A2C, 16 environments a worker, one gradient per unroll of 32, learning rate 0: gradients a second of one
    worker and of two, by the way in which they share, for nets of 10 thousand and 1 million parameters."""
    times, rows, speeds, waits = 1 if quick else 5, [], {}, {}
    budgets = {"10 thousand": 60_000 if quick else 400_000, "1 million": 10_000 if quick else 80_000}
    ways = {
        "hogwild": (),
        "lock": ("--topology.consistency", "lock"),
        "sharded": ("--topology.consistency", "sharded", "--topology.shards", "2"),
    }
    for net, hidden in NETS.items():
        for workers in (1, 2):
            for repeat in range(times):  # the ways take turns, so that a busy moment hits all of them
                for way, words in ways.items():
                    steps = ("--steps", str(budgets[net] * workers), "--actors", str(workers), "--envs", "16")
                    case = f"{net} parameters, {way}, {workers} worker{'s' * (workers > 1)}, run {repeat + 1}"
                    row = _run(case, *words, *steps, "--net.hidden", hidden, *STILL)
                    rows.append(row)
                    speeds.setdefault((net, way, workers), []).append(row.get("gradients_per_s"))
                    waits.setdefault((net, way, workers), []).append(row.get("wait_us"))
    for name, words in (("episode barrier", ("--topology.barrier", "true")), ("split", ("--topology.split", "true"))):
        steps = ("--steps", str(2 * budgets["10 thousand"]), "--actors", "2", "--envs", "16")
        rows.append(_run(f"10 thousand parameters, hogwild, 2 workers, {name}", *words, *steps, *STILL))
    small = {key[1:]: median(found, times) for key, found in speeds.items() if key[0] == "10 thousand"}
    targets = [
        Target("gradients/s of 2 workers / of 1, hogwild", ratio(small["hogwild", 2], small["hogwild", 1]), ">= 1.8"),
        Target("gradients/s of hogwild / of lock, 2 workers", ratio(small["hogwild", 2], small["lock", 2]), ">= 0.97"),
    ]
    for net in NETS:
        lock, sharded = (median(waits[net, way, 2], times) for way in ("lock", "sharded"))
        less = None if lock is None or sharded is None else lock - sharded
        targets.append(Target(f"us that sharded waits less than lock, {net} parameters", less, ">= 0"))
    return Result(rows, targets)


def a3c_solve(quick: bool) -> Result:
    """LunarLander-v3, A3C by Hogwild! with two workers: seconds from the command's start, set-up included, until three greedy
    evaluations of 25 fresh episodes in a row reach 200 (`--until-eval 200`), and the policy of that moment over 100 further greedy
    and sampled episodes; and until the training episodes, whose actions are sampled, first average 200."""
    train(*A3C, "--steps", "20000", "--eval-episodes", "1")  # fills the cache of compiled code, not counted
    seeds = range(1 if quick else 5)

    def solve(case: str, *words: str) -> dict[str, Any]:
        row = train(*A3C, "--actors", "2", *words)
        return row | {"solved_after_s": solved_after(row), "case": f"2 workers, {case}"}

    kept = [
        solve(f"until greedy evaluations, seed {seed}", "--until-eval", "200", "--seed", str(seed)) for seed in seeds
    ]
    first = [solve(f"until first passage, seed {seed}", "--until-return", "200", "--seed", str(seed)) for seed in seeds]
    solved, passed = ([row["solved_after_s"] for row in rows] for rows in (kept, first))
    greedy = [row.get("eval_mean") is not None and row["eval_mean"] >= 200 for row in kept]
    there = [good and time is not None for good, time in zip(greedy, solved, strict=True)]
    targets = [
        Target("share of seeds solved, with 200 in 100 further greedy episodes", sum(there) / len(seeds), ">= 1"),
        Target("seconds to that, set-up included, median", median(solved, 0), "<= 60"),
        Target("seconds to the first passage, slowest", max(NEVER if t is None else t for t in passed), "<= 30"),
    ]
    return Result([*kept, *first], targets)


def a3c_crowd(quick: bool) -> Result:
    """LunarLander-v3, A3C by Hogwild! with two workers, each of which trains both functions or only one of them, until the training
    episodes first average 200; and what eight workers on the same cores come to."""
    rows = []
    for split in ("false", "true"):
        how = "actor and critic apart" if split == "true" else "each both"
        words = ("--actors", "2", "--until-return", "200", "--topology.split", split)
        row = train(*A3C, *words)
        rows.append(row | {"solved_after_s": solved_after(row), "case": f"2 workers, {how}, seed 0"})
    eight = []
    for seed in range(1 if quick else 5):
        words = ("--actors", "8", "--envs", "16", "--steps", str(200_000 if quick else 1_000_000), "--seed", str(seed))
        eight.append(train(*A3C, *words, "--eval-episodes", "1") | {"case": f"8 workers, seed {seed}"})
    learnt = [row.get("return_mean") is not None and row["return_mean"] > (-150 if quick else 0) for row in eight]
    return Result(
        [*rows, *eight], [Target("share of seeds that learn with 8 workers", sum(learnt) / len(eight), ">= 1")]
    )


def dqn_workers(quick: bool) -> Result:
    """LunarLander-v3, DQN on shared weights by Hogwild! and by lock, 32 environments a worker: seconds of running to a mean of 200
    over 100 episodes with one worker and with two, then 100 greedy episodes. `shoal reproduce concurrent-dqn` has more workers."""
    seeds, ways = range(1 if quick else 5), ("hogwild", "lock")
    for actors in (1, 2):  # fills the cache of compiled code, not counted
        train(*DQN, "--actors", str(actors), "--steps", "8000", "--eval-episodes", "1")
    rows: list[dict[str, Any]] = []

    def solve(way: str, actors: int, seed: int) -> None:
        words = ("--topology.consistency", way, "--actors", str(actors), "--until-return", "200", "--seed", str(seed))
        row = train(*DQN, *words)
        case = f"{way}, {actors} worker{'s' * (actors > 1)}, seed {seed}"
        rows.append(row | {"real_episodes": row.get("episodes"), "way": way, "workers": actors, "case": case})

    for seed in seeds:  # the cases take turns, so that a busy moment hits all of them
        for way in ways:
            for actors in (1, 2):
                solve(way, actors, seed)
    targets = []
    for way in ways:
        for what, key, rule in (("seconds", "solved_at_s", "<= 0.7"), ("episodes", "episodes", "<= 1.2")):
            found: dict[int, list[float | None]] = {1: [], 2: []}
            for row in rows:
                if row["way"] == way:
                    found[row["workers"]].append(row.get(key) if row.get("solved_at_s") is not None else None)
            value = ratio(median(found[2], 0), median(found[1], 0))
            targets.append(Target(f"{what} to 200 of 2 workers / of 1, {way}, medians", value, rule))
    solved = sum(row.get("solved_at_s") is not None for row in rows) / len(rows)
    targets.append(Target("share of runs that reach 200", solved, ">= 1"))
    greedy = [row["eval_mean"] for row in rows if row["workers"] == 2 and row.get("eval_mean") is not None]
    targets.append(Target("greedy return of 2 workers, median", median(list(greedy), 1), ">= 200"))
    return Result(rows, targets)
