"""The published experiments of learn-to-optimize, as runners that `shoal reproduce` finds by the folder's spec.

A runner takes its size from the spec and returns plain data, ready for JSON, which `observe.comparison` draws beside the
published numbers: `rows` (`keys` that say what was run, and `values`, one per seed), `figures` (curves and bars as lists) and
`notes` (lines for the reader). It uses the same curves, scores and timers as every other run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.config import Positive, build
from shoal.launch.saved import under
from shoal.optimize.frugal import ALGO as FEW
from shoal.optimize.functions import make
from shoal.optimize.learn import learn
from shoal.optimize.learnt import Learnt
from shoal.optimize.problem import Problem
from shoal.optimize.timing import runtime, whole
from shoal.run.checkpoints import Checkpoints

Tell = Callable[[int, int, str], None]  # runs done, runs in all, what comes next
Runner = Callable[[Mapping[str, Any], Path, Tell], dict[str, Any]]

CONVERGED = 0.25  # a run converges if the mean of its last tenth is at most this share of the score before training
_LOGARITHMIC = ("rosenbrock",)  # functions whose values differ so much that the thesis scores their logarithm


@dataclass(frozen=True, kw_only=True)
class SamplersConfig:
    function: str
    """a known function, of two coordinates: one chosen, one given"""
    steps: Positive
    """training steps of a run"""
    samplers: tuple[str, ...]
    """samplers of the points where episodes begin"""
    algo: str = "reinforce"
    """the algorithm of the samplers' rows"""
    beside: tuple[str, ...] = ()
    """algorithms of further rows, with their defaults: `auto`, or `surrogate`"""
    evaluations: Positive = 2000
    """evaluations of f that `surrogate` may use"""
    shifts: tuple[float, ...] = (0.0,)
    """how far the minimum is moved, in normalised coordinates; 0 is the published problem"""
    episodes: Positive = 30
    """episodes of each training step"""
    drivers: Positive = 3
    """drivers that share the episodes"""
    seeds: Positive = 5
    """runs of each"""


def samplers(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Every sampler on every shift: scores of the first and the last 1,000 steps, and the best; beside them other algorithms."""
    config = build(SamplersConfig, size)
    rows, panels = [], []
    total = len(config.shifts) * (len(config.samplers) + len(config.beside)) * config.seeds
    notes = []
    done = 0
    for shift in config.shifts:
        problem, lines = make(config.function, shift=shift), []
        for sampler in config.samplers:
            runs = []
            for seed in range(config.seeds):
                tell(done, total, f"{config.function} shift {shift:g}, {sampler}, seed {seed}")
                out = folder / f"{config.function}-{shift:g}-{sampler}-{seed}"
                learnt = learn(
                    problem,
                    algo=config.algo,
                    sampler=sampler,
                    drivers=config.drivers,
                    steps=config.steps,
                    episodes=config.episodes,
                    seed=seed,
                    keep="last",
                    out=out,
                )
                runs.append(whole(learnt, config.steps))
                done += 1
            rows.append({"keys": {"sampler": sampler, "shift": shift}, "values": _scores(config.function, runs)})
            lines.append(_line(sampler, config.function, runs))
        for algo in config.beside:
            runs = []
            for seed in range(config.seeds):
                tell(done, total, f"{config.function} shift {shift:g}, {algo}, seed {seed}")
                runs.append(_beside(problem, algo, config, seed, folder / f"{config.function}-{shift:g}-{algo}-{seed}"))
                done += 1
            few = runs[0].summary.get("algo") == FEW
            rows.append({"keys": {"sampler": algo, "shift": shift}, "values": _scores(config.function, runs, few=few)})
            notes.append(_told(config, shift, algo, runs, few=few))
            if not few:  # its curve is over evaluations
                lines.append(_line(algo, config.function, runs))
        title = f"{config.function}, as published" if not shift else f"{config.function}, minimum moved by {shift:g}"
        panels.append({"title": title, "lines": lines})
    figure = _curves("curves", "Learning curves", config.function, panels)
    figure["hint"] += " Lines: median of the seeds; bands: lowest to highest."
    return {"rows": rows, "figures": [figure], "notes": notes}


def _beside(problem: Problem, algo: str, config: SamplersConfig, seed: int, out: Path) -> Learnt:
    """A run of another algorithm with its defaults: with as many updates as the samplers have, or by evaluations."""
    if algo == FEW:
        return learn(problem, algo=algo, budget=config.evaluations, seed=seed, out=out)
    learnt = learn(problem, algo=algo, steps=config.steps, episodes=config.episodes, seed=seed, out=out)
    return whole(learnt, config.steps)


def _told(config: SamplersConfig, shift: float, algo: str, runs: list[Learnt], *, few: bool) -> str:
    """A line for the reader: the evaluations of these runs, and the regret of the laws that they keep."""
    moved = f"minimum moved by {shift:g}" if shift else "as published"
    regrets = [run.summary["regret"]["mean"] for run in runs if run.summary["regret"] is not None]
    regret = f"{np.median(regrets):.2g}" if regrets else "not known"
    n = runs[0].evaluations
    how = "polished answers, after the last evaluation" if few else f"{config.steps:,} updates"
    return (
        f"{config.function}, {moved}: {algo} had {n:,} evaluations to learn from ({how}); the median regret is {regret}"
    )


@dataclass(frozen=True, kw_only=True)
class ConvergenceConfig:
    problems: dict[str, float]
    """functions, and how far the minimum of each is moved"""
    algo: str = "reinforce"
    """the algorithm of all ways"""
    steps: Positive
    """training steps of a run"""
    episodes: Positive = 30
    """episodes of each training step, shared by the drivers"""
    drivers: Positive = 3
    """drivers of the distributed ways"""
    seeds: Positive = 3
    """runs of each"""


_LOCKSTEP = {"topology.overlap": False}  # so that all ways use the same weights on the same episodes
# {way: (drivers or None for all of them, runtime, settings)}
WAYS: dict[str, tuple[int | None, str, dict[str, Any]]] = {
    "sequential": (1, "inline", {"topology": "sequential"}),
    "inline": (None, "inline", _LOCKSTEP),
    "threads": (None, "threads", _LOCKSTEP),
    "processes": (None, "processes", _LOCKSTEP),
    "processes, overlapped": (None, "processes", {"topology.overlap": True}),
}
SAME_BITS = ("inline", "threads", "processes")


def convergence(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """The same training sequentially and distributed: their scores, and whether their weights are the same bits."""
    config = build(ConvergenceConfig, size)
    rows, panels, notes = [], [], []
    total, done = len(config.problems) * len(WAYS) * config.seeds, 0
    for function, shift in config.problems.items():
        problem, lines = make(function, shift=float(shift)), []
        hashes: dict[str, list[str]] = {}
        for way, (drivers, where, settings) in WAYS.items():
            runs = []
            for seed in range(config.seeds):
                tell(done, total, f"{function}, {way}, seed {seed}")
                out = folder / f"{function}-{way.replace(', ', '-')}-{seed}"
                learnt = learn(
                    problem,
                    algo=config.algo,
                    drivers=drivers or config.drivers,
                    steps=config.steps,
                    episodes=config.episodes,
                    runtime=where,
                    seed=seed,
                    keep="last",
                    out=out,
                    settings=settings,
                )
                runs.append(whole(learnt, config.steps))
                hashes.setdefault(way, []).append(weights_hash(out))
                done += 1
            values = _scores(function, runs)
            values["end"] = [_end(_curve(function, run).values) for run in runs]
            pairs = zip(values["start"], values["end"], strict=True)
            values["converges"] = ["yes" if end <= CONVERGED * start else "no" for start, end in pairs]
            values["weights"] = [text[:12] for text in hashes[way]]
            rows.append({"keys": {"function": function, "way": way}, "values": values})
            lines.append(_line(way, function, runs))
        title = f"{function}, minimum moved by {shift:g}" if shift else function
        panels.append({"title": title, "lines": lines, "y": _score(function)})
        same = sum(len(set(seed)) == 1 for seed in zip(*(hashes[way] for way in SAME_BITS), strict=True))
        notes.append(
            f"{function}: the weights of {', '.join(SAME_BITS)} are the same, bit for bit, in {same} of {config.seeds} seeds"
        )
    figure = _curves("convergence", "Sequential and distributed training", "", panels)
    figure["hint"] = (
        "Score over the conditions against training steps, of the first seed. Equal bits draw one line. "
        "The thesis' processes stayed where they began (its Figure 6.3)."
    )
    figure["overlay"] = True
    return {"rows": rows, "figures": [figure], "notes": notes}


def weights_hash(run: Path) -> str:
    """SHA-256 of all weights that a run ended with, policy and value."""
    arrays = under(Checkpoints(run / "checkpoints").load("last").arrays, "state/params/")
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _scores(function: str, runs: list[Learnt], *, few: bool = False) -> dict[str, list[Any]]:
    """The columns of the thesis' tables, one value per run, and the score before training.

    A run of `few` evaluations has a score at a few numbers of evaluations: the last of them, and the best.
    """
    if few:
        ends = [_curve(function, run).values for run in runs]
        return {"last_mean": [float(one[-1]) for one in ends], "best": [float(min(one)) for one in ends]}
    found = [_curve(function, run).summary() for run in runs]
    names = ("start", "first_mean", "first_var", "last_mean", "last_var", "best")
    return {name: [float(getattr(summary, name)) for summary in found] for name in names}


def _curve(function: str, run: Learnt) -> Any:
    return run.msle if function in _LOGARITHMIC else run.mse


def _end(values: list[float]) -> float:
    """The mean over the last tenth of a curve."""
    return float(np.mean(values[-max(1, len(values) // 10) :]))


def _line(name: str, function: str, runs: list[Learnt]) -> dict[str, Any]:
    curves = [_curve(function, run) for run in runs]
    return {"name": name, "runs": [{"steps": c.steps, "values": c.values} for c in curves]}


def _score(function: str) -> str:
    return "MSLE" if function in _LOGARITHMIC else "MSE"


def _curves(name: str, title: str, function: str, panels: list[dict[str, Any]]) -> dict[str, Any]:
    score = _score(function)
    return {
        "kind": "curves",
        "name": name,
        "title": title,
        "hint": f"{score} over the conditions against training steps.",
        "x": "training steps",
        "y": score,
        "panels": panels,
    }


RUNNERS: dict[str, Runner] = {"samplers": samplers, "convergence": convergence, "runtime": runtime}
