"""Continuous control: TD3's speed beside SB3's and SBX's, and the time to solve small environments."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import rooms
from curves import curve, picture
from shoal_runs import PYTHON, SHOAL, evaluate, train
from targets import Result, Target, ratio

NETS = ("64,64", "256,256", "400,300")
# What all of them do: a gradient of 256 rows for each environment step. Stated here, so that no table can change it.
WARMUP = 1_000  # steps without gradients: the peers' clocks start after theirs
SAME = ("--algo.batch-size", "256", "--algo.updates-per-step", "1", "--algo.warmup", str(WARMUP))
# Each worker has four environments and makes the gradients of its own steps.
TWO_CORES = ("--topology", "shared_params", "--topology.consistency", "lock", "--actors", "2", "--runtime", "processes")
PEERS = (("sbx", {"64,64": ">= 3", "256,256": ">= 1.3", "400,300": ">= 1.3"}),)
PEERS += (("sb3", {"64,64": ">= 7", "256,256": ">= 1.6", "400,300": ">= 1.6"}),)
# (environment, algorithm, a dense net with as many parameters as the tuned one, the goal)
MASKED: tuple[tuple[str, str, tuple[str, str], float], ...] = (
    ("shoal/MaskedCartPole-v0", "dqn", ("--net.hidden", "64,140"), 195),
    ("shoal/MaskedPendulum-v0", "sac", ("--net.hidden", "91,91"), -250),
)
FUSED = ("--runtime", "fused")
# (environment, algorithm, further words, greedy return that counts as solved, seconds promised)
GOALS: tuple[tuple[str, str, tuple[str, ...], float, float], ...] = (
    ("Pendulum-v1", "td3", FUSED, -160, 4),
    ("Pendulum-v1", "sac", FUSED, -160, 4),
    ("Pendulum-v1", "td3", (), -160, 4),
    ("Pendulum-v1", "sac", (), -160, 4),
    ("MountainCarContinuous-v0", "sac", (), 90, 12),
    ("LunarLanderContinuous-v3", "sac", (), 200, 40),
)


def td3_speed(quick: bool) -> Result:
    """Pendulum-v1, TD3, one gradient of 256 rows for each environment step, nets of three sizes, on one core: environment steps
    with a gradient per second. Shoal: 4 environments, 64 gradients per call, inline on EnvPool's physics and fused on physics in
    JAX; the time of its warm-up counts, the steps do not. SB3 and SBX: one environment, after their warm-up. The larger nets also
    by two workers in processes of their own, and the update alone: the rate of its matrix products over that of one large square
    float32 product, in one process on one thread."""
    seconds, core = 8 if quick else 30, min(os.sched_getaffinity(0))
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
        )
        own = _trained(*words, "--runtime", "inline", core=core) | {"case": f"[{net}], inline"}
        fused = _trained(*words, "--runtime", "fused", core=core) | {"case": f"[{net}], fused"}
        rows += [row | {"minibatch": 256, "steps_per_gradient": 1.0} for row in (own, fused)]
        for peer, rules in PEERS:
            found = rooms.run_peer(
                peer, seconds=seconds, script="baselines_td3.py", words=("--library", peer, "--net", net), core=core
            )
            rows.append(found | {"case": f"[{net}]"})
            value = ratio(fused.get("steps_per_s"), found.get("steps_per_s"))
            targets.append(Target(f"[{net}], fused: times the steps/s of {found['who']}", value, rules[net]))
        if not small:
            both = _trained(*words, *TWO_CORES) | {"case": f"[{net}], two workers on shared weights"}
            rows.append(both)
            value = ratio(both.get("steps_per_s"), own.get("steps_per_s"))
            targets.append(Target(f"[{net}]: two cores, times the steps/s of one", value, ">= 1.6"))
    alone = _updates_alone(1 if quick else 10, core)
    rows += alone
    targets += [
        Target(f"{row['case']}: update as a share of the machine's matmul rate", row.get("matmul_share"), ">= 0.75")
        for row in alone
    ]
    return Result(rows, targets)


def _updates_alone(seconds: float, core: int) -> list[dict[str, Any]]:
    """The rows of `update_share.py` for the larger nets."""
    nets = NETS[1:]
    command = [PYTHON, str(rooms.HERE / "update_share.py"), "--seconds", str(seconds), "--nets", *nets]
    try:
        found = rooms.run_json([*rooms.pinned(core), *command], timeout=300)["rows"]
    except rooms.Failed as failure:
        found = [{"net": net, "error": str(failure)} for net in nets]
    return [{"who": "Shoal", "minibatch": 256, **row, "case": f"[{row['net']}], the update alone"} for row in found]


def _trained(*words: str, core: int | None = None) -> dict[str, Any]:
    """A run whose steps per second are those with a gradient."""
    row = train(*words, "--eval-episodes", "0", core=core)
    return row | {"steps_per_s": (row["env_steps"] - WARMUP) / row["wall_s"]} if "wall_s" in row else row


def continuous_solve(quick: bool) -> Result:
    """The tuned settings with their own budgets: seconds of running (`wall_s`, without set-up), then 100 greedy episodes in
    Gymnasium's own environment. Budgets are fixed in advance, so that no run ends because it happens to be good."""
    seeds = range(1 if quick else 5)
    rows: list[dict[str, Any]] = []
    targets = []
    for env, algo, words, goal, limit in GOALS[:1] if quick else GOALS:
        runs = []
        what = f"{algo} on {env}{', fused' if words == FUSED else ''}"
        train(
            env, "--algo", algo, *words, "--steps", "6000", "--eval-episodes", "1"
        )  # fills the cache of compiled code
        for seed in seeds:
            row = train(env, "--algo", algo, *words, "--seed", str(seed))
            runs.append(row | {"case": f"{what}, seed {seed}"})
        rows += runs
        there = [row.get("eval_mean") is not None and row["eval_mean"] >= goal for row in runs]
        took = [row["wall_s"] for row in runs if "wall_s" in row]
        targets += [
            Target(f"{what}: share of seeds at {goal} greedily", sum(there) / len(runs), ">= 1"),
            Target(f"{what}: largest seconds of running", max(took, default=None), f"<= {limit}"),
        ]
    return Result(rows, targets)


def cheetah(quick: bool) -> Result:
    """HalfCheetah-v5 for five minutes on two cores: Shoal's SAC with the settings that it has for this environment, whose minutes
    begin with the command, beside SBX's SAC with its defaults, whose minutes begin after its compilation. The last policies, 10
    greedy episodes each."""
    env, minutes = "HalfCheetah-v5", 0.5 if quick else 5
    peer = rooms.run_peer("sbx", seconds=60 * minutes, script="baselines_sac.py", words=("--env", env))
    ours = learn(env, "sac", 0, minutes)
    rows = [row | {"case": "SAC, seed 0"} for row in (peer, ours)]
    rows[0]["picture"] = picture("cheetah", {row["who"]: row.get("curve", []) for row in rows}, ("steps", "minutes"))
    value = ratio(ours.get("eval_mean"), peer.get("eval_mean"))
    return Result(rows, [Target("greedy return after five minutes, times SBX's", value, ">= 1.5")])


def walker(quick: bool) -> Result:
    """BipedalWalker-v3 by SAC with the settings for environments that have none of their own, until three evaluations of 25 greedy
    episodes in a row reach 280; then 100 further greedy episodes in Gymnasium's own environment. PPO beside it in the same way,
    with a budget of 5 million steps."""
    env, goal = "BipedalWalker-v3", ("--steps", "8000", "--eval-episodes", "2") if quick else ("--until-eval", "280")
    seeds = range(1 if quick else 2)
    rows: list[dict[str, Any]] = []
    for algo, size in (("sac", ()), ("ppo", () if quick else ("--steps", "5000000"))):
        for seed in seeds:
            row = train(env, "--algo", algo, "--seed", str(seed), *goal, *size, timeout=1800)
            rows.append(row | {"case": f"{algo.upper()}, seed {seed}"})
    judged = [row.get("eval_mean") for row in rows[: len(seeds)]]
    worst = None if None in judged else min(judged)
    return Result(rows, [Target("SAC: greedy return of the worse seed", worst, ">= 280")])


def booster(quick: bool) -> Result:
    """The booster's plant: DQN, and TD3 on the continuous form, as tuned and trained on the surrogate, beside the tuned PI
    regulator from the same starts and with the same noise; 2,000 greedy episodes each."""
    episodes, size = "20" if quick else "2000", ("--steps", "4000") if quick else ()
    rows: list[dict[str, Any]] = []
    targets = []
    for name, algo in (("shoal/Booster-v0", "dqn"), ("shoal/BoosterContinuous-v0", "td3")):
        less = []
        for seed in range(1 if quick else 5):
            same = ("--seed", str(seed))
            baseline = _regulated(name, "--episodes", episodes, *same)
            ours = train(name, "--algo", algo, "--runtime", "fused", "--eval-episodes", episodes, *same, *size)
            rows.append(baseline | {"case": f"tuned, {name}, seed {seed}"})
            rows.append(ours | {"case": f"{algo.upper()}, {name}, seed {seed}"})
            part = ratio(ours.get("eval_mean"), baseline.get("eval_mean"))
            less.append(None if part is None else 1 - part)
        worst = None if None in less else min(less)
        targets.append(
            Target(f"share of the regulator's error that {algo.upper()} avoids, worst seed", worst, ">= 0.2")
        )
    return Result(rows, targets)


def _regulated(*words: str) -> dict[str, Any]:
    """The result of `shoal eval --baseline pi-tuned ...`."""
    command = [SHOAL, "eval", "--baseline", "pi-tuned", *words, "--json", "--quiet"]
    try:
        return {"who": "PI regulator", **rooms.run_json(command, timeout=300)}
    except rooms.Failed as failure:
        return {"who": "PI regulator", "error": str(failure)}


def masked(quick: bool) -> Result:
    """Hidden velocities: a net with a GRU as tuned, and dense layers with as many parameters and otherwise the same settings.
    shoal/MaskedCartPole-v0 by DQN, until the mean of the last 100 training episodes is 195 or the tuned budget is spent;
    shoal/MaskedPendulum-v0 by SAC, with 100 greedy episodes after the tuned budget."""
    rows: list[dict[str, Any]] = []
    targets = []
    for env, algo, dense, goal in MASKED:
        by_training = env == "shoal/MaskedCartPole-v0"
        full = ("--until-return", str(goal)) if by_training else ()
        size = ("--steps", "4000", "--eval-episodes", "2") if quick else full
        for what, net, rule in (("GRU", (), ">= 1"), ("dense", ("--net.cell", "none", *dense), "<= 0")):
            runs = []
            for seed in range(1 if quick else 5):
                row = train(env, "--algo", algo, *FUSED, "--seed", str(seed), *net, *size)
                runs.append(row | {"case": f"{env}, {what}, seed {seed}"})
            rows += runs
            ended = [row for row in runs if "error" not in row]
            there = [row["solved_at_s"] is not None if by_training else row["eval_mean"] >= goal for row in ended]
            share = sum(there) / len(there) if len(there) == len(runs) else None
            targets.append(Target(f"{env}, {what}: share of seeds at {goal}", share, rule))
    return Result(rows, targets)


def learn(env: str, algo: str, seed: int, minutes: float) -> dict[str, Any]:
    """A run that is interrupted so many minutes after the start of its command, with its curve; then 10 greedy episodes."""
    words = ("--algo", algo, "--seed", str(seed), "--steps", "100000000", "--eval-episodes", "0")
    row = train(env, *words, keep=True, minutes=minutes, timeout=60 * minutes + 300)
    if "run" in row:
        run = Path(row["run"])
        judged = evaluate(str(run), 10)
        row |= {
            "curve": curve(run),
            "eval_episodes": 10,
            **{k: v for k, v in judged.items() if k in ("eval_mean", "eval_sd")},
        }
        shutil.rmtree(run.parent, ignore_errors=True)
    return row
