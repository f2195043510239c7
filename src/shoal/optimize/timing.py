"""The runtime experiment: how long k drivers collect, train and broadcast, and which part is the bottleneck."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.config import NonNegativeFloat, Positive, build
from shoal.optimize.functions import make
from shoal.optimize.learn import learn
from shoal.optimize.learnt import Learnt
from shoal.optimize.problem import Problem
from shoal.process.device import available_memory
from shoal.process.limits import cores
from shoal.run.sinks import read_metrics

PUBLISHED_STEPS = 10_000  # steps behind the published seconds
ALGO = "reinforce"
_WORKER_GB = 0.3  # memory of a driver's process, nearly all of it JAX


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    drivers: tuple[Positive, ...]
    """numbers of drivers to measure; the first is the reference for the others"""
    steps: Positive
    """training steps measured for each"""
    cost_ms: NonNegativeFloat
    """CPU time that f burns at each evaluation"""
    fused_steps: Positive
    """training steps of the one compiled loop"""
    share_episodes: tuple[Positive, ...]
    """numbers of episodes per step, for the bottleneck figure"""
    share_steps: Positive
    """training steps measured for each of those"""
    share_costs_ms: tuple[NonNegativeFloat, ...] = (0.0, 1.0)
    """costs of f; the figure is drawn for each"""
    episodes: Positive = 64
    """episodes of each training step, shared by the drivers"""
    seeds: Positive = 1
    """measurements of each"""
    algo: str = ALGO
    """the algorithm of all runs"""


@dataclass(frozen=True)
class Costly:
    """Ackley's function of two coordinates in plain Python, which also burns CPU time of its thread."""

    milliseconds: float

    def __call__(self, *, x1: float, x2: float) -> float:
        until = time.thread_time() + self.milliseconds / 1e3
        while time.thread_time() < until:
            pass
        radius = math.sqrt((x1 * x1 + x2 * x2) / 2.0)
        waves = (math.cos(2.0 * math.pi * x1) + math.cos(2.0 * math.pi * x2)) / 2.0
        return 20.0 + math.e - 20.0 * math.exp(-0.2 * radius) - math.exp(waves)

    def problem(self) -> Problem:
        box = (-32.768, 32.768)
        return Problem(self, knobs={"x1": box}, conditions={"x2": box}, kind="python", name="costly_ackley")


def runtime(size: Mapping[str, Any], folder: Path, tell: Callable[[int, int, str], None]) -> dict[str, Any]:
    """Times of collecting, training and broadcasting by number of drivers; one fused run; shares of time by episodes per step."""
    config = build(RuntimeConfig, size)
    room = _room_for()
    counts = [k for k in config.drivers if k <= room]
    total = (len(counts) + 1) * config.seeds + len(config.share_costs_ms) * len(config.share_episodes)
    times: dict[int, list[dict[str, float]]] = {}
    done = 0
    problem = Costly(config.cost_ms).problem()
    for k in counts:
        times[k] = []
        for seed in range(config.seeds):
            tell(done, total, f"{k} drivers under processes")
            out = folder / f"drivers-{k}-{seed}"
            times[k].append(_timed(problem, k, config.episodes, config.steps, "processes", seed, out, config.algo))
            done += 1
    alone = [t["collecting"] for t in times[counts[0]]]
    rows = [{"keys": {"drivers": k}, "values": _speedups(times[k], alone)} for k in counts]
    fused = []
    for seed in range(config.seeds):
        tell(done, total, "fused")
        quick = {"report_every": 0}  # no looks in between: nothing is scored
        options: dict[str, Any] = {"steps": config.fused_steps, "episodes": config.episodes, "seed": seed}
        made = learn(
            make("ackley"),
            algo=config.algo,
            out=folder / f"fused-{seed}",
            score=False,
            keep="last",
            settings=quick,
            **options,
        )
        fused.append(whole(made, config.fused_steps).summary)
        done += 1
    scale = PUBLISHED_STEPS / config.fused_steps
    wall = [s["wall_s"] * scale for s in fused]
    rows.append(
        {"keys": {"runtime": "fused"}, "values": {"wall_s": wall, "steps_per_s": [s["steps_per_s"] for s in fused]}}
    )
    panels = []
    for cost in config.share_costs_ms:
        parts: dict[str, list[float]] = {}
        for episodes in config.share_episodes:
            tell(done, total, f"{episodes} episodes per step, f of {cost:g} ms")
            out = folder / f"share-{cost:g}-{episodes}"
            spent = _timed(Costly(cost).problem(), 1, episodes, config.share_steps, "inline", 0, out, config.algo)
            for name, seconds in spent.items():
                parts.setdefault(name, []).append(seconds)
            done += 1
        what = "f in plain Python" if not cost else f"f burns {cost:g} ms"
        panels.append({"title": what, "episodes": list(config.share_episodes), "parts": parts})
    notes = [
        f"f is Ackley's function in plain Python that burns {config.cost_ms:g} ms of CPU time per call, three calls per episode",
        f"measured on {cores()} cores: drivers beyond {cores()} share them, so the ceiling of rho is {cores()}",
        f"collecting, training, broadcasting: {config.steps} steps measured, stated for {PUBLISHED_STEPS:,} steps",
    ]
    if len(counts) < len(config.drivers):
        notes.append(
            f"left out for lack of memory ({_WORKER_GB:g} GB per driver): {sorted(set(config.drivers) - {*counts})}"
        )
    return {"rows": rows, "figures": _runtime_figures(rows, counts, panels), "notes": notes}


def _timed(
    problem: Problem, drivers: int, episodes: int, steps: int, where: str, seed: int, out: Path, algo: str
) -> dict[str, float]:
    """Seconds per step of collecting, training and broadcasting, each by its own timer in the main process as in the thesis.

    Collecting lasts from the request for episodes until all have arrived. An extra first step, in which processes start, is
    left out.
    """
    settings: dict[str, Any] = {"topology.overlap": False, "metrics_every": 0}
    if where == "processes":
        settings["runtime.step_timeout"] = 600.0  # many more processes than cores make slow steps
    learnt = learn(
        problem,
        algo=algo,
        drivers=drivers,
        episodes=episodes,
        steps=steps + 1,
        runtime=where,
        seed=seed,
        out=out,
        score=False,
        keep="last",
        settings=settings,
    )
    whole(learnt, steps + 1)
    kept = [row for row in read_metrics(out / "metrics.jsonl") if "time/wait" in row][1:]
    names = {"collecting": "time/wait", "training": "time/learn", "broadcasting": "time/broadcast"}
    return {name: float(np.mean([row[metric] for row in kept])) for name, metric in names.items()}


def collecting_seconds(problem: Problem, drivers: int, episodes: int, steps: int, out: Path) -> float:
    """Seconds per training step in which `drivers` processes collect."""
    return _timed(problem, drivers, episodes, steps, "processes", 0, out, ALGO)["collecting"]


def whole(learnt: Learnt, steps: int) -> Learnt:
    """`learnt`, if the run finished. A requested stop ends the whole experiment, because part of a run measures nothing."""
    if learnt.summary["steps"] < steps:
        raise KeyboardInterrupt
    return learnt


def _speedups(times: list[dict[str, float]], alone: list[float]) -> dict[str, list[float]]:
    """Seconds for 10,000 steps, and rho and rho* against one driver, paired by measurement."""
    seconds = {f"{name}_s": [t[name] * PUBLISHED_STEPS for t in times] for name in times[0]}
    paired = list(zip(times, alone, strict=True))
    return {
        **seconds,
        "rho": [one / t["collecting"] for t, one in paired],
        "rho_star": [one / (t["collecting"] + t["broadcasting"]) for t, one in paired],
    }


def _runtime_figures(
    rows: list[dict[str, Any]], counts: list[int], panels: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    middle = {
        name: [float(np.median(row["values"][name])) for row in rows[: len(counts)]] for name in rows[0]["values"]
    }
    return [
        {
            "kind": "scaling",
            "name": "speedup",
            "title": "How much faster k drivers collect",
            "hint": "rho counts collecting; rho* counts broadcasting too. Dashed: the most that the cores allow.",
            "drivers": counts,
            "series": {"rho": middle["rho"], "rho_star": middle["rho_star"]},
            "cores": cores(),
            "published_cores": 24,
        },
        {
            "kind": "times",
            "name": "times",
            "title": "Where the time goes",
            "hint": "Seconds of collecting, training and broadcasting, by number of drivers.",
            "drivers": counts,
            "parts": {name: middle[f"{name}_s"] for name in ("collecting", "training", "broadcasting")},
        },
        {
            "kind": "shares",
            "name": "bottleneck",
            "title": "The bottleneck",
            "hint": "Share of a training step's time against episodes per step, one driver.",
            "panels": panels,
        },
    ]


def _room_for() -> int:
    """The number of drivers' processes that fit into the memory that is left."""
    return max(2, int(available_memory() / 2**30 / _WORKER_GB))
