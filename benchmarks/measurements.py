"""The measurements. Each returns rows, one per system or case, and targets: promised numbers, and whether they hold."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import rooms
from apart import apart_solve, lag, queue, windows
from continuous import booster, cheetah, continuous_solve, masked, td3_speed, walker
from dqn import dqn_solve, dqn_speed, replay_draw
from dyna import dyna_cartpole
from federation_goals import (
    federation_child,
    federation_crowd,
    federation_datagrams,
    federation_exchange,
    federation_solve,
    federation_speedup,
)
from generic import generic
from hpc import mpi_queue, offload
from inference import inference
from lunar import LUNAR, lunar_limit, lunar_long, lunar_solve, lunar_speed
from pong import breakout_learns, pong_learns, pong_speed
from shared_params import a3c_crowd, a3c_solve, dqn_workers, shared_params
from shoal_runs import PYTHON, SHOAL, train
from studies import journal, tune_overhead
from targets import Result, Target
from targets import median as _median
from targets import ratio as _ratio


def cartpole_fused(quick: bool) -> Result:
    """CartPole-v1 as one compiled scan: steps a second, and seconds of running to a mean of 475."""
    rows, targets = [], []
    for algo, least in (("ppo", 150_000), ("a2c", 350_000)):
        base = ("CartPole-v1", "--runtime", "fused", "--algo", algo, "--eval-episodes", "1")
        train(*base, "--steps", "200000")  # fills the cache, not counted
        speed = train(*base, "--steps", str(1_000_000 if quick else 5_000_000))
        rows.append(speed | {"case": f"{algo}, speed"})
        targets.append(Target(f"steps/s with {algo}", speed.get("steps_per_s"), f">= {least}"))
        solved = [train(*base, "--until-return", "475", "--seed", str(s)) for s in range(1 if quick else 3)]
        rows += [row | {"case": f"{algo}, to 475, seed {row.get('seed')}"} for row in solved]
        times = _median([row.get("solved_at_s") for row in solved], 0)
        targets.append(Target(f"seconds to 475 with {algo}, median", times, "<= 3"))
    return Result(rows, targets)


def processes_scaling(quick: bool) -> Result:
    """A Python environment whose step burns 1 ms of CPU: two actors against one, in processes. PPO on `sync`; SAC on
    `actor_learner`, where a gradient of 64 rows for each 16 steps leaves the cores to the actors."""
    sac = (
        "--algo",
        "sac",
        "--topology",
        "actor_learner",
        "--algo.updates-per-step",
        "0.0625",
        "--algo.batch-size",
        "64",
    )
    rows, targets = [], []
    for case, own, least in (
        ("PPO, sync", ("burn_env:BurnEnv",), 1.85),
        ("SAC, actor_learner", ("burn_env:BurnBoxEnv", *sac, "--envs", "4"), 1.8),
    ):
        for actors in (1, 2):
            steps = (8_000 if quick else 24_000) * actors
            words = ("--runtime", "processes", "--actors", str(actors), "--steps", str(steps), "--eval-episodes", "1")
            rows.append(train(*own, *words) | {"case": f"{case}, {actors} actor{'s' * (actors > 1)}"})
        one, two = (row.get("steps_per_s") for row in rows[-2:])
        targets.append(Target(f"{case}: times the steps/s of one actor", _ratio(two, one), f">= {least}"))
    return Result(rows, targets)


def laws(quick: bool) -> Result:
    """Learn to optimise: the thesis' runtime configuration fused, two drivers against one for an f of 5 ms, a law's answers,
    its own time for each evaluation, and how busy it keeps two cores with f."""
    script, size = str(rooms.HERE / "optimize_speed.py"), ["--quick"] if quick else []
    train_once = [rooms.run_json([PYTHON, script, "fused", *size], timeout=300) for _ in range(1 if quick else 3)]
    speeds = [float(run["steps_per_s"]) for run in train_once]
    rho = rooms.run_json([PYTHON, script, "drivers", *size], timeout=600)["rho"]
    query, own, busy = (
        rooms.run_json([PYTHON, script, part, *size], timeout=600) for part in ("law", "overhead", "busy")
    )
    rows = [{"who": "Shoal", "case": f"fused, run {n + 1}", "steps_per_s": speed} for n, speed in enumerate(speeds)]
    looked = rooms.run_json([PYTHON, script, "scored", *size], timeout=300)["steps_per_s"]
    rows.append({"who": "Shoal", "case": "fused, scored every 10 steps", "steps_per_s": looked})
    alone = f"{query['alone_us']:.1f} us alone, {query['polished_ms']:.2f} ms polished"
    rows.append({"who": "Shoal", "case": f"a law's answer: {query['batch_us']:.2f} us in batches of 1,000, {alone}"})
    return Result(
        rows,
        [
            Target("fused, env steps/s, median", _median([*speeds], 1), ">= 350000"),
            Target("speed of collecting with two drivers / with one", rho, ">= 1.9"),
            Target("microseconds a query of the raw policy, in batches of 1,000", query["batch_us"], "<= 1"),
            Target("microseconds a query of the raw policy, alone", query["alone_us"], "<= 50"),
            Target("milliseconds of a polished answer", query["polished_ms"], "<= 5"),
            *(Target(f"the law's own milliseconds an evaluation, {size}", ms, "<= 5") for size, ms in own.items()),
            *(Target(f"share of two cores spent in an f that {how}", part, ">= 0.8") for how, part in busy.items()),
        ],
    )


def law_regret(quick: bool) -> Result:
    """Laws from few evaluations: normalised regret, (f(law) - f*) / (mean of random - f*), over held-out conditions; interquartile
    mean over functions and seeds. Equal evaluations for all. Slices that were measured before are kept (`results/laws.json`)."""
    sizes = [(knobs, budget) for knobs in (1, 2, 3) for budget in (500, 2000, 20_000)]
    promised = {(1, 500): 0.01, (1, 2000): 0.001, (2, 2000): 0.05, (2, 20_000): 0.01, (3, 20_000): 0.05}
    rows, targets = [], []
    for knobs, budget in [(1, 500)] if quick else sizes:
        case, few = f"{knobs} + {knobs} at {budget:,}", ["--seeds", "1", "--functions", "sphere,rastrigin,levy"]
        words = [str(knobs), str(budget), *(few if quick else [])]
        got = rooms.run_json([PYTHON, str(rooms.HERE / "laws.py"), *words], timeout=1200 if quick else 86_400)
        rows += [row | {"case": case} for row in got["rows"]]
        lost, count = got["behind"], len(got["cells"])
        rows.append({"who": "surrogate", "case": f"{case}, behind on: {', '.join(lost) or 'none'}"})
        if (knobs, budget) in promised:
            mine = next(
                (row["iqm"] for row in got["rows"] if row["who"] == "surrogate"), None
            )  # None: a function lacks
            targets.append(Target(f"{case}: normalised regret", mine, f"<= {promised[knobs, budget]}"))
        targets.append(Target(f"{case}: share of functions ahead of all others", 1 - len(lost) / count, ">= 0.8"))
    return Result(rows, targets)


def startup(quick: bool) -> Result:
    """Start-up times: `shoal --help`, and the first environment step of a second run."""
    helps = []
    for _ in range(3 if quick else 10):
        began = time.perf_counter()
        subprocess.run([SHOAL, "--help"], check=True, stdout=subprocess.DEVNULL)
        helps.append(time.perf_counter() - began)
    words = (LUNAR, "--steps", "20000", "--eval-episodes", "1")
    with tempfile.TemporaryDirectory() as empty:
        first = train(*words, cache=Path(empty)) | {"case": "first run, empty cache"}
        second = train(*words, cache=Path(empty)) | {"case": "second run"}
    median = statistics.median(helps)
    rows = [{"who": "Shoal", "case": "shoal --help", "command_s": median}, first, second]
    saved = _ratio(first.get("command_s"), second.get("command_s"))
    return Result(
        rows,
        [
            Target("seconds of shoal --help, median", median, "<= 0.3"),
            Target("first run's time / second run's", saved, ">= 1.2"),
        ],
    )


MEASUREMENTS = {
    "apart-solve": apart_solve,
    "inference": inference,
    "lag": lag,
    "queue": queue,
    "mpi-queue": mpi_queue,
    "offload": offload,
    "windows": windows,
    "pong-speed": pong_speed,
    "pong-learns": pong_learns,
    "breakout-learns": breakout_learns,
    "startup": startup,
    "lunar-solve": lunar_solve,
    "lunar-speed": lunar_speed,
    "lunar-limit": lunar_limit,
    "lunar-long": lunar_long,
    "generic": generic,
    "cartpole-fused": cartpole_fused,
    "processes-scaling": processes_scaling,
    "laws": laws,
    "law-regret": law_regret,
    "dqn-speed": dqn_speed,
    "dqn-solve": dqn_solve,
    "replay-draw": replay_draw,
    "dyna-cartpole": dyna_cartpole,
    "shared-params": shared_params,
    "a3c-solve": a3c_solve,
    "a3c-crowd": a3c_crowd,
    "dqn-workers": dqn_workers,
    "td3-speed": td3_speed,
    "continuous-solve": continuous_solve,
    "cheetah": cheetah,
    "walker": walker,
    "booster": booster,
    "journal": journal,
    "tune-overhead": tune_overhead,
    "masked": masked,
    "federation-exchange": federation_exchange,
    "federation-crowd": federation_crowd,
    "federation-child": federation_child,
    "federation-datagrams": federation_datagrams,
    "federation-solve": federation_solve,
    "federation-speedup": federation_speedup,
}
