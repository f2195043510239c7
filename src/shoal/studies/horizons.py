"""Experiments on an agent's horizon: GA3C's t_max (bias, variance, cost) and gamma (short- or far-sighted).

Each training is a `shoal train` in a process of its own, as a user would start it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.config import Positive, Several, build
from shoal.core.errors import BadInput
from shoal.run.folder import read_json
from shoal.run.sinks import read_metrics
from shoal.run.timeline import series, timeline
from shoal.studies.estimators import estimates
from shoal.studies.finished import finished_run, succeeded

Tell = Callable[[int, int, str], None]  # runs done, runs in all, name of the next run
TAIL = 0.2  # last share of a run over which its final return is averaged


@dataclass(frozen=True, kw_only=True)
class HorizonConfig:
    """Settings that both experiments share."""

    env: str
    """environment id"""
    steps: Positive
    """environment steps of each run"""
    actors: Positive = 4
    """agents"""
    envs: Positive = 8
    """environments of each agent"""
    settings: dict[str, Any]
    """further settings of `shoal train`, by name"""
    seeds: Positive = 3
    """runs of each"""


@dataclass(frozen=True, kw_only=True)
class TmaxConfig(HorizonConfig):
    t_max: tuple[Positive, ...]
    """steps between two gradients of an agent"""
    judged: Positive
    """the t_max whose trained policy and values the estimators are compared on"""
    states: Positive = 20
    """initial states of the episodes in that comparison"""
    each: Several = 10
    """episodes from each state"""


@dataclass(frozen=True, kw_only=True)
class GammaConfig(HorizonConfig):
    gammas: tuple[float, ...]
    """discounts"""
    eval_episodes: Positive = 20
    """greedy episodes of each trained agent"""
    clip_steps: Positive = 400
    """steps of an agent's clip, at most"""


def tmax(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """One training per t_max and seed; then the n-step returns of one policy beside its returns to the end."""
    config = build(TmaxConfig, size)
    if config.judged not in config.t_max:
        raise BadInput(f"judged is {config.judged}: it must be one of t_max, {', '.join(map(str, config.t_max))}")
    found: dict[int, list[Path]] = {t: [] for t in config.t_max}
    total = len(config.t_max) * config.seeds
    for seed in range(config.seeds):
        for t in config.t_max:
            tell(sum(map(len, found.values())), total, f"t_max {t}, seed {seed}")
            found[t].append(_train(config, {"algo.unroll": t}, seed, folder / f"tmax-{t}-{seed}"))
    judged = [
        estimates(run, config.t_max, config.states, config.each, seed) for seed, run in enumerate(found[config.judged])
    ]
    rows = []
    for t, runs in found.items():
        values = _values(runs)
        values["bias"] = [abs(one[t].bias) for one in judged]
        values["spread"] = [one[t].spread for one in judged]
        rows.append({"keys": {"t_max": str(t)}, "values": values})
    measured = {
        "bias": [[abs(e.bias) for e in one.values()] for one in judged],
        "standard deviation": [[e.spread for e in one.values()] for one in judged],
    }
    lines = [
        {"name": name, "runs": [{"steps": list(config.t_max), "values": values} for values in runs]}
        for name, runs in measured.items()
    ]
    estimator = {
        "kind": "curves",
        "name": "estimators",
        "title": "Bias and variance of n-step returns",
        "hint": f"The t_max-step return of first states, by one policy and its values (t_max {config.judged}), against the"
        " return to the end; the deviation is over episodes that begin in the same state. Lines: median of the seeds; bands:"
        " lowest to highest.",
        "x": "t_max",
        "y": "scaled return",
        "scale": "linear",
        "panels": [{"title": config.env, "lines": lines}],
    }
    curves = _curves(config.env, {f"t_max {t}": runs for t, runs in found.items()})
    return {"rows": rows, "figures": [curves, estimator], "notes": []}


def gamma(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """One training per gamma and seed, each evaluated by greedy episodes, and a clip of the first seed's agent."""
    config = build(GammaConfig, size)
    found: dict[float, list[Path]] = {g: [] for g in config.gammas}
    total = len(config.gammas) * config.seeds
    for seed in range(config.seeds):
        for g in config.gammas:
            tell(sum(map(len, found.values())), total, f"gamma {g:g}, seed {seed}")
            more = {"algo.gamma": g, "eval_episodes": config.eval_episodes}
            found[g].append(_train(config, more, seed, folder / f"gamma-{g:g}-{seed}"))
    rows, clips = [], []
    for g, runs in found.items():
        values = _values(runs)
        values["horizon"] = [1.0 / (1.0 - g) if g < 1 else float("inf")] * len(runs)
        rows.append({"keys": {"gamma": f"{g:g}"}, "values": values})
        clip = folder / f"gamma-{g:g}.mp4"
        words = ["play", str(runs[0]), "--video", str(clip), "--max-steps", str(config.clip_steps), "--quiet"]
        succeeded(words)
        sight = "short-sighted" if g == min(config.gammas) else "far-sighted" if g == max(config.gammas) else "between"
        clips.append({"title": f"gamma {g:g}", "hint": f"{sight}: a greedy episode, seed 0", "file": str(clip)})
    curves = _curves(config.env, {f"gamma {g:g}": runs for g, runs in found.items()})
    return {"rows": rows, "figures": [curves], "notes": [], "clips": clips}


def _train(config: HorizonConfig, more: Mapping[str, Any], seed: int, out: Path) -> Path:
    settings = {
        "algo": "a2c",
        "topology": "ga3c",
        "topology.adjust": False,
        "eval_episodes": 0,
        "sinks": "jsonl",
        "steps": config.steps,
        "actors": config.actors,
        "envs": config.envs,
        "seed": seed,
        **config.settings,
        **more,
    }
    return finished_run(["train", config.env], settings, out)


def _values(runs: list[Path]) -> dict[str, list[Any]]:
    """Results of the runs of one row, one value per seed."""
    summaries = [read_json(run / "summary.json") for run in runs]
    ends = [_end(run) for run in runs]
    values: dict[str, list[Any]] = {
        "return": ends,
        "steps_per_s": [s["steps_per_s"] for s in summaries],
        "gradients_per_kstep": [1000.0 * s["updates"] / s["env_steps"] for s in summaries],
        "seconds": [s["wall_s"] for s in summaries],
        "lag": [s["lag_mean"] for s in summaries],
    }
    if all(s["eval_mean"] is not None for s in summaries):
        values["eval"] = [s["eval_mean"] for s in summaries]
    return values


def _returns(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """(environment steps, mean return of the training episodes that ended by then)."""
    steps, values, _ = _episodes(run)
    return steps, values


def _episodes(run: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(environment steps, mean return, number of episodes) of each line in which an episode ended."""
    rows = timeline(read_metrics(run / "metrics.jsonl"))
    at, values = series(rows, "episode/return")
    ended = [rows[i] for i in at]
    counts = np.array([row.get("episode/count", 1.0) for row in ended], float)
    return np.array([row["step"] for row in ended], float), values, counts


def _end(run: Path) -> float:
    """The mean return of the training episodes in the last part of a run; NaN if no episode ended."""
    steps, values, counts = _episodes(run)
    if not len(steps):
        return float("nan")
    late = steps >= (1 - TAIL) * steps[-1]
    return float(np.average(values[late], weights=counts[late]))


def _curves(env: str, found: Mapping[str, list[Path]]) -> dict[str, Any]:
    lines = []
    for name, runs in found.items():
        known = [(steps, values) for steps, values in map(_returns, runs) if len(steps)]
        if known:
            lines.append({"name": name, "runs": [{"steps": s.tolist(), "values": v.tolist()} for s, v in known]})
    return {
        "kind": "curves",
        "name": "curves",
        "title": "Learning curves",
        "hint": "Return of training episodes against environment steps. Lines: median of the seeds; bands: lowest to highest.",
        "x": "environment steps",
        "y": "return",
        "scale": "linear",
        "panels": [{"title": env, "lines": lines}],
    }


RUNNERS: dict[str, Callable[[Mapping[str, Any], Path, Tell], dict[str, Any]]] = {"tmax": tmax, "gamma": gamma}
