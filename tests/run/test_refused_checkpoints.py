"""Checkpoints that are not written, and those that are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.run.checkpoints import Checkpoints


def test_weights_that_are_not_finite_are_refused_and_the_earlier_ones_stay(tmp_path: Path) -> None:
    alerts: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=1, on_alert=alerts.append)
    good, bad = np.ones(3, np.float32), np.array([1.0, np.nan, 1.0], np.float32)
    box = np.full(2, np.inf, np.float32)  # bounds of nothing yet are no weights
    assert checkpoints.save(1, {"state/params/w": good, "state/extra/box": box}) is not None
    assert checkpoints.save(2, {"state/params/w": good, "state/params/b": bad}) is None
    assert checkpoints.load("last").step == 1 and checkpoints.steps() == [1]
    assert len(alerts) == 1 and "'state/params/b' is not finite" in alerts[0]


def test_without_a_score_there_is_no_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"w": np.ones(3)})
    with pytest.raises(
        BadInput, match=r"no best checkpoint in .*: none was saved after a full window of episodes; load the last"
    ):
        checkpoints.load("best")
    assert checkpoints.load("last").step == 1
