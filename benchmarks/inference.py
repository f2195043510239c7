"""Batched inference, as `seed` and `ga3c` have it: how full batches are, what they gain, and what `seed` costs beside `sync`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from shoal_runs import train
from targets import Result, Target, median, ratio

WARM = 0.3  # of a run's rows of metrics, left out
ACTORS, ENVS = 4, 64
UNBATCHED = {"seed": "--topology.inference-batch", "ga3c": "--topology.prediction-batch"}


def inference(quick: bool) -> Result:
    """CartPole-v1, A2C, unrolls of 20, 4 actors of 64 environments: mean batch of a call and predictions/s under load, and with one
    environment a call. Then LunarLander-v3, PPO, to a mean of 200: seconds of running of `seed` beside `sync`."""
    rows, targets = [], []
    for topology, flag in UNBATCHED.items():
        found: dict[bool, dict[str, Any]] = {}
        for batched in (True, False):
            steps = (200_000 if quick else 1_000_000) // (1 if batched else 10)
            words = ("--topology", topology, "--actors", str(ACTORS), "--envs", str(ENVS), "--steps", str(steps))
            words += ("--algo.unroll", "20", flag, str(ACTORS * ENVS) if batched else "1")
            words += ("--topology.adjust", "false") if topology == "ga3c" else ()
            found[batched] = _served(words) | {"case": f"{topology}, {'batched' if batched else 'one at a time'}"}
            rows.append(found[batched])
        share = ratio(found[True].get("batch"), ACTORS * ENVS)
        gain = ratio(found[True].get("predictions_per_s"), found[False].get("predictions_per_s"))
        targets.append(Target(f"{topology}: mean batch / environments", share, ">= 0.5"))
        targets.append(Target(f"{topology}: predictions/s, times those one at a time", gain, ">= 5"))
    solved, middle = _solve(range(1 if quick else 5))
    return Result([*rows, *solved], [*targets, Target("seed's time / sync's, PPO, median", ratio(*middle), "<= 2")])


def _served(words: tuple[str, ...]) -> dict[str, Any]:
    """One run, with the means of its inference metrics."""
    row = train("CartPole-v1", "--algo", "a2c", "--eval-episodes", "1", *words, keep=True)
    if "error" in row:
        return row
    told = [json.loads(line) for line in (Path(row["run"]) / "metrics.jsonl").read_text().splitlines()]
    told = [one for one in told if "inference/batch" in one]
    told = told[int(WARM * len(told)) :]
    shutil.rmtree(row["run"], ignore_errors=True)
    if told:
        row["batch"] = sum(one["inference/batch"] for one in told) / len(told)
        row["predictions_per_s"] = sum(one["speed/predictions"] for one in told) / len(told)
    return row


def _solve(seeds: range) -> tuple[list[dict[str, Any]], tuple[float | None, float | None]]:
    """(rows, (median of seed's seconds, median of sync's))."""
    cases = {case: ("--topology", case) for case in ("seed", "sync")}
    rows: list[dict[str, Any]] = []
    times: dict[str, list[float | None]] = {case: [] for case in cases}
    for words in cases.values():  # fills the cache of compiled code, not counted
        train("LunarLander-v3", "--steps", "20000", "--eval-episodes", "1", *words)
    for seed in seeds:  # the cases take turns, so that a busy moment hits both
        for case, words in cases.items():
            goal = ("--until-return", "200", "--eval-episodes", "1", "--seed", str(seed))
            row = train("LunarLander-v3", *goal, *words, timeout=300)
            rows.append(row | {"case": f"{case}, to 200, seed {seed}"})
            times[case].append(row.get("solved_at_s"))
    return rows, (median(times["seed"], len(seeds)), median(times["sync"], len(seeds)))
