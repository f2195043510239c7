"""The zoo: every listed environment and algorithm, trained with the settings that Shoal uses by default, beside published scores.

An agent is trained once for each seed, and each run is evaluated greedily in Gymnasium's own environment, on episodes whose
seeds no training has used. A seed is one observation, the mean of its episodes; the score is the interquartile mean over the
seeds. At full size each agent that is done updates its row of `docs/zoo.md` (`zoo_page`). `missing` leaves those out that have a
row of as many seeds by the same settings, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.algos import ALGOS
from shoal.core import config as configs
from shoal.core.config import Positive, PositiveFloat, build
from shoal.core.errors import BadInput, RunFailed, nearest
from shoal.run.folder import describe_machine, read_json
from shoal.studies.finished import succeeded
from shoal.studies.reproduce import experiments_folder, read_reference
from shoal.studies.statistics import interval, iqm
from shoal.studies.words import flags_of
from shoal.studies.zoo_page import Measured, publish, reached, read_rows
from shoal.tuned import tuned

Tell = Callable[[int, int, str], None]
FRESH = 100_000  # added to a run's seed for its evaluation


@dataclass(frozen=True, kw_only=True)
class ZooConfig:
    agents: dict[str, list[str]]
    """{environment: algorithms}"""
    episodes: Positive
    """of the evaluation of each run"""
    seeds: Positive = 5
    """runs of each agent"""
    budgets: dict[str, Positive] = field(default_factory=dict)
    """{"ENV ALGO": steps} of agents that are trained for fewer steps than by default"""
    minutes: PositiveFloat | None = None
    """a run that takes longer is ended with a checkpoint, and evaluated as it is then"""
    settings: dict[str, Any] = field(default_factory=dict)
    """settings of `shoal train` other than the default ones"""
    only_envs: tuple[str, ...] = ()
    """environments to train on; all of them if there are none"""
    only_algos: tuple[str, ...] = ()
    """algorithms to train; all of them if there are none"""
    publish: bool = False
    """whether measured rows go into docs/zoo.md"""
    missing: bool = False
    """whether agents are left out that have a row of at least as many seeds, by the same settings, in docs/zoo.md already"""


def zoo(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Rows with score, steps and seconds of every chosen agent; notes name agents that failed."""
    config = build(ZooConfig, size)
    chosen = chosen_agents(config)
    root = experiments_folder() / "zoo"
    reference = read_reference(root / "reference.csv") if (root / "reference.csv").exists() else {}
    if config.missing:
        known = read_rows(root / "ours.json")
        chosen = [(env, algo) for env, algo in chosen if _is_missing(known.get(f"{env} {algo}"), env, algo, config)]
        if not chosen:
            raise BadInput(
                f"every chosen agent has a row of at least {config.seeds} seeds by today's settings in docs/zoo.md already;"
                " without --missing they are measured again"
            )
    rows, notes, total = [], [], len(chosen) * config.seeds
    for at, (env, algo) in enumerate(chosen):
        name = f"{env} {algo}"
        try:
            runs = []
            for seed in range(config.seeds):
                tell(at * config.seeds + seed, total, f"{name}, seed {seed}")
                runs.append(_measure(env, algo, seed, config, folder / f"{env.replace('/', '-')}-{algo}-{seed}"))
        except (BadInput, RunFailed) as error:
            notes.append(f"{name} has no score: {error}")  # a mean of those that did not fail would flatter it
            continue
        measured = summarise(
            *(env, algo, runs, config.episodes),
            budget=config.budgets.get(name),
            minutes=config.minutes,
            settings=settings_of(env, algo, config),
        )
        published = reference.get(name, {}).get("score")
        rows.append({"keys": {"agent": name}, "values": _values(measured, runs, published)})
        if config.publish:
            known = read_rows(root / "ours.json")
            today = {agent: settings_of(row.env, row.algo, config) for agent, row in known.items()}
            publish(root, measured, config.agents, today)
    if not rows:
        raise RunFailed(notes[0])
    return {"rows": rows, "figures": [], "notes": notes}


def _is_missing(row: Measured | None, env: str, algo: str, config: ZooConfig) -> bool:
    """Whether the agent has no row, or one of fewer seeds or by other settings than today's."""
    return row is None or row.seeds < config.seeds or row.settings != settings_of(env, algo, config)


def chosen_agents(config: ZooConfig) -> list[tuple[str, str]]:
    """(environment, algorithm) in the order of the list. `BadInput` for a name that is not in it."""
    algos = list(dict.fromkeys(algo for listed in config.agents.values() for algo in listed))
    for what, names, known in (
        ("environment", config.only_envs, list(config.agents)),
        ("algorithm", config.only_algos, algos),
    ):
        for name in names:
            if name not in known:
                raise BadInput(f"the zoo has no {what} {name!r}.{nearest(name, known)} There are: {', '.join(known)}.")
    for name in config.budgets:
        if name not in (known := [f"{env} {algo}" for env, listed in config.agents.items() for algo in listed]):
            raise BadInput(f"budgets has {name!r}, which the zoo does not list.{nearest(name, known)}")
    found = [
        (env, algo)
        for env, listed in config.agents.items()
        for algo in listed
        if (not config.only_envs or env in config.only_envs) and (not config.only_algos or algo in config.only_algos)
    ]
    if not found:
        raise BadInput(f"the zoo has no {', '.join(config.only_algos)} on {', '.join(config.only_envs)}")
    return found


def settings_of(env: str, algo: str, config: ZooConfig) -> str:
    """A digest of the settings that the agent's training follows from, to notice that a row is older than they are."""
    defaults = configs.as_dict(ALGOS[algo].Config()) if algo in ALGOS else {}
    parts = [tuned(env, algo, False), defaults, config.budgets.get(f"{env} {algo}"), config.minutes, config.settings]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def _measure(env: str, algo: str, seed: int, config: ZooConfig, out: Path) -> dict[str, float]:
    """One run: trained in a process of its own, then evaluated in another."""
    budget = config.budgets.get(f"{env} {algo}")
    shorter = {} if budget is None else {"steps": budget}
    own = {**shorter, **config.settings, "seed": seed, "eval_episodes": 0, "sinks": "jsonl"}
    train = ["train", env, "--algo", algo, "--out", str(out), "--quiet", "--no-report", *flags_of(own)]
    succeeded(train, None if config.minutes is None else 60 * config.minutes)
    load, _, _ = os.getloadavg()
    summary = read_json(out / "summary.json")
    if summary.get("ended") == "stopped":
        raise KeyboardInterrupt  # the run was stopped, so the zoo stops too
    words = ["eval", str(out), "--episodes", str(config.episodes), "--seed", str(FRESH + seed), "--json", "--quiet"]
    played = json.loads(succeeded(words).out.strip().splitlines()[-1])
    if played["eval_faults"]:
        raise RunFailed(f"{played['eval_faults']} episodes of the evaluation broke (seed {seed})")
    return {
        "score": float(played["eval_mean"]),
        "steps": float(summary["env_steps"]),
        "seconds": float(summary["wall_s"]),
        "load": load,
        "cut": float(summary.get("ended") == "paused"),
    }


def summarise(
    env: str,
    algo: str,
    runs: Sequence[Mapping[str, float]],
    episodes: int,
    budget: int | None = None,
    minutes: float | None = None,
    settings: str = "",
) -> Measured:
    """The interquartile mean over the seeds with its interval; steps and seconds are those of the median run."""
    scores = [run["score"] for run in runs]
    machine = describe_machine()
    return Measured(
        env=env,
        algo=algo,
        score=iqm(scores),
        ci=interval(scores, _iqm_along),
        steps=float(np.median([run["steps"] for run in runs])),
        seconds=float(np.median([run["seconds"] for run in runs])),
        seeds=len(runs),
        episodes=episodes,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=f"{machine['cores']} cores, {machine['cpu']}",
        budget=budget,
        load=float(np.median([run["load"] for run in runs])),
        cut_after=minutes if any(run["cut"] for run in runs) else None,
        settings=settings,
    )


def _iqm_along(values: np.ndarray, axis: int) -> Any:
    from scipy.stats import trim_mean

    return trim_mean(values, 0.25, axis=axis)


def _values(measured: Measured, runs: Sequence[Mapping[str, float]], published: float | None) -> dict[str, Any]:
    return {
        "score": {"mean": measured.score, "ci": None if measured.ci is None else list(measured.ci)},
        "steps": [run["steps"] for run in runs],
        "seconds": [run["seconds"] for run in runs],
        "reached": [reached(measured, published)],
    }


RUNNERS: dict[str, Callable[[Mapping[str, Any], Path, Tell], dict[str, Any]]] = {"zoo": zoo}
