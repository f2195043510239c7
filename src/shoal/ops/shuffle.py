"""A random order without a sort: XLA sorts 4,096 numbers on a CPU in 0.7 ms, longer than a minibatch takes to learn from.

A Feistel network is a permutation of [0, 2^2w) for any round function. Values outside [0, n) are mapped again until they fall
inside ("cycle walking"), which gives a permutation of [0, n): Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.core.trajectory import Array

ROUNDS = 6


def shuffled(key: Array, n: int) -> Array:
    """The numbers 0 ... n - 1 in an order determined by `key`: [n] int32."""
    half = max(1, -(-max(1, (n - 1).bit_length()) // 2))  # bits of each half
    mask = jnp.uint32((1 << half) - 1)
    keys = jax.random.bits(key, (ROUNDS,))

    def network(x: Array) -> Array:
        left, right = x >> half, x & mask
        for i in range(ROUNDS):
            left, right = right, left ^ (_mixed(right, keys[i]) & mask)
        return (left << half) | right

    def outside(x: Array) -> Array:
        return (x >= n).any()

    def again(x: Array) -> Array:
        return jnp.where(x >= n, network(x), x)

    return jax.lax.while_loop(outside, again, network(jnp.arange(n, dtype=jnp.uint32))).astype(jnp.int32)


def _mixed(x: Array, key: Array) -> Array:
    """MurmurHash3's finaliser: every bit of the input reaches every bit of the output."""
    x = x * jnp.uint32(0x9E3779B1) ^ key
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
