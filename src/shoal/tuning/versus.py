"""HyperTrick against HyperBand on real trainings: the slides' table 3, with the same configurations for every method.

Study s of every method draws its configurations from the same seed, so methods differ only in what they stop and when. The best
trial of each study is trained again on fresh seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.config import Positive, build
from shoal.core.errors import RunFailed
from shoal.studies.statistics import interval
from shoal.tuning.modelled import Modelled, measured_panel, modelled, search_pieces, simulated_panel

if TYPE_CHECKING:
    from shoal.tuning.study import Study

Tell = Callable[[int, int, str], None]
MEASURES = ("wall", "simulated", "alpha", "to_best", "tuning", "test", "optimism", "switches")
GAMES = ("Boxing", "Centipede", "Ms Pacman", "Pong")  # of the slides


@dataclass(frozen=True, kw_only=True)
class VersusConfig:
    problems: dict[str, dict[str, Any]]
    """{name: settings of `shoal tune` except scheduler and seed, and `methods` where they are not all}"""
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
    from shoal.tuning.study import run_study  # imported late, because it loads Optuna

    config = build(VersusConfig, size)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    figures: list[dict[str, Any]] = []
    methods = {problem: tuple(asked.get("methods", config.methods)) for problem, asked in config.problems.items()}
    total, done = config.seeds * sum(map(len, methods.values())), 0
    for problem, asked in config.problems.items():
        shared = {name: value for name, value in asked.items() if name != "methods"}
        studies: dict[str, list[Study]] = {method: [] for method in methods[problem]}
        for seed in range(config.seeds):
            for method in methods[problem]:
                tell(done, total, f"{problem}, {method}, study {seed}")
                values = {**shared, "scheduler": method, "seed": 100 * seed, "workers": config.workers}
                place = folder / problem / f"{method}-{seed}"
                # The default settings would be trained again for every method; `shoal tune` compares with them.
                study = run_study({**values, "confirm": config.confirm, "baseline": False}, folder=place)
                if not study.done:
                    raise RunFailed(f"stopped; {place} holds the study")
                studies[method].append(study)
                done += 1
        models = [_models({method: found[seed] for method, found in studies.items()}) for seed in range(config.seeds)]
        measured = {
            method: [
                {
                    **_measured(study),
                    "simulated": 1 / models[seed][method].ratio if method in models[seed] else math.nan,
                }
                for seed, study in enumerate(found)
            ]
            for method, found in studies.items()
        }
        if models[0]:
            figures.append(_gantt(problem, {method: found[0] for method, found in studies.items()}, models[0]))
        for method, found in measured.items():
            shown = [name for name in MEASURES if not (name == "simulated" and math.isnan(found[0][name]))]
            values = {name: [one[name] for one in found] for name in shown}
            rows.append({"keys": {"method": f"{problem}, {method}"}, "values": values})
            best = max(studies[method], key=lambda study: study.confirmed[0].mean if study.confirmed else -math.inf)
            tried = ", ".join(f"{k} {f'{v:.3g}' if isinstance(v, float) else v}" for k, v in best.best.settings.items())
            notes.append(f"{problem}, {method}: best configuration {tried}")
        if {"hypertrick", "hyperband"} <= set(measured):
            rows.append(
                {"keys": {"problem": problem}, "values": _ratios(measured["hypertrick"], measured["hyperband"])}
            )
    rows += [{"keys": {"problem": game}, "values": {}} for game in GAMES]
    return {"rows": rows, "figures": figures, "notes": notes}


def _models(studies: Mapping[str, Study]) -> dict[str, Modelled]:
    """The schedule model of each method's study of the same configurations, without those that it does not apply to."""
    courses = [study.course for study in studies.values()]
    found = {method: modelled(study.plan, study.course, courses) for method, study in studies.items()}
    return {method: model for method, model in found.items() if model is not None}


def _gantt(problem: str, studies: Mapping[str, Study], models: Mapping[str, Modelled]) -> dict[str, Any]:
    panels = []
    for method, model in models.items():
        study = studies[method]
        panels.append(
            measured_panel(f"{method}, measured: {model.measured:.0f} s", study.plan, search_pieces(study.course))
        )
        panels.append(simulated_panel(f"{method}, simulated", model))
    return {
        "kind": "gantt",
        "name": f"gantt-{problem.lower()}",
        "title": f"{problem}: measured and simulated schedules of the first studies",
        "hint": "A bar is a trial on a worker; x: stopped, o: complete, triangle: context switch. The model has one time per "
        "phase of each trial, one to start a trial and one to end it, fitted to the measured study.",
        "panels": panels,
        "x": "seconds",
        "y": "worker",
    }


def _measured(study: Study) -> dict[str, float]:
    summary = study.summary()
    won = study.confirmed[0] if study.confirmed else None
    return {
        "wall": max((piece.stop for piece in search_pieces(study.course)), default=0.0),
        "alpha": 100 * summary["alpha"],
        "to_best": math.nan if summary["to_best_s"] is None else summary["to_best_s"],
        "tuning": study.course.ranked()[0].value if study.course.ranked() else math.nan,
        "test": math.nan if won is None else won.mean,
        "optimism": math.nan if won is None else won.optimism,
        "switches": float(summary["switches"]),
    }


def _ratios(trick: list[dict[str, float]], band: list[dict[str, float]]) -> dict[str, Any]:
    """Ratio of HyperTrick to HyperBand for each study."""
    values: dict[str, Any] = {}
    for name in ("wall", "to_best"):
        found = [a[name] / b[name] for a, b in zip(trick, band, strict=True) if b[name]]
        values[name] = {"mean": float(np.mean(found)), "ci": list(interval(found) or ()) or None} if found else []
    return values
