"""A grid of trainings: every valid combination of algorithm, topology, consistency, actors and any other setting."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

import msgspec

from shoal.algos import ALGOS
from shoal.core.config import Positive
from shoal.core.errors import BadInput, nearest
from shoal.experiment import AXES, Settings, resolve
from shoal.launch.compose import make_algorithm
from shoal.studies.words import NONE, word
from shoal.topologies import TOPOLOGIES

WORKERS = next(name for name, entry in TOPOLOGIES.items() if entry.each_learns)  # whose workers share parameters


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """The runs to compare, and when each ends."""

    env: str
    """environment that all of them train on"""
    algo: tuple[str, ...] = ("ppo",)
    """algorithms"""
    topology: tuple[str, ...] = ()
    """topologies; by default each algorithm's usual one, or shared_params if consistencies are given"""
    consistency: tuple[str, ...] = ()
    """consistencies of shared parameters; topologies without such a choice run once"""
    actors: tuple[Positive, ...] = ()
    """numbers of actors; by default one per core"""
    settings: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """further settings of `shoal train`, each with its values"""
    until_return: float | None = None
    """a run ends when the mean of its last 100 episodes reaches this"""
    steps: Positive | None = None
    """a run ends after this many environment steps at the latest; by default the tuned number"""
    seeds: Positive = 3
    """runs of each combination"""


@dataclass(frozen=True)
class Way:
    """One combination, without its seed."""

    env: str
    keys: Mapping[str, str]  # for display: way (everything that varies), series (without actors), and each axis
    settings: Mapping[str, Any]  # for `shoal train`

    def folder(self, seed: int) -> str:
        """A folder name: readable words, and a hash that changes with the environment and any setting."""
        text = msgspec.json.encode(sorted({**self.settings, "env": self.env, "seed": seed}.items()), enc_hook=str)
        words = re.sub(r"[^A-Za-z0-9._=-]+", "_", self.keys["way"]).strip("_")
        return f"{words}-seed-{seed}-{hashlib.sha256(text).hexdigest()[:8]}"


@dataclass(frozen=True)
class Skipped:
    way: str
    reason: str


def ways_of(config: GridConfig) -> tuple[list[Way], list[Skipped]]:
    """All valid combinations, and the others with the reason.

    Raises `BadInput` for a consistency or another setting that fits no combination.
    """
    _check_names(config)
    axes: dict[str, Sequence[Any]] = {"algo": config.algo, "topology": config.topology or (None,)}
    axes |= {"consistency": config.consistency or (None,), "actors": config.actors or (None,)}
    axes |= {name.replace("-", "_"): values for name, values in config.settings.items()}
    resolved: list[tuple[dict[str, str], dict[str, Any]]] = []
    refused: list[tuple[dict[str, str], str]] = []
    for picked in product(*axes.values()):
        chosen = dict(zip(axes, picked, strict=True))
        keys, settings = _settle(config, chosen)
        if any(settings == known for _, known in resolved):
            continue  # the same combination without a consistency
        try:
            plan = resolve(config.env, settings)
            make_algorithm(plan)
        except BadInput as error:
            refused.append((keys, str(error)))
            continue
        keys |= {"topology": str(plan.settings.topology), "actors": str(plan.actors)}
        resolved.append((keys, settings))
    if not resolved:
        raise BadInput(f"nothing to compare: {refused[0][1]}")
    for axis, values in axes.items():
        for value in values if axis not in ("algo", "topology", "actors") else ():
            bad = [reason for keys, reason in refused if keys.get(axis) == word(value)]
            if bad and not any(keys.get(axis) == word(value) for keys, _ in resolved):
                raise BadInput(bad[0])
    everything = [keys for keys, _ in resolved] + [keys for keys, _ in refused]
    shown = [axis for axis in axes if len({keys[axis] for keys in everything} - {NONE}) > 1]
    ways = [Way(config.env, {**keys, **_labels(keys, shown)}, settings) for keys, settings in resolved]
    return ways, [Skipped(_labels(keys, shown)["way"], reason) for keys, reason in refused]


def _check_names(config: GridConfig) -> None:
    for what, names, known in (("algorithm", config.algo, ALGOS), ("topology", config.topology, TOPOLOGIES)):
        for name in names:
            if name not in known and ":" not in name:
                raise BadInput(f"unknown {what} {name!r}.{nearest(name, known)} There are: {', '.join(known)}.")
    plain = [f.name for f in fields(Settings)]
    for name in config.settings:
        bare = name.replace("-", "_")
        axis, dot, _ = bare.partition(".")
        if (dot and axis not in AXES) or (not dot and bare not in plain):
            raise BadInput(f"unknown setting {name!r}.{nearest(bare, plain) or ' See shoal train --help.'}")
        if bare in ("seed", "algo", "topology", "actors", "until_return", "steps"):
            raise BadInput(f"{name!r} has an option of its own: --{'seeds' if bare == 'seed' else name}")
    several = [t for t in config.topology if _has_consistency(t)]
    if config.consistency and config.topology and not several:
        able = ", ".join(name for name in TOPOLOGIES if _has_consistency(name)) or "none so far"
        raise BadInput(f"--consistency: {', '.join(config.topology)} has none to choose; these have: {able}")


def _settle(config: GridConfig, chosen: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """(keys, settings) of one combination: adds a topology that fits the consistency, drops a consistency that does not apply."""
    topology, consistency = chosen["topology"], chosen["consistency"]
    if topology is None and consistency is not None:
        algo = ALGOS.get(chosen["algo"])
        usual = "sync" if algo is None else algo.usual_topology
        topology = usual if _has_consistency(usual) else WORKERS
    if topology is not None and not _has_consistency(topology):
        consistency = None
    own = {k: v for k, v in chosen.items() if k not in ("algo", "topology", "consistency", "actors")}
    settings: dict[str, Any] = {"algo": chosen["algo"], "topology": topology, "topology.consistency": consistency}
    settings |= {"actors": chosen["actors"], "until_return": config.until_return, "steps": config.steps, **own}
    settings = {name: value for name, value in settings.items() if value is not None}
    keys = {"algo": chosen["algo"], "topology": topology or NONE, "consistency": consistency or NONE}
    keys |= {"actors": word(chosen["actors"]), **{name: word(value) for name, value in own.items()}}
    return keys, settings


def _has_consistency(topology: str) -> bool:
    entry = TOPOLOGIES.get(topology)  # None for an import path
    return entry is not None and "consistency" in {f.name for f in fields(entry.Config)}


def _labels(keys: Mapping[str, str], shown: Sequence[str]) -> dict[str, str]:
    """`way` names everything that varies, `series` the same without the number of actors."""

    def name(axis: str) -> str:
        return keys[axis] if axis in ("algo", "topology", "consistency") else f"{axis}={keys[axis]}"

    parts = [name(axis) for axis in shown if axis != "actors" and keys.get(axis, NONE) != NONE]
    series = " ".join(parts) or keys["algo"]
    return {"series": series, "way": f"{series} x{keys['actors']}" if "actors" in shown else series}
