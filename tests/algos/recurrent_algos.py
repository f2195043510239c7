"""Recurrent algorithms on a small net, and an unroll with every kind of end of an episode."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np

from shoal.algos import ALGOS, sequences
from shoal.core.algorithm import Drawn, Task
from shoal.core.spec import ActionSpec, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Sequences, Trajectory
from shoal.nets.continuous import CONTINUOUS_NETS, ContinuousNetConfig
from shoal.nets.q_network import QNetConfig, QNetwork

T, B, WIDTH, SIZE, HIDDEN = 8, 4, 2, 2, 3
DISCRETE = EnvSpec("test", ObsSpec((WIDTH,)), ActionSpec((Categorical((2,)),), scalar=True))
BOX = EnvSpec("test", ObsSpec((WIDTH,)), ActionSpec((Continuous((-1.0,), (1.0,)),)))


@cache
def make(name: str, cell: str = "lstm", dueling: bool = False, **settings: Any) -> Any:
    entry: Any = ALGOS[name]
    shape: dict[str, Any] = {"hidden": (HIDDEN,), "activation": "tanh", "cell": cell, "cell_size": SIZE}
    if name in ("dqn", "dyna_q"):
        net: Any = QNetwork(QNetConfig(**shape, dueling=dueling), DISCRETE)
    else:
        net = CONTINUOUS_NETS[entry.net_name](ContinuousNetConfig(**shape), BOX)
    config = entry.Config(
        **{
            "unroll": T,
            "batch_size": 32,
            "capacity": 1_000,
            "warmup": 0,
            "gamma": 0.9,
            "max_grad_norm": 1e9,
            **settings,
        }
    )
    return entry(config, Task(spec=net.spec, envs=B), net)


def begin(algorithm: Any) -> Any:
    """Weights in float64 that are not symmetric, and targets that differ from them."""
    state, rng = jax.jit(algorithm.init)(jax.random.key(1)), np.random.default_rng(2)

    def loud(tree: Any) -> Any:
        return jax.tree.map(lambda p: np.asarray(p, np.float64) + 0.5 * rng.normal(size=p.shape), tree)

    return state._replace(params=loud(state.params), extra=loud(state.extra))


def trajectory(algorithm: Any, seed: int = 0) -> Trajectory:
    """Column 0 terminates at row 2, column 1 is truncated at row 4, column 2 begins with an episode."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(T + 1, B, WIDTH))
    action = rng.integers(0, 2, (T, B)).astype(np.int32) if algorithm.task.spec is DISCRETE else None
    boundary, discount = np.zeros((T, B), bool), np.ones((T, B))
    valid, first = np.ones((T, B), bool), np.zeros((T + 1, B), bool)
    for row, column in ((2, 0), (4, 1)):
        boundary[row, column] = True
        valid[row + 1, column], discount[row + 1, column] = False, 0.0
        first[row + 2, column] = True
    discount[2, 0], first[0, 2] = 0.0, True
    carry = {name: rng.normal(size=(B, *a.shape[1:])) for name, a in algorithm.initial_carry(B).items()}
    size = sum(carry[name].shape[-1] for name in algorithm.net.initial_carry(1))
    extras = {sequences.MEMORY: rng.normal(size=(T, B, size))} if algorithm.recurrent else {}
    return Trajectory(
        obs,
        rng.uniform(-1, 1, (T, B, 1)) if action is None else action,
        rng.normal(size=(T, B)) * valid,
        discount,
        boundary,
        valid,
        first,
        extras,
        carry,
        np.zeros((T, B), np.int32),
    )


def drawn(algorithm: Any, seed: int = 0) -> Drawn:
    """All sequences of an unroll, as one minibatch with weights."""
    unroll = trajectory(algorithm, seed)
    kept = jax.jit(algorithm.prepare)(begin(algorithm), None, unroll, jax.random.key(0))[1]
    flat = [np.asarray(x).reshape(-1, *x.shape[2:]) for x in kept.rows]
    rows = Sequences(*(x.astype(np.float64) if x.dtype == np.float32 else x for x in flat))
    return Drawn(rows, np.linspace(0.2, 1.0, len(rows.reward)))
