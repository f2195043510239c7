"""On-policy algorithms on small nets, unrolls with both kinds of end, and one gradient on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.acting.compiled_act import compiled_act
from shoal.algos import ALGOS
from shoal.algos.on_policy import OnPolicy
from shoal.core.algorithm import Task
from shoal.core.keys import key_data
from shoal.core.spec import ActionSpec, Binary, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Trajectory
from shoal.core.weights import to_vector
from shoal.learning.compiled_update import apply
from shoal.nets.actor_critic import ActorCritic, NetConfig

T, B, WIDTH = 8, 4, 3
TERMINATED, TRUNCATED = (2, 0), (4, 1)  # (row, column) of the two ends in `trajectory`
ACTIONS = {
    "discrete": ActionSpec((Categorical((3,)),), scalar=True),
    "box": ActionSpec((Continuous((-1.0, -1.0), (1.0, 1.0)),)),
    "mixed": ActionSpec((Categorical((3, 2)), Continuous((-2.0,), (2.0,)), Binary(2))),
}
ON_POLICY = [name for name, entry in ALGOS.items() if issubclass(entry, OnPolicy)]


@cache
def make(name: str, kind: str = "discrete", **settings: Any) -> Any:
    """An algorithm on a small net. Equal arguments give the same object, so that it is compiled once per session."""
    return build(name, kind, **settings)


def build(name: str, kind: str = "discrete", **settings: Any) -> Any:
    spec = EnvSpec("test", ObsSpec((WIDTH,)), ACTIONS["discrete" if kind == "recurrent" else kind])
    net = NetConfig(hidden=(8,), cell="gru" if kind == "recurrent" else "none", cell_size=6)
    config = ALGOS[name].Config(**{"unroll": T, **settings})
    return ALGOS[name](config, Task(spec=spec, envs=B), ActorCritic(net, spec))


@cache
def begin(algorithm: Any) -> Any:
    """A state with asymmetric, larger params: the small initial ones of the heads could hide an error."""
    state, rng = jax.jit(algorithm.init)(jax.random.key(1)), np.random.default_rng(2)
    loud = jax.tree.map(lambda p: np.asarray(p + 0.3 * rng.normal(size=p.shape), np.float32), state.params)
    return state._replace(params=jax.device_put(loud))


def trajectory(algorithm: Any, seed: int = 0) -> Trajectory:
    """Unrolls of B environments. Column 0 terminates at row 2, column 1 is truncated at row 4."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(T + 1, B, WIDTH)).astype(np.float32)
    actor = algorithm.actor_state(begin(algorithm))
    act = compiled_act(algorithm)
    none, ones = np.zeros(B, bool), np.ones(B, np.float32)
    carry = {n: np.asarray(rng.normal(size=a.shape), np.float32) for n, a in algorithm.initial_carry(B).items()}
    actions = [np.asarray(act(actor, obs[t], carry, none, key_data(seed), np.int32(t), ones)[0]) for t in range(T)]
    boundary, discount = np.zeros((T, B), bool), np.ones((T, B), np.float32)
    valid, first = np.ones((T, B), bool), np.zeros((T + 1, B), bool)
    for row, column in (TERMINATED, TRUNCATED):
        boundary[row, column] = True
        valid[row + 1, column], discount[row + 1, column] = False, 0.0
        first[row + 2, column] = True
    discount[TERMINATED] = 0.0
    reward = rng.normal(size=(T, B)).astype(np.float32) * valid
    version = np.zeros((T, B), np.int32)
    return Trajectory(obs, np.stack(actions), reward, discount, boundary, valid, first, {}, carry, version)


class Learnt(NamedTuple):
    """Result of one gradient on the whole batch."""

    advantage: Any
    grads: Any
    feedback: Any
    state: Any  # after the gradient was applied


@cache
def _learning(algorithm: Any) -> Callable[..., Learnt]:
    def whole(state: Any, acted: Any, tr: Trajectory, drift: Any) -> Learnt:
        after, batch = algorithm.prepare(state, acted, tr, jax.random.key(0))
        after = after._replace(params=jax.tree.map(lambda p: p * drift, after.params))
        grads, feedback = algorithm.gradients(after, batch, jax.random.key(0))
        return Learnt(batch.rows.advantage, grads, feedback, apply(algorithm, after, grads))

    return jax.jit(whole)


def learn(algorithm: Any, tr: Trajectory, state: Any = None, drift: float = 1.0, lag: float = 1.0) -> Learnt:
    """One gradient without the scan over epochs and minibatches, which compiles in a fraction of the time.

    `drift` scales the params between `prepare` and the gradient, as earlier minibatches would move them; `lag` scales the params
    that acted, as if they were an older version.
    """
    state = begin(algorithm) if state is None else state
    acted = algorithm.actor_state(state._replace(params=jax.tree.map(lambda p: p * np.float32(lag), state.params)))
    return _learning(algorithm)(state, acted, tr, np.float32(drift))


def changed(tr: Trajectory, **arrays: Callable[[np.ndarray], None]) -> Trajectory:
    """A copy with some arrays edited."""
    copies: dict[str, np.ndarray] = {}
    for name, edit in arrays.items():
        copies[name] = getattr(tr, name).copy()
        edit(copies[name])
    return tr._replace(**copies)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def farthest(a: Any, b: Any) -> float:
    return float(np.abs(to_vector(a) - to_vector(b)).max())
