"""Every setting of an on-policy algorithm is read: another value makes another update."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_policy_algos import ON_POLICY, begin, learn, make, trajectory

from shoal.algos import ALGOS
from shoal.algos.on_policy import OnPolicyConfig
from shoal.core.weights import to_vector

FLIPS: dict[str, Any] = {
    "learning_rate": 0.05,
    "final_rate": 0.5,
    "gamma": 0.5,
    "lam": 0.3,
    "unroll": 4,
    "batch_size": 8,
    "entropy": 0.5,
    "value_weight": 3.0,
    "max_grad_norm": 1e-3,
    "normalise_advantage": None,
    "normalise_obs": True,
    "normalise_reward": True,
    "reward_clip": "sign",
    "reward_scale": 10.0,
    "epochs": 2,
    "clip": 0.01,
    "anneal_clip": True,
    "value_clip": 0.01,
    "target_kl": 1e-4,
    "decay": 0.5,
    "epsilon": 0.1,
    "initial_square": 1.0,
    "final_entropy": 0.0,
    "returns": "vtrace",
    "rho_clip": 0.5,
    "c_clip": 0.5,
    "optimiser": "adam",
    "momentum": 0.3,
    "log_epsilon": 0.5,
}
# Other settings that a knob needs to have an effect.
BESIDE: dict[str, dict[str, Any]] = {
    "final_entropy": {"entropy": 0.5},
    "rho_clip": {"returns": "vtrace"},
    "c_clip": {"returns": "vtrace"},
    "momentum": {"optimiser": "momentum"},
}
SHARED = {field.name for field in dataclasses.fields(OnPolicyConfig)}
IN_LOSSES = ("entropy", "final_entropy", "value_weight")  # read in the loss, which differs between algorithms


def knobs() -> Iterator[Any]:
    """(algorithm, knob) pairs. Knobs of the base class are tested once in `make test`, for every algorithm in slow tests."""
    for name in ON_POLICY:
        for field in dataclasses.fields(ALGOS[name].Config):
            again = field.name in SHARED and field.name not in IN_LOSSES and name != "a2c"
            yield pytest.param(name, field.name, marks=pytest.mark.slow if again else ())


PLAIN = {"learning_rate": 0.02, "final_rate": 0.1}
DRIFT, LAG = 1.2, 0.7
STEPPING = ("optimiser", "decay", "epsilon", "initial_square", "momentum")  # they act after the gradient
SEEN = 1e-3  # relative change of a gradient: hundreds of times the rounding error


@pytest.mark.parametrize(("name", "knob"), list(knobs()))
def test_every_knob_is_read(name: str, knob: str) -> None:
    """Another value makes another update. `FLIPS` must have every field, so a new one cannot be forgotten.

    The acting weights are older than the learning ones, and the params have moved since `prepare`: if all were equal, ratios would
    be 1, V-trace would be GAE, and nothing would be clipped.
    """
    beside = {**PLAIN, **BESIDE.get(knob, {})}
    plain = make(name, **beside)
    value = FLIPS[knob] if FLIPS[knob] is not None else not getattr(plain.config, knob)
    assert value != getattr(plain.config, knob)
    other = make(name, **{**beside, knob: value})
    state = begin(plain)._replace(progress=jnp.float32(0.5))
    shape = [(a.experience, a.minibatches, float(a.rate(state))) for a in (plain, other)]
    if shape[0] != shape[1]:
        return
    tr = trajectory(plain)
    fresh = jax.jit(other.init)(jax.random.key(0))
    if knob == "momentum":  # visible only after a first step
        moved = jax.tree.map(jnp.ones_like, fresh.moments)
        state, fresh = state._replace(moments=moved), fresh._replace(moments=moved)
    one = learn(plain, tr, state, drift=DRIFT, lag=LAG)
    given = state._replace(moments=fresh.moments, obs=fresh.obs, reward=fresh.reward)
    two = learn(other, tr, given, drift=DRIFT, lag=LAG)
    # An optimiser's first step may be the gradient's sign, which rounding can flip: compare steps only for its own knobs.
    start = to_vector(state.params) * np.float32(DRIFT)
    seen = [to_vector(m.state.params) - start if knob in STEPPING else to_vector(m.grads) for m in (one, two)]
    longest = max(np.linalg.norm(vector) for vector in seen)
    assert bool(one.feedback.stop) != bool(two.feedback.stop) or np.linalg.norm(seen[0] - seen[1]) > SEEN * longest
