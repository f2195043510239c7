"""The compiled update: lanes stand side by side."""

from __future__ import annotations

import numpy as np

from shoal.core.trajectory import Trajectory
from shoal.learning.compiled_update import side_by_side

T, B = 6, 2


def test_lanes_stand_side_by_side_in_their_order() -> None:
    def lane(value: int) -> Trajectory:
        grid, tall = np.full((T, B), value), np.full((T + 1, B), value)
        return Trajectory(tall, grid, grid, grid, grid, grid, tall, {"x": grid}, {"h": np.full((B, 3), value)}, grid)

    whole = side_by_side([lane(1), lane(2), lane(3)])
    assert (
        whole.obs.shape == (T + 1, 3 * B)
        and whole.extras["x"].shape == (T, 3 * B)
        and whole.carry["h"].shape == (3 * B, 3)
    )
    for array in (whole.action[0], whole.carry["h"][:, 0], whole.obs[-1]):
        np.testing.assert_array_equal(array, np.repeat([1, 2, 3], B))
