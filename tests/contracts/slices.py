"""A check that contracts of both kinds of algorithms share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def assert_valid_on_any_slice(optimiser: Any) -> None:
    """An optimiser that updates two slices of a vector makes the same of them as of the whole."""
    rng, vector = np.random.default_rng(0), jnp.zeros(10, jnp.float32)
    whole, parts = optimiser.init(vector), [optimiser.init(vector[:3]), optimiser.init(vector[3:])]
    for _ in range(3):
        grads = jnp.asarray(rng.normal(size=10), jnp.float32)
        expected, whole = optimiser.update(grads, whole, vector)
        first, parts[0] = optimiser.update(grads[:3], parts[0], vector[:3])
        second, parts[1] = optimiser.update(grads[3:], parts[1], vector[3:])
        np.testing.assert_allclose(jnp.concatenate([first, second]), expected, rtol=1e-6)
