"""Runners of the slides' schedule figure and tables; `shoal reproduce` finds them by the folder's spec.

Schedules and completion rates are simulated: they depend on arrival order and speed, not on the trained task. `versus` trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.config import NonNegativeFloat, Positive, build
from shoal.studies.statistics import interval
from shoal.tuning.hyperband import HyperBand
from shoal.tuning.hypertrick import HyperTrick
from shoal.tuning.hypertrick import completion as bounds
from shoal.tuning.schedules import Measured, SimulateConfig, gantt, measure
from shoal.tuning.simulate import Metric, draw_trials, simulate
from shoal.tuning.versus import versus

Tell = Callable[[int, int, str], None]  # simulations done, simulations in all, the next one
Runner = Callable[[Mapping[str, Any], Path, Tell], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    nodes: Positive
    """nodes in the figure"""
    trials: Positive
    """trials in the figure"""
    phases: Positive
    """phases of a full training"""
    sigmas: tuple[NonNegativeFloat, ...]
    """spreads of the trials' speeds"""
    evictions: tuple[float, ...]
    """HyperTrick's eviction rates"""
    methods: tuple[str, ...]
    """methods to compare"""
    many_nodes: Positive
    """nodes of the prediction, with as many trials per node as in the figure"""
    checkpoint: NonNegativeFloat
    """time to save or load a checkpoint, in the case with costly checkpoints"""
    seeds: Positive = 300
    """simulated studies per method; a thirtieth of that for the prediction"""


def schedule(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Wall time, work and context switches of every method, for each spread, with costly checkpoints, and on many nodes."""
    sizes = build(ScheduleConfig, size)
    base = SimulateConfig(
        nodes=sizes.nodes,
        trials=sizes.trials,
        phases=sizes.phases,
        methods=sizes.methods,
        eviction=sizes.evictions,
        repeats=sizes.seeds,
    )
    cases = {f"sigma {sigma:g}": replace(base, sigma=sigma) for sigma in sizes.sigmas}
    most = max(sizes.sigmas)
    cases["dear checkpoints"] = replace(base, sigma=most, checkpoint=sizes.checkpoint)
    cases["curves cross"] = replace(base, sigma=most, metric="walk")
    cases["many nodes"] = replace(
        base,
        sigma=most,
        nodes=sizes.many_nodes,
        trials=round(sizes.trials / sizes.nodes * sizes.many_nodes),
        repeats=max(2, sizes.seeds // 30),
    )
    rows, notes, pictures = [], [], []
    walls: dict[str, list[float]] = {}
    for done, (case, config) in enumerate(cases.items()):
        tell(done, len(cases), f"{case}: {config.trials} trials on {config.nodes} nodes")
        measured = measure(config)
        halving = next((one.mean("wall") for one in measured if one.method.label == "sh"), None)
        for one in measured:
            values = one.values()
            if halving is not None and one.method.label.startswith("hypertrick"):
                values["shorter"] = ["yes" if one.mean("wall") < halving else "no"]
            rows.append({"keys": {"method": one.method.label, "case": case}, "values": values})
            if case.startswith("sigma") and one.method.label != "random":  # far above the others
                walls.setdefault(one.method.label, []).append(one.mean("wall"))
        notes += _comparisons(case, measured)
        if case == f"sigma {most:g}":
            pictures.append(gantt(measured, "gantt", f"{sizes.trials} trials on {sizes.nodes} nodes, sigma {most:g}"))
    lines = [
        {"name": name, "runs": [{"steps": [100 * sigma for sigma in sizes.sigmas], "values": values}]}
        for name, values in walls.items()
    ]
    pictures.append(
        {
            "kind": "curves",
            "name": "wall",
            "title": "Wall time over the spread of speeds",
            "hint": "Barriers cost more the more the trials differ in speed.",
            "x": "sigma in percent",
            "y": "wall time",
            "scale": "linear",
            "panels": [{"title": f"{sizes.trials} trials on {sizes.nodes} nodes", "lines": lines}],
        }
    )
    return {"rows": rows, "figures": pictures, "notes": notes}


def _comparisons(case: str, measured: list[Measured]) -> list[str]:
    """One sentence per eviction rate that compares HyperTrick with Successive Halving."""
    halving = next((one for one in measured if one.method.label == "sh"), None)
    if halving is None:
        return []
    lines = []
    for one in measured:
        if one.method.label.startswith("hypertrick"):
            wall, work = (one.mean(name) / halving.mean(name) for name in ("wall", "work"))
            lines.append(
                f"{case}: {one.method.label} takes {wall:.2f} times the wall time of sh and trains {work:.2f} times as much"
            )
    return lines


@dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    games: dict[str, int]
    """phases of each game"""
    eviction: float
    """HyperTrick's eviction rate"""
    trials: Positive
    """trials of a study, which the slides do not state"""
    nodes: Positive
    """nodes of a study, which the slides do not state"""
    sigma: NonNegativeFloat
    """spread of the trials' speeds"""
    hyperband_units: Positive
    """R of the HyperBand to compare with, whose eta is 3"""
    seeds: Positive = 100
    """simulated studies per row"""


_METRICS: tuple[Metric, ...] = ("exchangeable", "constant", "slow")


def completion(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Alpha by the formulas with their bounds, and simulated for metrics that meet or violate their assumption."""
    sizes = build(CompletionConfig, size)
    rows: list[dict[str, Any]] = []
    simulated: dict[tuple[int, Metric], Any] = {}
    lengths = list(dict.fromkeys(sizes.games.values()))
    for at, (phases, metric) in enumerate([(phases, metric) for phases in lengths for metric in _METRICS]):
        tell(at, len(lengths) * len(_METRICS), f"{phases} phases, {metric} metric")
        simulated[phases, metric] = _alpha(sizes, phases, metric)
    for game, phases in sizes.games.items():
        known = bounds(trials=sizes.trials, phases=phases, eviction=sizes.eviction)
        values: dict[str, Any] = {
            "expected": [100 * known.expected],
            "printed_floor": [100 * known.printed_floor],
            "floor": [100 * known.floor],
            "least": [100 * known.least],
            **{metric: simulated[phases, metric] for metric in _METRICS},
        }
        rows.append({"keys": {"game": game}, "values": values})
    band = HyperBand(units=sizes.hyperband_units, eta=3)
    trials = draw_trials(band.trials, band.units, sigma=0.0)
    alpha = 100 * simulate(band, trials, nodes=sizes.nodes).alpha
    label = f"HyperBand R={band.units} eta=3"
    rows.append({"keys": {"method": label}, "values": {"trials": [band.trials], "alpha": [alpha]}})
    for phases in lengths:
        name = f"HyperTrick Np={phases} r={sizes.eviction:g}"
        found = {"trials": [sizes.trials], "alpha": simulated[phases, "constant"]}
        rows.append({"keys": {"method": name}, "values": found})
    notes = [
        f"simulated: {sizes.trials} trials on {sizes.nodes} nodes, sigma {sizes.sigma:g}",
        f"least: the floor for exactly {sizes.trials} trials",
        "the ceiling of alpha is 100 %: when every report is better than all before it, no trial is evicted",
    ]
    return {"rows": rows, "figures": [], "notes": notes}


def _alpha(sizes: CompletionConfig, phases: int, metric: Metric) -> dict[str, Any]:
    """Mean and 95 % interval of alpha in percent."""
    found = []
    for seed in range(sizes.seeds):
        trials = draw_trials(sizes.trials, phases, sigma=sizes.sigma, metric=metric, seed=seed)
        rule = HyperTrick(trials=sizes.trials, phases=phases, eviction=sizes.eviction)
        found.append(100 * simulate(rule, trials, nodes=sizes.nodes).alpha)
    return {"mean": float(np.mean(found)), "ci": list(interval(found) or ()) or None}


RUNNERS: dict[str, Runner] = {"schedule": schedule, "completion": completion, "versus": versus}
