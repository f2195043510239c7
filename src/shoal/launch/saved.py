"""Restoring checkpoints and policies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState
from shoal.core.blueprint import named_leaves, restore_leaves
from shoal.core.errors import BadInput
from shoal.core.weights import params_hash
from shoal.experiment import Plan
from shoal.process.device import settle_process
from shoal.run.policy import save_policy


def under(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def check_same_spaces(plan: Plan, meta: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose observation or action space differs from the plan's."""
    now = msgspec.to_builtins(plan.spec)
    before = meta.get("spec", {})
    for what in ("obs", "action"):
        if msgspec.json.encode(now[what]) != msgspec.json.encode(before.get(what)):
            raise BadInput(
                f"{plan.source.name}: its {what} space changed since the run: {before.get(what)} then, {now[what]} now"
            )


def state_of(algorithm: Algorithm, arrays: Mapping[str, np.ndarray]) -> LearnerState:
    """A saved learner state, restored into the algorithm's structure.

    Reward statistics that do not fit the newest settings, which a resume may have changed, are replaced by zeros.
    """
    settle_process()
    shape = jax.eval_shape(lambda: algorithm.init(jax.random.key(0)))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shape)
    fresh = {name: leaf for name, leaf in named_leaves(zeros).items() if name.startswith("reward/")}
    others = {name: leaf for name, leaf in fresh.items() if name not in arrays or arrays[name].shape != leaf.shape}
    state: LearnerState = restore_leaves(zeros, {**arrays, **others})
    return state


def actor_of(algorithm: Algorithm, arrays: Mapping[str, np.ndarray]) -> Any:
    """The acting part of a saved learner state."""
    return algorithm.actor_state(state_of(algorithm, arrays))


def write_policy(path: Path, plan: Plan, state: Any, algorithm: Algorithm) -> None:
    """Write the acting part of a state, with the config that rebuilds it."""
    arrays = named_leaves(algorithm.actor_state(state))
    save_policy(path, arrays, {"config": plan.as_dict(), "params_sha256": params_hash(state.params)})
