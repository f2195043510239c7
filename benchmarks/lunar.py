"""LunarLander-v3 by PPO: speed, time to solve, where the time goes, and the policy in the end."""

from __future__ import annotations

import tempfile
from pathlib import Path

import rooms
from shoal_runs import PYTHON, evaluate, solved_after, train
from targets import Result, Target
from targets import median as _median
from targets import ratio as _ratio

LUNAR = "LunarLander-v3"


def lunar_solve(quick: bool) -> Result:
    """LunarLander-v3, PPO: seconds from the command's start to a mean of 200 over 100 episodes, set-up included."""
    goal = ("--until-return", "200")
    train(LUNAR, "--steps", "20000", "--eval-episodes", "1")  # fills the cache of compiled code, not counted
    seeds = range(2 if quick else 5)
    shoal = [train(LUNAR, *goal, "--seed", str(seed)) for seed in seeds]
    for row in shoal:
        row["solved_after_s"] = solved_after(row)
        row["case"] = f"warm cache, seed {row.get('seed')}"
    with tempfile.TemporaryDirectory() as empty:
        cold = train(LUNAR, *goal, "--seed", "0", cache=Path(empty))
    cold |= {"solved_after_s": solved_after(cold), "case": "cold cache, seed 0"}
    limit = 60 if quick else 240
    peers = {}
    ways = {
        "near": "settings near Shoal's",
        "shoal": "Shoal's own batch, epochs and learning rate",
        "zoo": "the RL Zoo's hyperparameters for this environment",
    }
    for way, how in ways.items():
        peer = rooms.run_peer("sample_factory", seconds=limit, until_return=200, words=("--hyper", way))
        solved = peer.get("solved_at_s")
        # A peer that was not there at the limit would have needed longer: the ratio is then a lower bound.
        peer["waited"] = limit if solved is None and "error" not in peer else solved
        case = f"seed 0, {how}" + ("" if solved else f", not solved after {limit} s")
        peers[how] = peer | {"solved_after_s": solved, "case": case}
    median = _median([row["solved_after_s"] for row in shoal], 0)
    scores = [row["eval_mean"] for row in shoal if row.get("eval_mean") is not None]
    targets = [
        Target("Shoal, median seconds, warm cache", median, "<= 12"),
        *(
            Target(f"times quicker than Sample Factory, {how}", _ratio(p["waited"], median), ">= 18")
            for how, p in peers.items()
        ),
        Target("share of seeds solved", sum(row["solved_after_s"] is not None for row in shoal) / len(shoal), ">= 1"),
        Target("share of seeds >= 200 in 100 greedy episodes", sum(s >= 200 for s in scores) / len(shoal), ">= 0.8"),
    ]
    return Result([*shoal, cold, *peers.values()], targets)


# Stable-Baselines3's own batch, from the RL Zoo: 16 environments of 1,024 steps, minibatches of 64, four epochs.
SB3_BATCH = ("--actors", "2", "--envs", "8", "--algo.unroll", "1024", "--algo.batch-size", "64", "--algo.epochs", "4")
# The measured systems: (peer, arguments of its script, description).
SPEEDS = (
    ("sb3", ("--hyper", "zoo"), "the RL Zoo's batch, Gymnasium's physics"),
    ("sb3", ("--hyper", "zoo", "--physics", "envpool"), "the RL Zoo's batch, EnvPool's physics"),
    ("sb3", ("--hyper", "shoal"), "Shoal's batch, Gymnasium's physics"),
    ("sb3", ("--hyper", "shoal", "--physics", "envpool"), "Shoal's batch, EnvPool's physics"),
    ("sample_factory", ("--hyper", "near"), "minibatches of 2,048, Gymnasium's physics"),
    ("sample_factory", ("--hyper", "shoal"), "Shoal's batch, Gymnasium's physics"),
    ("sample_factory", ("--hyper", "shoal", "--physics", "envpool"), "Shoal's batch, EnvPool's physics"),
    ("sbx", ("--hyper", "zoo"), "the RL Zoo's batch, Gymnasium's physics"),
    ("cleanrl", (), "its own batch, Gymnasium's physics"),
    ("rlox", (), "the RL Zoo's batch, Gymnasium's physics"),
    ("rllib", (), "settings near the RL Zoo's, Gymnasium's physics"),
)
OURS = (
    (
        "the RL Zoo's batch, Gymnasium's physics",
        (*SB3_BATCH, "--backend", "gymnasium", "--runtime", "processes"),
        64,
        16.0,
    ),
    ("the RL Zoo's batch, EnvPool's physics", SB3_BATCH, 64, 16.0),
    ("its own batch, Gymnasium's physics", ("--backend", "gymnasium", "--runtime", "processes"), 256, 64.0),
    ("its own batch, EnvPool's physics", (), 256, 64.0),
)


def lunar_speed(quick: bool) -> Result:
    """LunarLander-v3, PPO: environment steps a second while training, and the steps that are made for each gradient. With the same
    batch on the same physics a ratio is that of the frameworks; the rest of Shoal's lead is EnvPool's physics and its larger
    minibatches. Shoal's rows are medians of three runs; all systems run one after another."""
    seconds = 10 if quick else 20
    steps = ("--steps", str(300_000 if quick else 1_000_000), "--eval-episodes", "0")
    rows, found = [], {}
    for title, words, minibatch, per_gradient in OURS:
        few = steps if per_gradient > 16 else ("--steps", str(131_072 if quick else 524_288), "--eval-episodes", "0")
        runs = [train(LUNAR, *few, *words) for _ in range(1 if quick else 3)]
        speed = _median([row.get("steps_per_s") for row in runs], len(runs))
        row = runs[0] | {
            "steps_per_s": speed,
            "case": title,
            "minibatch": minibatch,
            "steps_per_gradient": per_gradient,
        }
        found["Shoal", title] = speed
        rows.append(row)
    for name, words, title in SPEEDS:
        row = rooms.run_peer(name, seconds=seconds, words=words) | {"case": title}
        found[name, title] = row.get("steps_per_s")
        rows.append(row)
    same, zoo, own = "the RL Zoo's batch, ", "sb3", "Shoal's batch, "
    gym, pool = "Gymnasium's physics", "EnvPool's physics"
    ratios = (
        ("SB3, the same batch, both on Gymnasium's physics", ("Shoal", same + gym), (zoo, same + gym), ">= 5"),
        ("SB3, the same batch, both on EnvPool's physics", ("Shoal", same + pool), (zoo, same + pool), ">= 5"),
        (
            "SB3 with Shoal's batch, both on EnvPool's physics",
            ("Shoal", "its own batch, " + pool),
            (zoo, own + pool),
            ">= 5",
        ),
        (
            "Sample Factory, Shoal's batch, both on Gymnasium's",
            ("Shoal", "its own batch, " + gym),
            ("sample_factory", own + gym),
            ">= 3",
        ),
        ("SB3, each as it comes", ("Shoal", "its own batch, " + pool), (zoo, same + gym), ">= 20"),
    )
    targets = [
        Target(f"times the steps/s of {what}", _ratio(found.get(a), found.get(b)), rule) for what, a, b, rule in ratios
    ]
    return Result(rows, targets)


def lunar_limit(quick: bool) -> Result:
    """LunarLander-v3, PPO: the CPU time of a step by what it is spent on, and how near Shoal is to using both cores fully."""
    runs = []
    for _ in range(1 if quick else 3):
        script = str(rooms.HERE / "cpu_shares.py")
        runs.append(rooms.run_json([PYTHON, script, "--updates", str(60 if quick else 300)], timeout=300))
    run = sorted(runs, key=lambda one: float(one["steps_per_s"]))[len(runs) // 2]
    rows = [{"who": "Shoal", "case": what, "us_per_step": us} for what, us in run["shares"].items()]
    rows.append({"who": "Shoal", "case": "all", "us_per_step": sum(run["shares"].values())})
    rows.append({"who": "Shoal", "case": "if no core ever waited", "steps_per_s": run["limit"]})
    rows.append({"who": "Shoal", "case": "measured", "steps_per_s": run["steps_per_s"]})
    return Result(rows, [Target("share of what the cores could do", run["steps_per_s"] / run["limit"], ">= 0.8")])


def lunar_long(quick: bool) -> Result:
    """LunarLander-v3 after 1.5 million steps: greedy episodes in Gymnasium's own environment."""
    row = train(LUNAR, "--steps", str(300_000 if quick else 1_500_000), "--eval-episodes", "1", timeout=900, keep=True)
    if "error" not in row:
        judged = evaluate(str(row["run"]), 20 if quick else 500)
        row |= {key: value for key, value in judged.items() if key.startswith(("eval_", "error"))}
    return Result(
        [row],
        [Target("mean return", row.get("eval_mean"), ">= 257"), Target("its sd", row.get("eval_sd"), "<= 40")],
    )
