"""Repeated simulations of several methods on the same trials, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shoal.core.config import NonNegative, NonNegativeFloat, Positive, Several
from shoal.core.errors import BadInput, nearest
from shoal.studies.statistics import interval
from shoal.tuning.schedulers import Budget, make_scheduler
from shoal.tuning.simulate import Metric, Schedule, draw_trials, simulate

# {method: its scheduler}. Random search has no early stopping.
METHODS = {
    "hypertrick": "hypertrick",
    "sh": "sh",
    "hyperband": "hyperband",
    "asha": "asha",
    "pbt": "pbt",
    "random": "none",
}
MEASURES = ("wall", "alpha", "work", "switches", "idle", "to_best", "found")
COLUMNS = {
    "wall": "wall time",
    "work": "units trained",
    "alpha": "alpha",
    "switches": "context switches",
    "idle": "idle",
    "to_best": "time to best",
    "found": "keeps the winner",
}


@dataclass(frozen=True, kw_only=True)
class SimulateConfig:
    nodes: Positive = 6
    """workers, each with one trial at a time"""
    trials: Positive = 16
    """configurations"""
    phases: Positive = 4
    """units of a full training; a unit takes time 1 on average"""
    sigma: NonNegativeFloat = 0.6
    """spread of the trials' speeds: the standard deviation of their logarithm"""
    methods: tuple[str, ...] = tuple(METHODS)
    """hypertrick, sh, hyperband, asha, pbt, random"""
    eviction: tuple[float, ...] = (0.25, 0.5)
    """HyperTrick's eviction rates; each counts as a method"""
    eta: Several = 2
    """sh, hyperband and asha keep one in this many trials"""
    checkpoint: NonNegativeFloat = 0.0
    """time to save a checkpoint, and to load one"""
    metric: Metric = "constant"
    """constant (ranks never change), exchangeable (a fresh draw each phase), slow (constant, and good trials are slow),
    walk (curves cross)"""
    repeats: Positive = 100
    """simulated studies of each method"""
    seed: NonNegative = 0
    """seed of the trials, which are the same for every method"""

    def __post_init__(self) -> None:
        if not self.methods:
            raise BadInput(f"--methods is empty; there are: {', '.join(METHODS)}")
        for name in self.methods:
            if name not in METHODS:
                offer = nearest(name, METHODS)
                raise BadInput(f"--methods has {name!r}: unknown method.{offer} There are: {', '.join(METHODS)}.")
        if not self.eviction and "hypertrick" in self.methods:
            raise BadInput("--eviction is empty; hypertrick needs a rate between 0 and 1")


class Method(NamedTuple):
    label: str
    scheduler: str
    budget: Budget


class Measured(NamedTuple):
    method: Method
    measures: dict[str, list[float]]  # {name in MEASURES: one value per repetition}
    first: Schedule  # of the first repetition, for the Gantt chart

    def mean(self, measure: str) -> float:
        return float(np.mean(self.measures[measure]))

    def values(self) -> dict[str, Any]:
        """{measure: mean and 95 % interval}, in the format of comparisons."""
        return {
            name: {"mean": float(np.mean(each)), "ci": list(interval(each) or ()) or None}
            for name, each in self.measures.items()
        }


def methods_of(config: SimulateConfig) -> list[Method]:
    found = []
    for name in dict.fromkeys(config.methods):
        for rate in dict.fromkeys(config.eviction) if name == "hypertrick" else (0.25,):
            label = f"hypertrick r={rate:g}" if name == "hypertrick" else name
            budget = Budget(config.trials, config.phases, rate, config.eta, config.seed)
            make_scheduler(METHODS[name], budget)  # raises for a bad setting before anything runs
            found.append(Method(label, METHODS[name], budget))
    return found


def measure(config: SimulateConfig, tell: Callable[[int, int, str], None] | None = None) -> list[Measured]:
    """Simulate every method on the same `repeats` draws of trials."""
    methods = methods_of(config)
    drawn = [
        draw_trials(
            config.trials, config.phases, sigma=config.sigma, metric=config.metric, seed=config.seed * 1_000_003 + at
        )
        for at in range(config.repeats)
    ]
    found = []
    for done, method in enumerate(methods):
        if tell is not None:
            tell(done, len(methods), method.label)
        made = [
            simulate(
                make_scheduler(method.scheduler, method.budget),
                trials,
                nodes=config.nodes,
                checkpoint=config.checkpoint,
            )
            for trials in drawn
        ]
        measures = {name: [float(getattr(one, name)) for one in made] for name in MEASURES}
        found.append(Measured(method, measures, made[0]))
    return found


def gantt(measured: Sequence[Measured], name: str, title: str) -> dict[str, Any]:
    """The first repetition of each method as data for `observe.gantt`."""
    panels = []
    for one in measured:
        schedule = one.first
        pieces = [
            {
                "node": p.node,
                "trial": p.trial,
                "start": p.start,
                "loading": p.loading,
                "stop": p.stop,
                "saving": p.saving,
                "resumed": p.resumed,
                "verdict": p.verdict,
            }
            for p in schedule.pieces
        ]
        switches = f"{schedule.switches} context switches" if schedule.switches else "no context switch"
        panels.append(
            {
                "title": f"{one.method.label}: {schedule.work} units in {schedule.wall:.1f}, {switches}",
                "nodes": schedule.nodes,
                "trials": schedule.trials,
                "pieces": pieces,
            }
        )
    hint = (
        "One simulated study per method, all on the same trials. A bar is a trial on a node, with its number inside; a cross is an "
        "eviction, a dot a complete training, a triangle a trial that resumes from its checkpoint."
    )
    return {"kind": "gantt", "name": name, "title": title, "hint": hint, "panels": panels}
