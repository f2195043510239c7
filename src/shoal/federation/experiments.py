"""Genkidama's experiments: A3C on one machine, a parent with two children over alpha and beta, both compared, and variants.

Each training is a `shoal train` or a `shoal federation local` in its own process, as a user would start it; those of `grid` are
lanes of one compiled function (`federation.lanes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.config import Fraction, NonNegative, Positive, build
from shoal.run.files import pretty, write_atomically
from shoal.run.folder import read_json, ways
from shoal.run.sinks import read_metrics
from shoal.run.timeline import series, timeline
from shoal.studies.finished import finished_run

EVERY = 100  # updates between two published values of a learning curve
PATH = ("path/return", "path/updates")  # metrics of the evaluated snapshots of the parent
Tell = Callable[[int, int, str], None]  # runs done, runs in all, what comes next


@dataclass(frozen=True, kw_only=True)
class AloneConfig:
    """A3C on one machine, with several settings."""

    env: str
    """environment id"""
    steps: Positive
    """environment steps of each run"""
    ways: dict[str, dict[str, Any]]
    """settings of `shoal train` for each row, by row name"""
    settings: dict[str, Any]
    """settings that all runs share"""
    eval_episodes: Positive = 500
    """greedy episodes of each trained agent, and as many sampled ones"""
    seeds: Positive = 1
    """runs of each"""


@dataclass(frozen=True, kw_only=True)
class BlendConfig:
    """A parent with children on this machine, over a grid of alpha and beta."""

    env: str
    """environment id"""
    updates: Positive
    """updates of the parent's weights"""
    eval_every: NonNegative
    """updates between two snapshots of the parent's weights, which are evaluated after training; 0 for none"""
    alphas: tuple[Fraction, ...]
    """how far the parent moves towards a child"""
    betas: tuple[Fraction, ...]
    """how far a child moves towards the parent"""
    children: Positive = 2
    """number of children, each a process"""
    settings: dict[str, Any]
    """settings of `shoal federation local`"""
    published: dict[str, list[float]] = field(default_factory=dict)
    """published learning curves by row, one value for every 100 updates"""
    eval_episodes: Positive = 500
    """greedy episodes with the parent's last weights, and as many sampled ones"""
    seeds: Positive = 1
    """runs of each"""


@dataclass(frozen=True, kw_only=True)
class VersusConfig(BlendConfig):
    steps: Positive
    """environment steps of a run on one machine"""
    ways: dict[str, dict[str, Any]]
    """settings of `shoal train` for each row on one machine, by row name"""
    alone: dict[str, Any]
    """settings that the runs on one machine share"""


@dataclass(frozen=True, kw_only=True)
class VariantsConfig:
    """Federations on this machine with several settings and the same budget of environment steps."""

    envs: dict[str, int]
    """environment ids, and the environment steps of each run over all children"""
    ways: dict[str, dict[str, Any]] = field(default_factory=dict)
    """settings of `shoal federation local` for each row, by row name"""
    alphas: tuple[Fraction, ...] = ()
    """how far the parent moves towards a child: one more row for each pair with `betas`"""
    betas: tuple[Fraction, ...] = ()
    """how far a child moves towards the parent"""
    settings: dict[str, Any]
    """settings that all runs share"""
    eval_episodes: Positive = 500
    """greedy episodes with the parent's last weights, and as many sampled ones"""
    seeds: Positive = 1
    """runs of each"""


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """Federations over a grid of alpha and beta, as lanes of one compiled function: environments that are written in JAX."""

    envs: dict[str, int]
    """environment ids, and the environment steps of each federation over all children"""
    alphas: tuple[Fraction, ...]
    """how far the parent moves towards a child"""
    betas: tuple[Fraction, ...]
    """how far a child moves towards the parent"""
    children: Positive = 2
    """number of children, all equally fast"""
    settings: dict[str, Any]
    """settings that all children share, by environment id, or `*`"""
    every: Positive = 1
    """updates of a child between two exchanges"""
    points: Positive = 8
    """evaluations along the budget"""
    eval_episodes: Positive = 50
    """greedy episodes of each evaluation"""
    seeds: Positive = 1
    """federations of each"""


def alone(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Train once for each row and seed; evaluate each run's last weights."""
    config = build(AloneConfig, size)
    found = _alone(config.env, config.steps, config.ways, config.settings, config, folder, tell)
    return {"rows": _rows(found), "figures": [_curves(config.env, found), *_spreads(found)], "notes": []}


def blend(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Run one federation for each alpha, beta and seed; report its last weights and its learning curve."""
    config = build(BlendConfig, size)
    found = _blended(config, folder, tell, 0)
    rows = [*_rows(found), *_path_rows(config, found)]
    return {"rows": rows, "figures": [_paths(config, found), *_spreads(found)], "notes": _notes(config)}


def versus(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Compare the federation with trainings on one machine."""
    config = build(VersusConfig, size)
    machines = _alone(config.env, config.steps, config.ways, config.alone, config, folder, tell)
    joined = _blended(config, folder, tell, sum(map(len, machines.values())))
    found = {f"Genkidama {name}": runs for name, runs in joined.items()} | machines
    return {"rows": _rows(found), "figures": [_curves(config.env, found), *_spreads(found)], "notes": _notes(config)}


def variants(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Run one federation for each environment, row and seed; report its last weights, its learning curve and its cost."""
    config = build(VariantsConfig, size)
    pairs = [(alpha, beta) for alpha in config.alphas for beta in config.betas]
    every = config.ways | {_pair(alpha, beta): {"alpha": alpha, "beta": beta} for alpha, beta in pairs}
    found: dict[str, dict[str, list[Path]]] = {env: {name: [] for name in every} for env in config.envs}
    todo = [(seed, env, name) for seed in range(config.seeds) for env in config.envs for name in every]
    for number, (seed, env, name) in enumerate(todo):
        tell(number, len(todo), f"{env}, {name}, seed {seed}")
        flags = {
            **config.settings,
            **every[name],
            "steps": config.envs[env],
            "eval_every": 0,
            "eval_episodes": config.eval_episodes,
            "seed": seed,
        }
        out = folder / f"{list(config.envs).index(env)}-{list(every).index(name)}-{seed}"
        found[env][name].append(finished_run(["federation", "local", env], flags, out))
    several = len(config.envs) > 1
    named = {f"{env} {name}" if several else name: runs for env in found for name, runs in found[env].items()}
    figures = [_curves(env, runs, f"curves-{env}" if several else "curves") for env, runs in found.items()]
    rows = _rows(named, exchanges="exchanges", bytes_up="bytes_up")
    return {"rows": rows, "figures": [*figures, *_spreads(named)], "notes": []}


def grid(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Compare pairs of alpha and beta on each environment; report the return along the budget and at its end.

    The scores of a finished pair are kept in `folder`, so that an interrupted experiment goes on.
    """
    from shoal.federation.lanes import Lanes
    from shoal.federation.rules.alpha_beta import AlphaBeta

    config = build(GridConfig, size)
    pairs = [(alpha, beta) for alpha in config.alphas for beta in config.betas]
    rows: list[dict[str, Any]] = []
    for place, (env, steps) in enumerate(config.envs.items()):
        lanes: Lanes | None = None
        for number, (alpha, beta) in enumerate(pairs):
            tell(place * len(pairs) + number, len(config.envs) * len(pairs), f"{env}, {_pair(alpha, beta)}")
            kept = folder / f"{place}-alpha-{alpha:g}-beta-{beta:g}-{config.seeds}.json"
            if not kept.is_file():
                lanes = lanes or Lanes(
                    env,
                    {**config.settings.get("*", {}), **config.settings.get(env, {})},
                    steps=steps,
                    children=config.children,
                    seeds=range(config.seeds),
                    episodes=config.eval_episodes,
                )
                found = lanes.compare(AlphaBeta(alpha=alpha, beta=beta), every=config.every, points=config.points)
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(kept, pretty({"scores": found.tolist()}))
            scores = np.array(read_json(kept)["scores"])
            values = {
                "along": scores.mean(axis=1).tolist(),
                "end": scores[:, -1].tolist(),
                "worst": [scores[:, -1].min()],
            }
            rows.append({"keys": {"way": _pair(alpha, beta), "env": env}, "values": values})
    notes = [
        f"{config.children} equally fast children, an exchange every {config.every} update{'s' * (config.every > 1)}, without"
        " sockets: the result does not depend on the machine's load"
    ]
    return {"rows": rows, "figures": [], "notes": notes}


def _alone(
    env: str,
    steps: int,
    ways: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, Any],
    config: AloneConfig | VersusConfig,
    folder: Path,
    tell: Tell,
) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {name: [] for name in ways}
    total = len(ways) * config.seeds
    for seed in range(config.seeds):
        for number, (name, settings) in enumerate(ways.items()):
            tell(seed * len(ways) + number, total, f"{name}, seed {seed}")
            flags = {**shared, **settings, "steps": steps, "eval_episodes": config.eval_episodes, "seed": seed}
            out = folder / f"alone-{number}-{seed}"
            found[name].append(finished_run(["train", env, "--restarts", "0"], flags, out))
    return found


def _blended(config: BlendConfig, folder: Path, tell: Tell, before: int) -> dict[str, list[Path]]:
    pairs = [(alpha, beta) for alpha in config.alphas for beta in config.betas]
    found: dict[str, list[Path]] = {_pair(*pair): [] for pair in pairs}
    total = len(pairs) * config.seeds
    for seed in range(config.seeds):
        for number, (alpha, beta) in enumerate(pairs):
            tell(before + seed * len(pairs) + number, before + total, f"{_pair(alpha, beta)}, seed {seed}")
            flags = {
                **config.settings,
                "alpha": alpha,
                "beta": beta,
                "children": config.children,
                "updates": config.updates,
                "eval_every": 0,
                "path_every": config.eval_every,
                "eval_episodes": config.eval_episodes,
                "seed": seed,
            }
            out = folder / f"alpha-{alpha:g}-beta-{beta:g}-{seed}"
            found[_pair(alpha, beta)].append(finished_run(["federation", "local", config.env], flags, out))
    return found


def _pair(alpha: float, beta: float) -> str:
    return f"alpha {alpha:g} beta {beta:g}"


def _rows(found: Mapping[str, list[Path]], **more: str) -> list[dict[str, Any]]:
    """Results of each row, one value per seed. Means and deviations are of sampled actions, as in the thesis.

    `more`: additional columns, as names of keys of the summary.
    """
    names = {
        "mean": "eval_sampled_mean",
        "sd": "eval_sampled_sd",
        "greedy": "eval_mean",
        "greedy_sd": "eval_sd",
        "seconds": "wall_s",
        "updates": "updates",
        **more,
    }
    rows = []
    for name, runs in found.items():
        summaries = [read_json(run / "summary.json") for run in runs]
        values = {column: [summary[key] for summary in summaries] for column, key in names.items()}
        rows.append({"keys": {"way": name}, "values": values})
    return rows


def _measured(run: Path, name: str, over: str) -> dict[str, list[float]]:
    rows = timeline(read_metrics(run / "metrics.jsonl"))
    last, steps, values = 0.0, [], []
    known = dict(zip(*(array.tolist() for array in series(rows, name)), strict=True))
    for position, row in enumerate(rows):
        last = float(row.get(over, last))
        if position in known:
            steps.append(last)
            values.append(known[position])
    return {"steps": steps, "values": values}


def _spreads(found: Mapping[str, list[Path]]) -> list[dict[str, Any]]:
    """Box plot and density of the sampled episodes of each row's last weights, over all seeds."""
    rows = []
    for name, runs in found.items():
        played = [ways(read_json(run / "evaluation.json")) for run in runs if (run / "evaluation.json").is_file()]
        values = [ret for each in played for ret in each.get("sampled", {}).get("returns", ())]
        rows += [{"name": name, "values": values}] if values else []
    if not rows:
        return []
    common = {"x": "return of an episode, actions sampled", "y": "", "rows": rows}
    whose = "Episodes with the last weights, over all seeds"
    return [
        {"kind": "boxes", "name": "boxes", "title": "Spread", "hint": f"{whose}: quartiles and median.", **common},
        {"kind": "density", "name": "density", "title": "Density", "hint": f"{whose}, smoothed.", **common},
    ]


def _curves(env: str, found: Mapping[str, list[Path]], called: str = "curves") -> dict[str, Any]:
    lines = [
        {"name": n, "runs": [_measured(run, "episode/return", "speed/env_steps") for run in r]}
        for n, r in found.items()
    ]
    hint = (
        "Return of training episodes against environment steps. Lines: median of the seeds; bands: lowest to highest."
    )
    return _figure(called, "Learning curves", hint, "environment steps", env, lines)


def _paths(config: BlendConfig, found: Mapping[str, list[Path]]) -> dict[str, Any]:
    """Learning curves of the evaluations, and the published ones stretched to the same length: a panel for each alpha."""
    panels = []
    for alpha in config.alphas:
        lines: list[dict[str, Any]] = []
        for colour, beta in enumerate(config.betas):
            name = _pair(alpha, beta)
            measured = [_measured(run, *PATH) for run in found[name]]
            if any(one["steps"] for one in measured):
                lines.append({"name": f"beta {beta:g}", "colour": colour, "runs": measured})
            if known := config.published.get(name):
                at = [config.updates * (i + 1) / len(known) for i in range(len(known))]
                published = {"steps": at, "values": list(known)}
                lines.append(
                    {"name": f"beta {beta:g}, published", "colour": colour, "dashed": True, "runs": [published]}
                )
        panels.append({"title": f"{config.env}, alpha {alpha:g}", "lines": lines})
    hint = (
        "Evaluated snapshots of the parent's weights; the published curve is stretched to the same number of updates."
    )
    figure = _figure("paths", "Learning curves of the parent", hint, "updates of the parent", config.env, [])
    return figure | {"panels": panels}


def _path_rows(config: BlendConfig, found: Mapping[str, list[Path]]) -> list[dict[str, Any]]:
    """The same as rows: for each alpha, the evaluations at the updates where the published curves have theirs, by beta.

    Only measured values: a seed without a snapshot of exactly that update has none there.
    """
    rows = []
    for alpha in config.alphas:
        names = {f"beta {beta:g}": _pair(alpha, beta) for beta in config.betas}
        points = max(len(config.published.get(name, ())) for name in names.values())
        curves = {column: [_measured(run, *PATH) for run in found[name]] for column, name in names.items()}
        for number in range(1, points + 1):
            at = config.updates * number / points
            values = {
                column: [dict(zip(run["steps"], run["values"], strict=True))[at] for run in runs if at in run["steps"]]
                for column, runs in curves.items()
            }
            keys = {"path": f"alpha {alpha:g} after {EVERY * number}", "alpha": f"{alpha:g}"}
            rows.append({"keys": keys, "values": values})
    return rows


def _figure(name: str, title: str, hint: str, x: str, env: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kind": "curves",
        "name": name,
        "title": title,
        "hint": hint,
        "x": x,
        "y": "return",
        "scale": "linear",
        "panels": [{"title": env, "lines": lines}],
    }


def _notes(config: BlendConfig) -> list[str]:
    return [f"{config.children} children on this machine; {config.updates:,} updates of the parent's weights each"]


RUNNERS: dict[str, Callable[[Mapping[str, Any], Path, Tell], dict[str, Any]]] = {
    "alone": alone,
    "blend": blend,
    "versus": versus,
    "variants": variants,
    "grid": grid,
}
