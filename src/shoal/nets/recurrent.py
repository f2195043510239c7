"""Recurrent cells: `{"w_x": [inputs, gates n], "w_h": [n, gates n], "b": [gates n]}`, and their scan over an unroll.

| cell | gates, in order | carry |
| --- | --- | --- |
| lstm | input, forget, candidate, output | h, c |
| gru | reset, update, candidate | h |
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Params
from shoal.core.trajectory import Array
from shoal.nets.initial import Fill, Orthogonal, Plan

Carry = dict[str, Array]

GATES = {"lstm": 4, "gru": 3}
CARRIES = {"lstm": ("h", "c"), "gru": ("h",)}


def plan_cell(cell: str, inputs: int, size: int) -> Plan:
    """One orthogonal block per gate, zero biases."""
    gates = GATES[cell]
    return {
        "w_x": Orthogonal((inputs, gates * size), 1.0, blocks=gates),
        "w_h": Orthogonal((size, gates * size), 1.0, blocks=gates),
        "b": Fill((gates * size,)),
    }


def zero_carry(cell: str, envs: int, size: int) -> Carry:
    return {name: jnp.zeros((envs, size), jnp.float32) for name in CARRIES[cell]}


def step(params: Params, cell: str, x: Array, carry: Carry, first: Array) -> tuple[Array, Carry]:
    """One step: x [B, inputs], carry {[B, n]}, first [B] -> (output [B, n], carry)."""
    assert first.shape == x.shape[:-1], (first.shape, x.shape)
    return _advance(params, cell, x @ params["w_x"] + params["b"], carry, first)


def scan(params: Params, cell: str, x: Array, carry: Carry, first: Array) -> Array:
    """The outputs [T, B, n] of x [T, B, inputs] with first [T, B], from the carry before row 0."""
    return _unroll(params, cell, x, carry, first)[0]


def scan_after_burn_in(params: Params, cell: str, x: Array, carry: Carry, first: Array, burn_in: int) -> Array:
    """`scan` through whose carry no gradient passes from row `burn_in` to the rows before it."""
    if not burn_in:
        return scan(params, cell, x, carry, first)
    before, carry = _unroll(params, cell, x[:burn_in], carry, first[:burn_in])
    after, _ = _unroll(params, cell, x[burn_in:], jax.lax.stop_gradient(carry), first[burn_in:])
    return jnp.concatenate([before, after])


def _unroll(params: Params, cell: str, x: Array, carry: Carry, first: Array) -> tuple[Array, Carry]:
    assert first.shape == x.shape[:-1] and x.ndim == 3, (first.shape, x.shape)
    driven = x @ params["w_x"] + params["b"]  # all rows in one product; only h depends on the previous row

    def row(carry: Carry, now: tuple[Array, Array]) -> tuple[Carry, Array]:
        output, carry = _advance(params, cell, now[0], carry, now[1])
        return carry, output

    carry, outputs = jax.lax.scan(row, carry, (driven, first))
    return outputs, carry


def _advance(params: Params, cell: str, driven: Array, carry: Carry, first: Array) -> tuple[Array, Carry]:
    """(output, carry) after one step; where `first`, the carry starts from zero."""
    kept = {name: jnp.where(first[..., None], 0.0, state) for name, state in carry.items()}
    return _CELLS[cell](driven, kept["h"] @ params["w_h"], kept)


def _lstm(driven: Array, remembered: Array, carry: Carry) -> tuple[Array, Carry]:
    """Hochreiter and Schmidhuber 1997, with forget gates; their bias of 1 makes a new cell remember."""
    i, f, g, o = jnp.split(driven + remembered, 4, -1)
    c = jax.nn.sigmoid(f + 1.0) * carry["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h, {"h": h, "c": c}


def _gru(driven: Array, remembered: Array, carry: Carry) -> tuple[Array, Carry]:
    """Cho et al. 2014; the reset gate acts after the product, as in cuDNN."""
    (r_x, z_x, n_x), (r_h, z_h, n_h) = jnp.split(driven, 3, -1), jnp.split(remembered, 3, -1)
    r, z = jax.nn.sigmoid(r_x + r_h), jax.nn.sigmoid(z_x + z_h)
    h = (1.0 - z) * jnp.tanh(n_x + r * n_h) + z * carry["h"]
    return h, {"h": h}


_CELLS = {"lstm": _lstm, "gru": _gru}
