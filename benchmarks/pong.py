"""Pong from pictures: frames a second beside Sample Factory on the same cores, and how soon anything is learnt."""

from __future__ import annotations

import shutil
from pathlib import Path

import rooms
from curves import curve, picture
from shoal_runs import train
from targets import Result, Target, ratio

LEARNS = ("--algo", "ppo", "--topology", "actor_learner", "--learners", "2", "--runtime", "processes")
LEARNS += ("--algo.batch-size", "128")  # of each learner: a gradient of 256 samples
WAYS = {
    "ga3c, A2C": ("--algo", "a2c", "--topology", "ga3c", "--actors", "8"),
    "actor_learner, A2C": ("--algo", "a2c", "--topology", "actor_learner"),
    "actor_learner, PPO, 4 epochs, 2 learners": LEARNS,
}
FRAMES = 4  # an action
GOAL = -15.0
MINUTES = 40


def pong_speed(quick: bool) -> Result:
    """Pong-v5 with the net of A3C (16 filters of 8x8, 32 of 4x4, 256): environment steps and frames a second while
    training, of four frames a step. Sample Factory's APPO has the same net, its Atari example's settings and two workers.
    A2C learns from each sample once, PPO and APPO four times."""
    seconds, steps = (20, "20000") if quick else (90, "80000")
    peer = rooms.run_peer("sample_factory", seconds=seconds, script="sample_factory_pong.py")
    rows = [peer | {"case": "APPO, 4 epochs"}]
    for case, words in WAYS.items():
        rows.append(train("Pong-v5", *words, "--steps", steps, "--eval-episodes", "0") | {"case": case})
    for row in rows:
        row.pop("return_mean", None)  # too few episodes to mean anything
        row["frames_per_s"] = FRAMES * row["steps_per_s"] if row.get("steps_per_s") else None
    targets = [
        Target(
            f"{row['case']}: times Sample Factory's frames/s",
            ratio(row["frames_per_s"], rows[0]["frames_per_s"]),
            ">= 1",
        )
        for row in rows[1:]
    ]
    return Result(rows, targets)


def pong_learns(quick: bool) -> Result:
    """Pong-v5, PPO through `actor_learner` with two learners in processes, from nothing: minutes until the last 100 training
    episodes average -15."""
    steps = ("--steps", "20000") if quick else ()
    goal = ("--until-return", str(GOAL), "--eval-episodes", "5")
    row = train("Pong-v5", *LEARNS, *goal, *steps, keep=True, timeout=60 * (MINUTES + 5))
    if "error" in row:
        return Result([row], [])
    run = Path(row["run"])
    row |= {
        "case": "PPO, actor_learner, 2 learners, seed 0",
        "curve": curve(run),
        "frames_per_s": FRAMES * row["steps_per_s"],
    }
    shutil.rmtree(run.parent, ignore_errors=True)
    row["picture"] = picture("pong", {"actor_learner, PPO, 2 learners": row["curve"]}, "minutes", GOAL)
    minutes = None if row["solved_at_s"] is None else (row["setup_s"] + row["solved_at_s"]) / 60
    return Result([row], [Target("minutes to a mean of -15, set-up included", minutes, f"<= {MINUTES}")])
