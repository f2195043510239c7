"""The actor-critic as a whole: shapes, names, determinism, what may read what, scan against steps."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.config import build, field_help
from shoal.core.errors import BadInput
from shoal.core.spec import ActionSpec, Binary, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.weights import layout_of, params_hash
from shoal.nets.actor_critic import FIRST_LOG_STD, ActorCritic, Net, NetConfig
from shoal.ops.distributions import parameter_size

DISCRETE = ActionSpec((Categorical((4,)),), scalar=True)
BOX = ActionSpec((Continuous((-1.0, -2.0), (1.0, 2.0)),))
MIXED = ActionSpec((Continuous((-1.0,), (1.0,)), Categorical((3, 2)), Continuous((0.0, 0.0), (1.0, 1.0)), Binary(2)))
VECTOR, IMAGE = ObsSpec((8,)), ObsSpec((12, 10, 3), "uint8")
SMALL = {"hidden": (16, 12), "cell_size": 6, "conv": ("4x4/2", "3x2/1")}
KINDS: dict[str, dict[str, Any]] = {
    "separate": {},
    "shared": {"shared": True},
    "lstm": {"cell": "lstm"},
    "gru": {"cell": "gru", "shared": True},
    "linear": {"hidden": ()},
    "state_scale": {"state_scale": True},
}


@cache
def make(kind: str, obs: ObsSpec = VECTOR, action: ActionSpec = DISCRETE) -> tuple[ActorCritic, Any]:
    """A net with weights as they might be after some training."""
    net = ActorCritic(NetConfig(**{**SMALL, **KINDS[kind]}), EnvSpec("e", obs, action))
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(net.init, jax.random.key(0))
    return net, jax.tree.map(lambda leaf: (0.3 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)


@cache
def begin(kind: str, action: ActionSpec) -> tuple[ActorCritic, Any]:
    """A net with its first weights."""
    net, _ = make(kind, action=action)
    return net, jax.jit(net.init)(jax.random.key(0))


def observe(obs: ObsSpec, *leading: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if obs.is_image:
        return rng.integers(0, 256, (*leading, *obs.shape), np.uint8)
    return rng.normal(size=(*leading, *obs.shape)).astype(np.float32)


@pytest.mark.parametrize("obs", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_what_reads_what(kind: str, obs: ObsSpec) -> None:
    net, params = make(kind, obs, MIXED)
    t, b, size = 5, 3, parameter_size(MIXED)
    x, first, carry = observe(obs, t, b), np.zeros((t, b), bool), net.initial_carry(b)
    assert set(carry) == {"lstm": {"h", "c"}, "gru": {"h"}}.get(net.config.cell, set())
    assert all(not np.asarray(state).any() for state in carry.values())

    logits, value = jax.jit(net.forward)(params, x, carry, first)
    assert logits.shape == (t, b, size) and value.shape == (t, b)
    assert logits.dtype == value.dtype == jnp.float32
    np.testing.assert_allclose(jax.jit(net.value)(params, x, carry, first), value, atol=1e-5)

    without_value = {name: part for name, part in params.items() if name != "value"}
    step, after = jax.jit(net.policy)(without_value, x[0], carry, first[0])
    assert step.shape == (b, size) and set(after) == set(carry)
    np.testing.assert_allclose(step, logits[0], atol=1e-5)
    if not net.shared:
        jax.eval_shape(net.value, {"value": params["value"]}, x, carry, first)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_scan_is_step_by_step_with_resets(kind: str) -> None:
    net, params = make(kind)
    t, b = 7, 4
    x = observe(VECTOR, t, b)
    first = np.random.default_rng(1).random((t, b)) < 0.3
    carry = {k: np.random.default_rng(2).normal(size=(b, 6)).astype(np.float32) for k in net.initial_carry(b)}
    logits, _ = jax.jit(net.forward)(params, x, carry, first)
    state, step = carry, jax.jit(net.policy)
    for row in range(t):
        one, state = step(params, x[row], state, first[row])
        np.testing.assert_allclose(one, logits[row], atol=1e-5)
    unreset, _ = jax.jit(net.forward)(params, x, carry, np.zeros_like(first))
    assert not np.allclose(unreset, logits, atol=1e-4)


def test_a_reset_forgets_all_that_came_before() -> None:
    net, params = make("lstm")
    x, other = observe(VECTOR, 4, 2), observe(VECTOR, 4, 2, seed=9)
    other[2:] = x[2:]
    first = np.zeros((4, 2), bool)
    first[2] = True
    (_, a), (_, b) = (jax.jit(net.forward)(params, obs, net.initial_carry(2), first) for obs in (x, other))
    assert np.array_equal(a[2:], b[2:]) and not np.array_equal(a[:2], b[:2])


def test_feed_forward_takes_any_leading_axes() -> None:
    net, params = make("separate")
    x = observe(VECTOR, 2, 3, 4)
    logits, value = jax.jit(net.forward)(params, x, {}, None)
    flat_logits, flat_value = jax.jit(net.forward)(params, x.reshape(24, 8), {}, None)
    np.testing.assert_allclose(logits.reshape(24, -1), flat_logits, atol=1e-6)
    np.testing.assert_allclose(value.reshape(24), flat_value, atol=1e-6)
    assert jax.eval_shape(net.forward, params, x[0, 0, 0], {}, None)[1].shape == ()


def test_names_of_weights() -> None:
    assert [name for name in layout_of(make("separate", action=BOX)[1]).names if name.endswith(("w", "std"))] == [
        "policy/head/w",
        "policy/log_std",
        "policy/trunk/hidden0/w",
        "policy/trunk/hidden1/w",
        "value/head/w",
        "value/trunk/hidden0/w",
        "value/trunk/hidden1/w",
    ]
    names = layout_of(make("lstm", IMAGE)[1]).names
    assert {n.split("/")[0] for n in names} == {"trunk", "policy", "value"}
    assert {n.split("/")[1] for n in names if n.startswith("trunk")} == {"cell", "conv0", "conv1", "hidden0", "hidden1"}


def test_first_weights() -> None:
    net, params = begin("separate", BOX)
    policy, value = np.asarray(params["policy"]["head"]["w"]), np.asarray(params["value"]["head"]["w"])
    np.testing.assert_allclose(policy.T @ policy, 1e-4 * np.eye(2), atol=1e-8)
    np.testing.assert_allclose(value.T @ value, [[1]], atol=1e-5)
    hidden = np.asarray(params["value"]["trunk"]["hidden1"]["w"])
    np.testing.assert_allclose(hidden.T @ hidden, 2 * np.eye(12), atol=1e-5)
    assert not np.array_equal(hidden, params["policy"]["trunk"]["hidden1"]["w"])
    biases = [w for path, w in jax.tree.leaves_with_path(params) if path[-1].key == "b"]
    assert biases and not any(np.asarray(b).any() for b in biases)
    assert params_hash(params) == params_hash(jax.jit(net.init)(jax.random.key(0)))
    assert params_hash(params) != params_hash(jax.jit(net.init)(jax.random.key(1)))


@pytest.mark.parametrize("kind", ["separate", "state_scale"])
def test_log_std_sits_where_the_distribution_reads_it(kind: str) -> None:
    net, params = begin(kind, MIXED)
    policy = jax.jit(net.policy)
    logits, _ = policy(params, 50 * observe(VECTOR, 4), {}, None)
    # Continuous(1): mean, log_std; Categorical: 5 logits; Continuous(2): 2 means, 2 log_stds; Binary: 2 logits
    scale, rest = np.asarray(logits)[:, [1, 9, 10]], np.delete(np.asarray(logits), [1, 9, 10], 1)
    np.testing.assert_allclose(scale, FIRST_LOG_STD, atol=0.1)
    assert (np.ptp(scale, 0) > 0).all() == (kind == "state_scale")
    assert np.abs(rest).max() < 0.1 and (np.ptp(rest, 0) > 0).all()
    if kind == "separate":
        params = {**params, "policy": {**params["policy"], "log_std": jnp.array([1.0, 2.0, 3.0])}}
        np.testing.assert_array_equal(
            np.asarray(net.policy(params, observe(VECTOR, 4), {}, None)[0])[0, [1, 9, 10]], [1, 2, 3]
        )


def test_bytes_are_scaled_and_floats_are_not() -> None:
    net, params = make("shared", IMAGE)
    x = observe(IMAGE, 2)
    value = jax.jit(net.value)
    scaled = (x / 255).astype(np.float32)
    np.testing.assert_allclose(value(params, x, {}, None), value(params, scaled, {}, None), atol=1e-5)


def test_an_image_too_small_is_refused_before_anything_starts() -> None:
    with pytest.raises(BadInput, match="conv layer 2"):
        ActorCritic(NetConfig(), EnvSpec("tiny", ObsSpec((10, 10, 3), "uint8"), DISCRETE))


@pytest.mark.parametrize(
    ("field", "value"),
    [("conv", ("big",)), ("hidden", (64, 0)), ("cell_size", 0), ("activation", "gelu"), ("cell", "rnn")],
)
def test_a_bad_setting_is_refused_also_from_python(field: str, value: Any) -> None:
    with pytest.raises(BadInput):
        ActorCritic(NetConfig(**{field: value}), EnvSpec("e", VECTOR, DISCRETE))


def test_the_wrong_observation_is_refused() -> None:
    net, params = make("separate")
    with pytest.raises(AssertionError):
        net.value(params, np.zeros((3, 7), np.float32), {}, None)


def test_equal_nets_are_one_to_the_compiler() -> None:
    one, other = (ActorCritic(NetConfig(), EnvSpec("e", VECTOR, BOX)) for _ in range(2))
    assert one == other and hash(one) == hash(other)
    net: Net = one  # the protocol holds
    assert not net.recurrent and make("gru")[0].recurrent


def test_settings_come_from_words_and_every_one_explains_itself() -> None:
    config = build(NetConfig, {"hidden": "32,16", "activation": "relu", "shared": "true", "conv": "8x3/1"})
    assert config == NetConfig(hidden=(32, 16), activation="relu", shared=True, conv=("8x3/1",))
    assert set(field_help(NetConfig)) == set(NetConfig.__dataclass_fields__)
    for bad in ({"hidden": "0"}, {"activation": "gelu"}, {"cell_size": 0}, {"cell": "rnn"}):
        with pytest.raises(BadInput):
            build(NetConfig, bad)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": (16, 11)},
        {"activation": "relu"},
        {"shared": True},
        {"cell": "gru"},
        {"cell": "gru", "cell_size": 7},
        {"state_scale": True},
        {"conv": ("4x4/2",)},
    ],
    ids=lambda change: ",".join(change),
)
def test_every_setting_is_read(change: dict[str, Any]) -> None:
    spec = EnvSpec("e", IMAGE, BOX)
    base = NetConfig(**{**SMALL, "cell": "gru"}) if "cell_size" in change else NetConfig(**SMALL)
    nets = [ActorCritic(config, spec) for config in (base, NetConfig(**{**SMALL, **change}))]

    def outcome(net: ActorCritic) -> tuple[str, str]:
        """The weights' layout and what is computed with them."""
        params = jax.eval_shape(net.init, jax.random.key(0))
        args = (params, observe(IMAGE, 1, 2), net.initial_carry(2), np.zeros((1, 2), bool))
        return layout_of(params).fingerprint, str(jax.make_jaxpr(net.forward)(*args))

    assert outcome(nets[0]) == outcome(ActorCritic(base, spec))
    assert outcome(nets[0]) != outcome(nets[1])


def test_settings_load_without_jax() -> None:
    import subprocess
    import sys

    code = "import sys, shoal.nets; assert shoal.nets.NetConfig().hidden == (64, 64); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
