from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest


def _agrees(f: Callable[..., jax.Array], *args: np.ndarray, eps: float = 1e-6) -> None:
    """The gradient of a scalar function against central differences in every coordinate, in float64."""
    with jax.enable_x64(True):
        compiled = jax.jit(f)
        exact = jax.jit(jax.grad(f, argnums=tuple(range(len(args)))))(*args)
        assert compiled(*args).dtype == np.float64 and compiled(*args).shape == ()
        for n, (arg, gradient) in enumerate(zip(args, exact, strict=True)):
            found = np.zeros_like(arg)
            for at in np.ndindex(arg.shape):
                step = np.zeros_like(arg)
                step[at] = eps
                up, down = (compiled(*args[:n], arg + sign * step, *args[n + 1 :]) for sign in (1, -1))
                found[at] = (float(up) - float(down)) / (2 * eps)
            np.testing.assert_allclose(gradient, found, rtol=1e-6, atol=1e-8)


@pytest.fixture
def gradient_agrees_with_differences() -> Callable[..., None]:
    return _agrees
