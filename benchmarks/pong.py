"""Atari from images: frames per second beside Sample Factory and CleanRL's PPO, and scores on Pong and Breakout."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import rooms
from curves import curve, picture
from shoal_runs import train
from targets import NEVER, Result, Target, ratio

# Two learners in lockstep with two actors: all four share the two cores in turn, so that none waits, and no policy lags.
LEARNS = ("--algo", "ppo", "--topology", "actor_learner", "--learners", "2", "--runtime", "processes")
LEARNS += ("--algo.batch-size", "128", "--topology.max-lag", "0")  # of each learner: a gradient of 256 samples
SPEED = {
    "ga3c, A2C, 1 epoch": ("--algo", "a2c", "--topology", "ga3c", "--actors", "8"),
    "actor_learner, A2C, 1 epoch": ("--algo", "a2c", "--topology", "actor_learner"),
    "actor_learner, PPO, 3 epochs, 2 learners": LEARNS,
    "actor_learner, PPO, 4 epochs, 2 learners": (*LEARNS, "--algo.epochs", "4"),
}
# A row is compared with the peer that learns from each sample as often.
BESIDE = {3: "CleanRL's ppo_atari_envpool.py", 4: "Sample Factory"}
FRAMES = 4  # an action
GOAL, MINUTES = 18.0, 90
BREAKOUT_STEPS, BREAKOUT_MINUTES = "1400000", 45


def pong_speed(quick: bool) -> Result:
    """Pong-v5 with the net of A3C (16 filters of 8x8, 32 of 4x4, 256): environment steps and frames a second while
    training, of four frames a step. Sample Factory's APPO has its Atari example's settings and two workers, on ale-py; CleanRL's
    PPO is a script in the manner of its `ppo_atari_envpool.py`, with the settings of its fastest Pong, on EnvPool as Shoal is."""
    seconds, steps = (20, "20000") if quick else (90, "80000")
    peers = [
        rooms.run_peer("sample_factory", seconds=seconds, script="sample_factory_pong.py") | {"case": "APPO, 4 epochs"},
        rooms.run_peer("cleanrl_atari", seconds=seconds) | {"case": "PPO, 3 epochs"},
    ]
    ours = [
        train("Pong-v5", *words, "--steps", steps, "--eval-episodes", "0") | {"case": case}
        for case, words in SPEED.items()
    ]
    for row in (*peers, *ours):
        row.pop("return_mean", None)  # too few episodes to mean anything
        row["frames_per_s"] = FRAMES * row["steps_per_s"] if row.get("steps_per_s") else None
    found = {row["who"]: row["frames_per_s"] for row in peers}
    targets = [
        Target(f"{row['case']}: times {peer}'s frames/s", ratio(row["frames_per_s"], found[peer]), ">= 1")
        for row in ours
        for epochs, peer in BESIDE.items()
        if f"{epochs} epochs" in row["case"]
    ]
    return Result([*peers, *ours], targets)


def pong_learns(quick: bool) -> Result:
    """Pong-v5, PPO through `actor_learner` with two learners in processes, from nothing: minutes until the last 100 training
    episodes average 18 of at most 21 points."""
    goal = ("--until-return", str(GOAL), "--eval-episodes", "0" if quick else "10")
    row = learn("Pong-v5", goal, 2 if quick else MINUTES)
    if "error" in row:
        return Result([row], [])
    row["picture"] = picture("pong", {row["case"]: row["curve"]}, ("steps", "minutes"), GOAL)
    minutes = NEVER if row["solved_at_s"] is None else (row["setup_s"] + row["solved_at_s"]) / 60
    return Result([row], [Target("minutes to a mean of 18, set-up included", minutes, f"<= {MINUTES}")])


def breakout_learns(quick: bool) -> Result:
    """Breakout-v5, PPO as on Pong, with the settings for games that have none of their own: the mean of the last 100 training
    episodes after 45 minutes. A random player has 1.7 points, a human 30 (Mnih et al. 2015)."""
    goal = ("--steps", BREAKOUT_STEPS, "--eval-episodes", "0" if quick else "10")
    row = learn("Breakout-v5", goal, 2 if quick else BREAKOUT_MINUTES)
    if "error" in row:
        return Result([row], [])
    row["picture"] = picture("breakout", {row["case"]: row["curve"]}, ("steps", "minutes"))
    return Result([row], [Target("mean of the last 100 training episodes", row["return_mean"], ">= 30")])


def learn(env: str, words: tuple[str, ...], minutes: float) -> dict[str, Any]:
    """One run, ended as by a user's interrupt after these minutes, with its curve."""
    row = train(env, *LEARNS, *words, keep=True, minutes=minutes, timeout=60 * (minutes + 20))
    if "error" in row:
        return row
    run = Path(row["run"])
    row |= {
        "case": "PPO, actor_learner, 2 learners, seed 0",
        "curve": curve(run),
        "frames_per_s": FRAMES * row["steps_per_s"],
    }
    shutil.rmtree(run.parent, ignore_errors=True)
    return row
