"""Small DDPG, TD3 and SAC, and what to feed them: for the tests of each, and of what they share."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np

from shoal.algos import ALGOS
from shoal.core.algorithm import Drawn, Task
from shoal.core.spec import ActionSpec, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Trajectory, Transitions
from shoal.learning.compiled_update import apply
from shoal.nets.continuous import CONTINUOUS_NETS, ContinuousNetConfig

T, B, WIDTH, ENTRIES, N = 8, 4, 3, 2, 10
NAMES = ("ddpg", "sac", "td3")
SPEC = EnvSpec("test", ObsSpec((WIDTH,)), ActionSpec((Continuous((-1.0, -2.0), (1.0, 2.0)),)))


@cache
def make(name: str, spec: EnvSpec = SPEC, layer_norm: bool = False, **settings: Any) -> Any:
    """The same arguments make the same object, so that it compiles once a session."""
    return build(name, spec, layer_norm, **settings)


def build(name: str, spec: EnvSpec = SPEC, layer_norm: bool = False, **settings: Any) -> Any:
    entry: Any = ALGOS[name]
    net = CONTINUOUS_NETS[entry.net_name](ContinuousNetConfig(hidden=(8,), layer_norm=layer_norm), spec)
    config = entry.Config(**{"unroll": T, "batch_size": N, "warmup": 0, **settings})
    return entry(config, Task(spec=spec, envs=B), net)


@cache
def begin(algorithm: Any) -> Any:
    """Weights that are not symmetric, and targets that differ from them."""
    state, rng = jax.jit(algorithm.init)(jax.random.key(1)), np.random.default_rng(2)

    def loud(tree: Any) -> Any:
        return jax.device_put(jax.tree.map(lambda p: np.asarray(p + 0.5 * rng.normal(size=p.shape), np.float32), tree))

    return state._replace(params=loud(state.params), extra={n: loud(tree) for n, tree in state.extra.items()})


def trajectory(seed: int = 0) -> Trajectory:
    """Column 0 terminates at row 2, column 1 is truncated at row 4."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(T + 1, B, WIDTH)).astype(np.float32)
    action = rng.uniform(-1, 1, (T, B, ENTRIES)).astype(np.float32)
    boundary, discount = np.zeros((T, B), bool), np.ones((T, B), np.float32)
    valid, first = np.ones((T, B), bool), np.zeros((T + 1, B), bool)
    for row, column in ((2, 0), (4, 1)):
        boundary[row, column] = True
        valid[row + 1, column], discount[row + 1, column] = False, 0.0
        first[row + 2, column] = True
    discount[2, 0] = 0.0
    reward = rng.normal(size=(T, B)).astype(np.float32) * valid
    return Trajectory(obs, action, reward, discount, boundary, valid, first, {}, {}, np.zeros((T, B), np.int32))


def drawn(seed: int = 0, weight: np.ndarray | None = None) -> Drawn:
    rng = np.random.default_rng(seed)
    obs, following = rng.normal(size=(2, N, WIDTH)).astype(np.float32)
    action, reward = rng.uniform(-1, 1, (N, ENTRIES)).astype(np.float32), 3 * rng.normal(size=N).astype(np.float32)
    discount = np.where(rng.random(N) < 0.3, 0, 0.9).astype(np.float32)
    rows = Transitions(obs, action, reward, discount, following)
    return Drawn(rows, np.ones(N, np.float32) if weight is None else weight)


def stepping(algorithm: Any) -> Any:
    """(state, Drawn, seed) -> (gradients, feedback, state after them). Op by op: to compile it takes ten times as long."""

    def one(state: Any, batch: Drawn, seed: Any) -> Any:
        grads, feedback = algorithm.gradients(state, batch, jax.random.key(seed))
        return grads, feedback, apply(algorithm, state, grads, feedback.moved)

    return one


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
