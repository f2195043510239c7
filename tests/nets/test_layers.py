"""Dense, convolutional and recurrent layers against loops and formulas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from shoal.core.errors import BadInput
from shoal.nets import conv, recurrent
from shoal.nets.initial import Fill, Orthogonal, realise
from shoal.nets.mlp import mlp, plan_dense, plan_mlp

KEY = jax.random.key(0)


def anything(plan: dict) -> dict:
    """Params of a plan's shapes, without its care."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32), plan)


def test_orthogonal() -> None:
    shapes = {"wide": (8, 64), "tall": (64, 4), "square": (16, 16), "kernel": (3, 3, 2, 32)}
    plan = {name: Orthogonal(shape, 0.5) for name, shape in shapes.items()}
    draw = jax.jit(lambda key: realise(plan, key))
    one, same, other = draw(jax.random.key(0)), draw(jax.random.key(0)), draw(jax.random.key(1))
    for name, shape in shapes.items():
        assert one[name].shape == shape and one[name].dtype == np.float32
        w = np.asarray(one[name]).reshape(-1, shape[-1])
        gram = w @ w.T if w.shape[0] < w.shape[1] else w.T @ w
        np.testing.assert_allclose(gram, 0.25 * np.eye(min(w.shape)), atol=1e-6)
        assert np.array_equal(one[name], same[name]) and not np.array_equal(one[name], other[name])


def test_dense_and_fill() -> None:
    plan = {"dense": plan_dense(3, 5, 1.0), "rising": Fill((2, 3), (1.0, 2.0, 3.0))}
    params = jax.jit(lambda key: realise(plan, key))(KEY)
    assert not np.asarray(params["dense"]["b"]).any() and params["dense"]["b"].shape == (5,)
    assert np.asarray(params["rising"]).tolist() == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_mlp_is_its_formula(activation: str) -> None:
    params = anything(plan_mlp(3, (5, 4)))
    assert list(params) == ["hidden0", "hidden1"]
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    squash = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0)}[activation]
    oracle = x
    for layer in params.values():
        oracle = squash(oracle @ layer["w"] + layer["b"])
    found = jax.jit(lambda params, x: mlp(params, x, 2, activation))(params, x)
    np.testing.assert_allclose(found, oracle, atol=1e-5)


def test_mlp_gradient_by_finite_differences() -> None:
    with jax.enable_x64(True):
        params = jax.tree.map(lambda w: w.astype(np.float64), anything(plan_mlp(3, (4, 2))))
        vector, restore = ravel_pytree(params)
        flat = np.asarray(vector)
        x = np.random.default_rng(1).normal(size=(5, 3))

        @jax.jit
        def loss(vector):
            return jnp.sum(jnp.square(mlp(restore(vector), x, 2, "tanh") - 0.3))

        exact = jax.jit(jax.grad(loss))(flat)
        assert exact.dtype == jnp.float64
        steps = np.eye(len(flat)) * 1e-6
        found = [(float(loss(flat + step)) - float(loss(flat - step))) / 2e-6 for step in steps]
        np.testing.assert_allclose(exact, found, rtol=1e-6, atol=1e-8)


def test_convolution_is_its_loop() -> None:
    layers = ("4x3/2", "2x2/1")
    params = anything(conv.plan_conv(3, layers))
    image = np.random.default_rng(0).integers(0, 256, (2, 2, 9, 8, 3), np.uint8)
    x = image.reshape(4, 9, 8, 3) / 255.0
    for i, (kernel, stride) in enumerate(((3, 2), (2, 1))):
        w, b = (np.asarray(params[f"conv{i}"][name], np.float64) for name in ("w", "b"))
        rows, columns = ((size - kernel) // stride + 1 for size in x.shape[1:3])
        out = np.zeros((4, rows, columns, w.shape[-1]))
        for r in range(rows):
            for c in range(columns):
                patch = x[:, r * stride : r * stride + kernel, c * stride : c * stride + kernel]
                out[:, r, c] = np.maximum(np.einsum("nijc,ijcf->nf", patch, w) + b, 0)
        x = out
    found = np.asarray(jax.jit(conv.convolve, static_argnums=2)(params, image, layers))
    assert found.shape == (2, 2, conv.flat_size((9, 8, 3), layers))
    np.testing.assert_allclose(found.reshape(4, -1), x.reshape(4, -1), atol=1e-5)


@pytest.mark.parametrize(
    ("batch", "height", "width", "channels", "kernel", "stride"),
    [
        (24, 20, 20, 4, 8, 4),
        (8, 12, 14, 16, 4, 2),
        (5, 9, 9, 6, 3, 1),
        (3, 10, 13, 2, 3, 2),
        (20, 11, 7, 3, 5, 3),
        (1, 8, 8, 1, 2, 3),
        (2, 5, 5, 2, 5, 1),
    ],
)
def test_the_gradients_of_a_convolution_are_those_of_xla(
    batch: int, height: int, width: int, channels: int, kernel: int, stride: int
) -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x, w = rng.normal(size=(batch, height, width, channels)), rng.normal(size=(kernel, kernel, channels, 5))

        def theirs(x, w):
            numbers = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(x, w, (stride, stride), "VALID", dimension_numbers=numbers)

        def gradients(function):
            return jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(function(x, w))), (0, 1)))(x, w)

        ours = gradients(lambda x, w: conv.correlate(x, w, stride))
        for found, expected in zip(ours, gradients(theirs), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=1e-11)


@pytest.mark.parametrize("text", ["32", "32x8", "0x3/1", "3x3/0", "axb/c", "-1x3/1", "32x8/4 "])
def test_a_malformed_convolution_is_named(text: str) -> None:
    with pytest.raises(BadInput, match=r"filters x kernel / stride") as caught:
        conv.parse(text)
    assert repr(text) in str(caught.value)


def test_an_image_too_small_is_refused_with_layer_and_size() -> None:
    assert conv.flat_size((84, 84, 4), ("32x8/4", "64x4/2", "64x3/1")) == 3136
    with pytest.raises(BadInput, match=r"conv layer 2 \(64x4/2\) needs at least 4x4 pixels and gets 1x1 .* 10x10"):
        conv.flat_size((10, 10, 3), ("32x8/4", "64x4/2", "64x3/1"))


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def slow_step(params: dict, cell: str, x: np.ndarray, carry: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One step for one environment, gate by gate in float64."""
    w_x, w_h, b = (np.asarray(params[name], np.float64) for name in ("w_x", "w_h", "b"))
    n = len(carry["h"])
    driven = [x @ w_x[:, i * n : (i + 1) * n] + b[i * n : (i + 1) * n] for i in range(recurrent.GATES[cell])]
    remembered = [carry["h"] @ w_h[:, i * n : (i + 1) * n] for i in range(recurrent.GATES[cell])]
    if cell == "lstm":
        i, f, g, o = (d + r for d, r in zip(driven, remembered, strict=True))
        c = sigmoid(f + 1) * carry["c"] + sigmoid(i) * np.tanh(g)
        return {"h": sigmoid(o) * np.tanh(c), "c": c}
    r, z = (sigmoid(driven[k] + remembered[k]) for k in (0, 1))
    return {"h": (1 - z) * np.tanh(driven[2] + r * remembered[2]) + z * carry["h"]}


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_cell_against_the_oracle_with_resets(cell: str) -> None:
    t, b, inputs, n = 9, 3, 5, 4
    rng = np.random.default_rng(0)
    params = anything(recurrent.plan_cell(cell, inputs, n))
    x = rng.normal(size=(t, b, inputs)).astype(np.float32)
    first = rng.random((t, b)) < 0.3
    carry = {name: rng.normal(size=(b, n)).astype(np.float32) for name in recurrent.CARRIES[cell]}
    assert {name: state.shape for name, state in recurrent.zero_carry(cell, b, n).items()} == {
        name: state.shape for name, state in carry.items()
    }

    oracle = np.zeros((t, b, n))
    for env in range(b):
        state = {name: carry[name][env].astype(np.float64) for name in carry}
        for row in range(t):
            if first[row, env]:
                state = {name: np.zeros(n) for name in state}
            state = slow_step(params, cell, x[row, env], state)
            oracle[row, env] = state["h"]
    np.testing.assert_allclose(
        jax.jit(recurrent.scan, static_argnums=1)(params, cell, x, carry, first), oracle, atol=1e-5
    )

    one = jax.jit(recurrent.step, static_argnums=1)
    for row in range(t):
        output, carry = one(params, cell, x[row], carry, first[row])
        np.testing.assert_allclose(output, oracle[row], atol=1e-5)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_each_gate_begins_orthogonal(cell: str) -> None:
    params = jax.jit(lambda key: realise(recurrent.plan_cell(cell, 6, 4), key))(KEY)
    for block in np.split(np.asarray(params["w_h"]), recurrent.GATES[cell], -1):
        np.testing.assert_allclose(block @ block.T, np.eye(4), atol=1e-6)
    for block in np.split(np.asarray(params["w_x"]), recurrent.GATES[cell], -1):
        np.testing.assert_allclose(block.T @ block, np.eye(4), atol=1e-6)
    assert not np.asarray(params["b"]).any()


def test_bytes_are_scaled_without_a_layer_too() -> None:
    image = np.array([[[[0]], [[51]]], [[[102]], [[255]]]], np.uint8)
    assert np.asarray(conv.convolve({}, image, ())).ravel() == pytest.approx([0.0, 0.2, 0.4, 1.0])
