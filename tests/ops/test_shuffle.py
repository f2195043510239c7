"""Orders without a sort: one to one, even, and different for different keys."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from shoal.ops.shuffle import shuffled


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 17, 100, 1000, 4096, 5000])
def test_every_number_comes_once(n: int) -> None:
    order = np.asarray(jax.jit(shuffled, static_argnums=1)(jax.random.key(n), n))
    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


def orders(n: int, keys: int) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(lambda k: shuffled(k, n)))(jax.random.split(jax.random.key(7), keys)))


@pytest.mark.parametrize("n", [16, 23])
def test_every_place_is_as_likely_as_every_other(n: int) -> None:
    seen = orders(n, 20_000)
    counts = np.stack([np.bincount(seen[:, place], minlength=n) for place in range(n)])
    expected = len(seen) / n
    chi2 = ((counts - expected) ** 2 / expected).sum()
    # Rows and columns of the table of counts each add up to the number of orders.
    assert stats.chi2.sf(chi2, (n - 1) ** 2) > 1e-4


def test_neighbours_part() -> None:
    """Which numbers share a quarter of the order is as in a uniform one: 3/15 for any pair of 16."""
    seen = orders(16, 20_000)
    quarter = np.argsort(seen, axis=1) // 4  # of each number
    shares = np.array([(quarter[:, i] == quarter[:, j]).mean() for i in range(16) for j in range(i)])
    spread = np.sqrt(0.2 * 0.8 / len(seen))
    assert abs(shares.mean() - 0.2) < spread and np.abs(shares - 0.2).max() < 5 * spread


def test_another_key_is_another_order() -> None:
    seen = orders(4096, 8)
    same = [(seen[i] == seen[j]).mean() for i in range(8) for j in range(i)]
    assert max(same) < 0.01
