"""Dense layers: `{"w": [inputs, outputs], "b": [outputs]}`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Params
from shoal.core.trajectory import Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu}
HIDDEN_GAIN = sqrt(2.0)


def orthogonal(key: Array, shape: tuple[int, ...], gain: float) -> Array:
    """Rows or columns (whichever are fewer) orthogonal, each of length `gain`; the last axis is the outputs.

    Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks".
    """
    weights: Array = jax.nn.initializers.orthogonal(gain)(key, shape, jnp.float32)
    return weights


def init_dense(key: Array, inputs: int, outputs: int, gain: float) -> Params:
    """Orthogonal weights, zero biases."""
    return {"w": orthogonal(key, (inputs, outputs), gain), "b": jnp.zeros(outputs, jnp.float32)}


def dense(params: Params, x: Array) -> Array:
    """[..., inputs] -> [..., outputs]."""
    return x @ params["w"] + params["b"]


def init_mlp(key: Array, inputs: int, widths: Sequence[int]) -> Params:
    """`hidden0`, `hidden1`, ...: one dense layer a width."""
    keys = jax.random.split(key, max(1, len(widths)))
    ins = (inputs, *widths[:-1])
    return {
        f"hidden{i}": init_dense(keys[i], n, width, HIDDEN_GAIN)
        for i, (n, width) in enumerate(zip(ins, widths, strict=False))
    }


def mlp(params: Params, x: Array, layers: int, activation: str) -> Array:
    """The layers in turn, each followed by the activation: [..., inputs] -> [..., widths[-1]]."""
    for i in range(layers):
        x = ACTIVATIONS[activation](dense(params[f"hidden{i}"], x))
    return x
