"""Actors and learners apart: time to solve beside `sync`, V-trace against lag, queues between processes, windows that collide."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from curves import curve, picture
from rooms import HERE, Failed, run_json
from shoal_runs import PYTHON, train
from targets import Result, Target, median, ratio

LUNAR = ("LunarLander-v3", "--until-return", "200", "--eval-episodes", "1")
CARTPOLE = ("CartPole-v1", "--algo", "a2c", "--topology", "actor_learner", "--backend", "jax")
RATE = "2e-2"  # the learning rate of the experiment on lag


def apart_solve(quick: bool) -> Result:
    """LunarLander-v3 to a mean of 200: seconds of running of `actor_learner` beside `sync` on threads, and of two learners.
    A seed that does not get there counts as infinitely late."""
    seeds = range(2 if quick else 5)
    cases: dict[str, tuple[str, ...]] = {
        "sync": ("--topology", "sync"),
        "actor_learner": ("--topology", "actor_learner"),
        "actor_learner, 2 learners in processes": (
            *("--topology", "actor_learner", "--learners", "2", "--runtime", "processes"),
        ),
    }
    rows, times = [], {}
    for algo in ("ppo", "a2c"):
        for words in cases.values():  # fills the cache of compiled code, not counted
            train(LUNAR[0], "--steps", "20000", "--eval-episodes", "1", "--algo", algo, *words)
        for seed in seeds:  # the cases take turns, so that a busy moment hits all of them
            for case, words in cases.items():
                row = train(*LUNAR, "--algo", algo, *words, "--seed", str(seed), timeout=300)
                rows.append(row | {"case": f"{algo}, {case}, seed {seed}", "lag": row.get("lag_mean")})
                times.setdefault((algo, case), []).append(row.get("solved_at_s"))
    middle = {key: median(found, len(seeds) // 2 + 1) for key, found in times.items()}
    joint = [found for (_, case), solved in times.items() if "2 learners" in case for found in solved]
    targets = [
        Target(
            f"actor_learner's time / sync's, {algo}, median",
            ratio(middle[algo, "actor_learner"], middle[algo, "sync"]),
            "<= 1.3",
        )
        for algo in ("ppo", "a2c")
    ]
    solved = sum(found is not None for found in joint) / len(joint)
    return Result(rows, [*targets, Target("share of runs with 2 learners that solve it", solved, ">= 1")])


def lag(quick: bool) -> Result:
    """CartPole-v1, A2C at a learning rate of 2e-2, 64 environments, unrolls of 16: with and without V-trace, acting by weights that
    are 0, 5 and 20 versions older than the newest. Steps to a mean of 475 over 100 episodes, of at most a million."""
    rows, reached = [], {}
    for delay in (0, 20) if quick else (0, 5, 20):
        for returns in ("vtrace", "gae"):
            for seed in range(1 if quick else 5):
                words = ("--algo.returns", returns, "--algo.learning-rate", RATE, "--topology.delay", str(delay))
                goal = ("--actors", "1", "--until-return", "475", "--eval-episodes", "1", "--seed", str(seed))
                row = train(*CARTPOLE, "--runtime", "inline", *words, *goal, timeout=300)
                rows.append(row | {"case": f"lag {delay}, {returns}, seed {seed}", "lag": row.get("lag_mean")})
                reached.setdefault((delay, returns), []).append(row.get("solved_at_s") is not None)
    share = {key: sum(found) / len(found) for key, found in reached.items()}
    targets = [Target("share of seeds at 475 with V-trace at lag 20", share[20, "vtrace"], ">= 1")]
    return Result(rows, targets)


def queue(quick: bool) -> Result:
    """The Stream port between two processes over shared memory: 1 MB slots, small ones, and there and back."""
    try:
        found = run_json([PYTHON, str(HERE / "queue_speed.py"), *(["--quick"] if quick else [])], timeout=300)
    except Failed as failure:
        return Result([{"who": "Shoal", "error": str(failure)}], [])
    cases = {case: numbers for case, numbers in found.items() if isinstance(numbers, dict)}
    plain = cases["in place"]
    return Result(
        [{"who": "Shoal", "case": case, **numbers} for case, numbers in cases.items()],
        [
            Target("GB/s of 1 MB slots", plain["gb_per_s"], ">= 1"),
            Target("microseconds a small slot, one after another", plain["small_us"], "<= 50"),
        ],
    )


def expected_collisions(actors: int, learners: int) -> float:
    """The expected share of reads of a window that another learner has read already, if each learner picks windows at random:
    of L reads, A (1 - (1 - 1/A)^L) are of different windows."""
    return 1.0 - actors * (1.0 - (1.0 - 1.0 / actors) ** learners) / learners


def windows(quick: bool) -> Result:
    """CartPole-v1, A2C, 8 actors, L learners that read windows: how often two read the same, and what is learnt (windows.png)."""
    rows, targets = [], []
    try:
        rounds = run_json([PYTHON, str(HERE / "window_rounds.py"), *(["--quick"] if quick else [])], timeout=300)
    except Failed as failure:
        return Result([{"who": "Shoal", "error": str(failure)}], [])
    for learners in (2, 4, 8):
        for selection, expected in (("assigned", 0.0), ("random", expected_collisions(8, learners))):
            rate = rounds[f"{learners} {selection}"]
            case = f"{learners} learners, {selection}: a read of each, a push of each actor, in turn"
            rows.append({"who": "Shoal", "case": case, "collisions": rate, "expected": expected})
            targets.append(Target(f"{case}: distance from the closed form", abs(rate - expected), "<= 0.02"))
    steps, lines = str(20_000 if quick else 800_000), {}
    for learners in (2,) if quick else (2, 4, 8):
        for selection in ("assigned", "random"):
            words = ("--topology.stream", "window", "--topology.selection", selection, "--topology.batch-unrolls", "1")
            size = ("--actors", "8", "--learners", str(learners), "--steps", steps, "--eval-episodes", "1")
            row = train(*CARTPOLE, "--runtime", "threads", *words, *size, keep=True) | {
                "case": f"{learners} learners, {selection}, training"
            }
            if "error" not in row:
                run = Path(row["run"])
                lines[f"{learners} learners, {selection}"] = row["curve"] = curve(run)
                row["collisions"] = _collisions(run)
                if selection == "assigned":
                    targets.append(
                        Target(f"collision rate of {learners} learners, assigned", row["collisions"], "<= 0")
                    )
            rows.append(row)
    picture("windows", lines, "steps")
    return Result(rows, targets)


def _collisions(run: Path) -> float:
    """The share of reads that collided, from the run's last metrics. Removes the run's folder."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    shutil.rmtree(run.parent, ignore_errors=True)
    return float(last["window/collisions"] / max(1.0, last["window/reads"]))
