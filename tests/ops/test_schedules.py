from __future__ import annotations

import jax
import numpy as np
import pytest

from shoal.ops.schedules import linear


@pytest.mark.parametrize(("progress", "value"), [(-1, 3.0), (0, 3.0), (0.25, 2.5), (1, 1.0), (2, 1.0)])
def test_linear(progress: float, value: float) -> None:
    np.testing.assert_allclose(linear(3.0, 1.0, progress), value, rtol=1e-6)


def test_linear_ends_exactly() -> None:
    assert float(linear(2.5e-3, 2.5e-4, 1.0)) == np.float32(2.5e-4)


@pytest.mark.parametrize("value", [1e-3, 3e-4, 2.5e-4, 7e-4, 1e-4])
def test_linear_between_equal_ends_is_constant(value: float) -> None:
    """To the last bit, also early in a long budget: a constant rate must not depend on how long a run may become."""
    shares = np.concatenate([np.linspace(0, 1, 1001), np.arange(1000) * 16e-9, 1 - np.arange(1000) * 6e-8])
    found = jax.jit(jax.vmap(lambda share: linear(value, value, share)))(shares.astype(np.float32))
    np.testing.assert_array_equal(found, np.float32(value))
