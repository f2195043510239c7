"""Keys by path."""

import numpy as np
import pytest

from shoal.core.keys import key_data, keys_in_a_row


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**40 + 5, 2**130 + 3])
@pytest.mark.parametrize("path", [(), (3,), (1, 0), (1, 2**33, 5)])
def test_keys_in_a_row_are_the_keys_one_by_one(seed: int, path: tuple[int, ...]) -> None:
    """NumPy's own SeedSequence is the oracle."""
    row = keys_in_a_row(seed, *path, first=10, count=5)
    np.testing.assert_array_equal(row, [key_data(seed, *path, at) for at in range(10, 15)])
