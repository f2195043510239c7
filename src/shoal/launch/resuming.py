"""Resuming from a checkpoint: which parts fit the current settings, which start over, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import msgspec
import numpy as np

from shoal.core.algorithm import Algorithm
from shoal.core.blueprint import Blueprint
from shoal.core.errors import BadInput
from shoal.experiment import Plan
from shoal.launch.saved import under
from shoal.learning.replay_update import REPLAY, is_saved, replay_of, row_record
from shoal.run.checkpoints import Loaded

Say = Callable[[str], None]
# Settings that the roles' parts depend on, besides the topology, and how they are named. An episode is restored by its seed and
# its actions: those would be replayed in another episode if the seed or the environment differed.
OF_PARTS = {"env": "environment", **{name: f"--{name}" for name in ("seed", "actors", "envs", "learners", "backend")}}
RETURNS = "reward/returns"  # the leaf with one number for each environment of the batch
OLD_LASTING = [REPLAY]  # lasting parts of checkpoints that do not list them


def resumed_state(plan: Plan, algorithm: Algorithm, loaded: Loaded, say: Say) -> dict[str, np.ndarray]:
    """The learner's leaves that fit. Raises `BadInput` if weights or moments do not; reward statistics may start over."""
    saved = under(loaded.arrays, "state/")
    before, now = _config_of(loaded), _plain(plan.as_dict())
    was, name = before.get("algo", {}).get("name"), now["algo"]["name"]
    if was not in (None, name):
        raise BadInput(
            f"--algo is {name!r}: this run was trained by {was!r}, whose state it cannot take over;"
            f" --from {_folder(loaded)} begins another run with its weights"
        )
    leaves = jax.tree.leaves_with_path(jax.eval_shape(lambda: algorithm.init(jax.random.key(0))))
    wanted = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}
    found = {name: array.shape for name, array in saved.items()}
    strange = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    for name in strange:
        if not name.startswith("reward/"):
            raise BadInput(f"the checkpoint does not fit: {_misfit(name, wanted, found)}{_hint(name, before, now)}")
    if strange == [RETURNS]:
        say(
            f"the reward scale's running returns start over: the batch had {found[RETURNS][0]} environments"
            f" and has {wanted[RETURNS][0]} now"
        )
    elif strange:
        what = "starts over" if RETURNS in wanted else "is left out"
        say(f"the reward scale {what}{_hint('reward', before, now)}")
    return {name: array for name, array in saved.items() if name in wanted and name not in strange}


def resumed_parts(plan: Plan, loaded: Loaded, say: Say) -> dict[str, dict[str, np.ndarray]]:
    """The roles' parts: all of them, or only the lasting ones if episodes cannot continue or if there are other roles."""
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, array in under(loaded.arrays, "part/").items():
        part, _, leaf = name.partition("/")
        parts.setdefault(part, {})[leaf] = array
    before, now = _config_of(loaded), _plain(plan.as_dict())
    settings = [(flag, before.get(name), now[name]) for name, flag in OF_PARTS.items()]
    changed = [(flag, old, new) for flag, old, new in settings if old not in (None, new)]
    changed += _changes_of_topology(before.get("topology", {}), now["topology"])
    if not changed:
        return parts
    words = ", ".join(f"{flag} {new} instead of {old}" for flag, old, new in changed)
    say(f"resumed with {words}: environments and running episodes start over")
    lasting = loaded.meta.get("lasting", OLD_LASTING)
    return {name: arrays for name, arrays in parts.items() if name in lasting}


def _changes_of_topology(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(flag, old value, new value) of its name, or else of every setting that both know: sizes of parts depend on them."""
    if before.get("name", now["name"]) != now["name"]:
        return [("--topology", before["name"], now["name"])]
    return [
        (f"--topology.{name.replace('_', '-')}", before[name], value)
        for name, value in now.items()
        if name in before and before[name] != value
    ]


def with_replay(blueprint: Blueprint, loaded: Loaded, say: Say) -> Blueprint:
    """`blueprint` without a replay whose rows are of another kind. `say` reports what is not restored as it was."""
    if not blueprint.algorithm.replays:
        return blueprint
    saved = blueprint.snapshots.get(REPLAY)
    others = {name: arrays for name, arrays in blueprint.snapshots.items() if not name.startswith(REPLAY)}
    if saved is None or "counters" not in saved:
        if blueprint.start and is_saved(blueprint):
            say("the checkpoint holds no replay: it fills again")
        return replace(blueprint, snapshots=others)
    fields = {f"rows/{field.name}": (field.shape, np.dtype(field.dtype)) for field in row_record(blueprint).fields}
    rows = {name: (a.shape[2:], a.dtype) for name, a in saved.items() if name.startswith("rows/")}
    if rows != fields:
        say("the checkpoint's replay holds rows of another kind: it fills again")
        return replace(blueprint, snapshots=others)
    replay = replay_of(blueprint)
    capacity = _config_of(loaded).get("algo", {}).get("capacity", replay.capacity * replay.sequence)
    if len(saved["counters"]) != blueprint.algorithm.task.workers or capacity // replay.sequence != replay.capacity:
        say("the replay has another layout: its newest rows are dealt out again, and all count as new to the sampler")
    return blueprint


def _folder(loaded: Loaded) -> str:
    return str(loaded.path.parent.parent)


def _config_of(loaded: Loaded) -> dict[str, Any]:
    """The settings of the run as it was saved; {} in checkpoints that do not hold them."""
    config: dict[str, Any] = loaded.meta.get("config", {})
    return config


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` as it would be read back from a file."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return plain


def _misfit(name: str, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> str:
    kinds = {"params": "weights", "moments": "the optimiser's moments", "obs": "statistics of observations"}
    kind = f"{name!r} ({kinds.get(name.split('/')[0], 'state of the algorithm')})"
    if name not in wanted:
        return f"it has {kind}, which this run does not use"
    if name not in found:
        return f"it has no {kind}, which this run needs"
    return f"{kind} has shape {found[name]} there and {wanted[name]} here"


def _hint(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The settings that may be the cause: the net's first if weights differ, else the algorithm's first."""
    if not before:
        return "; leave the settings of --net and --algo as they were"
    axes = ("net", "algo") if name.startswith(("params", "moments", "extra")) else ("algo", "net")
    for axis in axes:
        keys = [key for key in {**now[axis], **before[axis]} if now[axis].get(key) != before[axis].get(key)]
        if axis == "algo" and name.startswith(("obs", "reward")):
            keys = [key for key in keys if name.split("/")[0] in key]
        if keys:
            flags = (f"--{axis}.{key.replace('_', '-')}" if key != "name" else f"--{axis}" for key in keys[:3])
            values = (
                f"{f} was {before[axis].get(k)} and is {now[axis].get(k)}" for f, k in zip(flags, keys, strict=False)
            )
            return f": {', '.join(values)}"
    return ""
