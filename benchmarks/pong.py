"""Pong from pictures: frames a second beside Sample Factory on the same cores, and how soon anything is learnt."""

from __future__ import annotations

import shutil
from pathlib import Path

import rooms
from curves import curve, picture
from shoal_runs import train
from targets import Result, Target, ratio

PONG = ("Pong-v5", "--algo", "a2c")
WAYS = {
    "ga3c": ("--topology", "ga3c", "--actors", "8"),
    "actor_learner": ("--topology", "actor_learner"),
}
FRAMES = 4  # an action
GOAL = -15.0
MINUTES = 40


def pong_speed(quick: bool) -> Result:
    """Pong-v5, A2C with the net of A3C (16 filters of 8x8, 32 of 4x4, 256): environment steps and frames a second while
    training, of four frames a step. Sample Factory's APPO has the same net, its Atari example's settings and two workers."""
    seconds, steps = (20, "20000") if quick else (90, "150000")
    peer = rooms.run_peer("sample_factory", seconds=seconds, script="sample_factory_pong.py")
    rows = [peer | {"case": "APPO, 4 epochs"}]
    for case, words in WAYS.items():
        rows.append(train(*PONG, *words, "--steps", steps, "--eval-episodes", "0") | {"case": case})
    for row in rows:
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
    """Pong-v5, A2C through `actor_learner`, from nothing: minutes until the last 100 training episodes average -15."""
    steps = ("--steps", "20000") if quick else ()
    goal = ("--until-return", str(GOAL), "--eval-episodes", "5")
    row = train(*PONG, *WAYS["actor_learner"], *goal, *steps, keep=True, timeout=60 * (MINUTES + 5))
    if "error" in row:
        return Result([row], [])
    run = Path(row["run"])
    row |= {"case": "actor_learner, seed 0", "curve": curve(run), "frames_per_s": FRAMES * row["steps_per_s"]}
    shutil.rmtree(run.parent, ignore_errors=True)
    row["picture"] = picture("pong", {"actor_learner, A2C with V-trace": row["curve"]}, "minutes", GOAL)
    minutes = None if row["solved_at_s"] is None else (row["setup_s"] + row["solved_at_s"]) / 60
    return Result([row], [Target("minutes to a mean of -15, set-up included", minutes, f"<= {MINUTES}")])
