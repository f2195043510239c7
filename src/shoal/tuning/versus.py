"""HyperTrick against HyperBand on real trainings: the slides' table 3, with the same configurations for every method.

Study s of every method draws its configurations from the same seed, so methods differ only in what they stop and when. The best
trial of each study is trained again on fresh seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.config import Positive, build
from shoal.core.errors import RunFailed
from shoal.studies.statistics import interval

Tell = Callable[[int, int, str], None]
MEASURES = ("wall", "alpha", "to_best", "tuning", "test", "optimism", "switches")
GAMES = ("Boxing", "Centipede", "Ms Pacman", "Pong")  # of the slides


@dataclass(frozen=True, kw_only=True)
class VersusConfig:
    problems: dict[str, dict[str, Any]]
    """{name: settings of `shoal tune` except scheduler and seed}"""
    methods: tuple[str, ...]
    """schedulers; hypertrick is compared with hyperband"""
    confirm: str
    """how the best trials of a study are confirmed"""
    workers: Positive
    """workers of every study"""
    seeds: Positive = 5
    """studies of each method"""


def versus(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Wall time, work, time to the best score, and the winner on fresh seeds, for every method and problem."""
    from shoal.tuning.study import Study, run_study  # imported late, because it loads Optuna

    config = build(VersusConfig, size)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    total, done = len(config.problems) * config.seeds * len(config.methods), 0
    for problem, asked in config.problems.items():
        studies: dict[str, list[Study]] = {method: [] for method in config.methods}
        for seed in range(config.seeds):
            for method in config.methods:
                tell(done, total, f"{problem}, {method}, study {seed}")
                values = {**asked, "scheduler": method, "seed": 100 * seed, "workers": config.workers}
                place = folder / problem / f"{method}-{seed}"
                study = run_study({**values, "confirm": config.confirm}, folder=place)
                if not study.done:
                    raise RunFailed(f"stopped; {place} holds the study")
                studies[method].append(study)
                done += 1
        measured = {method: [_measured(study) for study in found] for method, found in studies.items()}
        for method, found in measured.items():
            values = {name: [one[name] for one in found] for name in MEASURES}
            rows.append({"keys": {"method": f"{problem}, {method}"}, "values": values})
            best = max(studies[method], key=lambda study: study.confirmed[0].mean if study.confirmed else -math.inf)
            tried = ", ".join(f"{k} {f'{v:.3g}' if isinstance(v, float) else v}" for k, v in best.best.settings.items())
            notes.append(f"{problem}, {method}: best configuration {tried}")
        if {"hypertrick", "hyperband"} <= set(measured):
            rows.append(
                {"keys": {"problem": problem}, "values": _ratios(measured["hypertrick"], measured["hyperband"])}
            )
    rows += [{"keys": {"problem": game}, "values": {}} for game in GAMES]
    return {"rows": rows, "figures": [], "notes": notes}


def _measured(study: Any) -> dict[str, float]:
    summary = study.summary()
    won = study.confirmed[0] if study.confirmed else None
    return {
        "wall": _search_seconds(study),
        "alpha": 100 * summary["alpha"],
        "to_best": math.nan if summary["to_best_s"] is None else summary["to_best_s"],
        "tuning": study.course.ranked()[0].value if study.course.ranked() else math.nan,
        "test": math.nan if won is None else won.mean,
        "optimism": math.nan if won is None else won.optimism,
        "switches": float(summary["switches"]),
    }


def _search_seconds(study: Any) -> float:
    """Seconds up to the last report, without the confirmation, which is the same for all methods."""
    return max((piece.stop for piece in study.pieces if piece.verdict != "tested"), default=0.0)


def _ratios(trick: list[dict[str, float]], band: list[dict[str, float]]) -> dict[str, Any]:
    """Ratio of HyperTrick to HyperBand for each study."""
    values: dict[str, Any] = {}
    for name in ("wall", "to_best"):
        found = [a[name] / b[name] for a, b in zip(trick, band, strict=True) if b[name]]
        values[name] = {"mean": float(np.mean(found)), "ci": list(interval(found) or ()) or None} if found else []
    return values
