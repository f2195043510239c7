"""How JAX is used: that random bits are compiled straight, and are JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np


def bits(key: jax.Array) -> jax.Array:
    return jax.random.bits(key, (3,))


def test_random_bits_take_no_loop() -> None:
    assert "while" not in jax.jit(bits).lower(jax.random.key(0)).as_text()


def test_random_bits_are_those_of_the_paper() -> None:
    """Salmon et al. 2011: their Threefry-2x32-20 of counter and key (pi), from their known-answer file."""
    from jax.extend.random import threefry_2x32

    key, counter = jnp.array([0x13198A2E, 0x03707344], jnp.uint32), jnp.array([0x243F6A88, 0x85A308D3], jnp.uint32)
    np.testing.assert_array_equal(np.asarray(threefry_2x32(key, counter)), [0xC4923A9C, 0x483DF7A0])
