"""Action values: shapes, dueling, pictures, what every setting changes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.config import field_help
from shoal.core.errors import BadInput
from shoal.core.spec import ActionSpec, Categorical, EnvSpec, ObsSpec
from shoal.core.weights import layout_of
from shoal.nets.q_network import QNetConfig, QNetwork

ACTION = ActionSpec((Categorical((5,)),), scalar=True)
VECTOR = EnvSpec("e", ObsSpec((3,)), ACTION)
IMAGE = EnvSpec("i", ObsSpec((12, 12, 2), "uint8"), ACTION)


def net(spec: EnvSpec = VECTOR, **settings: Any) -> QNetwork:
    return QNetwork(QNetConfig(**{"hidden": (8,), "conv": ("4x4/2",), **settings}), spec)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 6)])
def test_one_value_for_each_action(spec: EnvSpec, dueling: bool, hidden: tuple[int, ...]) -> None:
    q = net(spec, dueling=dueling, hidden=hidden)
    params = jax.jit(q.init)(jax.random.key(0))
    obs = np.random.default_rng(0).integers(0, 255, (2, 7, *spec.obs.shape)).astype(spec.obs.dtype)
    values = q.q(params, obs)
    assert values.shape == (2, 7, 5) and values.dtype == jnp.float32
    np.testing.assert_allclose(q.q(params, obs[0]), values[0], rtol=1e-4, atol=1e-5)
    assert layout_of(params).size > 0 and float(np.abs(values[0] - values[1]).max()) > 0


def test_dueling_is_the_value_plus_advantages_less_their_mean() -> None:
    q = net(dueling=True, hidden=())
    params, obs = jax.jit(q.init)(jax.random.key(0)), np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    head, value = (params["q"][name] for name in ("head", "value"))
    advantage = obs @ np.asarray(head["w"]) + np.asarray(head["b"])
    expected = obs @ np.asarray(value["w"]) + np.asarray(value["b"]) + advantage - advantage.mean(1, keepdims=True)
    np.testing.assert_allclose(q.q(params, obs), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize(("cell", "burn_in"), [("lstm", 2), ("gru", 0)])
def test_a_sequence_is_step_after_step(spec: EnvSpec, cell: str, burn_in: int) -> None:
    q = net(spec, cell=cell, cell_size=6, dueling=True)
    params, rng = jax.jit(q.init)(jax.random.key(0)), np.random.default_rng(0)
    obs = rng.integers(0, 255, (5, 3, *spec.obs.shape)).astype(spec.obs.dtype)
    first = rng.random((5, 3)) < 0.3
    carry = {name: rng.normal(size=a.shape).astype(np.float32) for name, a in q.initial_carry(3).items()}
    whole = q.sequence(params, obs, carry, first, burn_in)
    for t in range(5):
        values, carry = q.step(params, obs[t], carry, first[t])
        np.testing.assert_allclose(values, whole[t], rtol=1e-4, atol=1e-5)
    assert whole.shape == (5, 3, 5) and q.recurrent and not net().recurrent and net().initial_carry(3) == {}


def test_no_action_begins_ahead() -> None:
    q = net(hidden=(64, 64))
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    assert float(np.abs(q.q(jax.jit(q.init)(jax.random.key(0)), obs)).max()) < 0.1


@pytest.mark.parametrize("change", [{"hidden": (9,)}, {"activation": "tanh"}, {"dueling": True}, {"conv": ("4x3/2",)}])
def test_every_knob_is_read(change: dict[str, Any]) -> None:
    obs = np.random.default_rng(0).integers(0, 255, (4, *IMAGE.obs.shape)).astype(np.uint8)
    one, other = (q.q(jax.jit(q.init)(jax.random.key(0)), obs) for q in (net(IMAGE), net(IMAGE, **change)))
    assert np.asarray(one).tobytes() != np.asarray(other).tobytes()
    assert set(field_help(QNetConfig)) == set(QNetConfig.__dataclass_fields__)


def test_bad_layers_are_refused() -> None:
    with pytest.raises(BadInput, match=r"--net\.hidden"):
        net(hidden=(0,))
    with pytest.raises(BadInput, match="convolution 'x'"):
        net(conv=("x",))
    with pytest.raises(BadInput, match="needs at least 20x20 pixels"):
        net(IMAGE, conv=("4x20/2",))


def test_equal_nets_are_one() -> None:
    assert net() == net() and hash(net()) == hash(net()) and net() != net(dueling=True)
