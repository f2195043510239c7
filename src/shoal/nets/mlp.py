"""Dense layers: `{"w": [inputs, outputs], "b": [outputs]}`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Params
from shoal.core.trajectory import Array
from shoal.nets.initial import Fill, Orthogonal, Plan

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu}
HIDDEN_GAIN = sqrt(2.0)


def plan_dense(inputs: int, outputs: int, gain: float) -> Plan:
    """Orthogonal weights, zero biases."""
    return {"w": Orthogonal((inputs, outputs), gain), "b": Fill((outputs,))}


def dense(params: Params, x: Array) -> Array:
    """[..., inputs] -> [..., outputs]."""
    return x @ params["w"] + params["b"]


def plan_mlp(inputs: int, widths: Sequence[int]) -> Plan:
    """`hidden0`, `hidden1`, ...: one dense layer per width."""
    ins = (inputs, *widths[:-1])
    return {
        f"hidden{i}": plan_dense(n, width, HIDDEN_GAIN) for i, (n, width) in enumerate(zip(ins, widths, strict=False))
    }


def mlp(params: Params, x: Array, layers: int, activation: str) -> Array:
    """The layers in turn, each followed by the activation: [..., inputs] -> [..., widths[-1]]."""
    for i in range(layers):
        x = ACTIVATIONS[activation](dense(params[f"hidden{i}"], x))
    return x
