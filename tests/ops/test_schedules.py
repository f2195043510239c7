from __future__ import annotations

import numpy as np
import pytest

from shoal.ops.schedules import linear


@pytest.mark.parametrize(("progress", "value"), [(-1, 3.0), (0, 3.0), (0.25, 2.5), (1, 1.0), (2, 1.0)])
def test_linear(progress: float, value: float) -> None:
    np.testing.assert_allclose(linear(3.0, 1.0, progress), value, rtol=1e-6)


def test_linear_ends_exactly() -> None:
    assert float(linear(2.5e-3, 2.5e-4, 1.0)) == np.float32(2.5e-4)
