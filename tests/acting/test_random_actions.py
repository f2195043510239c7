"""Actions that stray: as often as said, evenly, and the slot says what was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from shoal.acting.random_actions import RandomActions
from shoal.core.spec import ActionSpec, Binary, Categorical, Continuous

B, STEPS = 50, 200


class FakeRows:
    """Remembers the actions that it was given."""

    def __init__(self) -> None:
        self.obs, self.first = np.zeros((B, 1), np.float32), np.ones(B, bool)
        self.made: list[np.ndarray] = []

    def begin(self, slot: Any, fresh: bool = False, starts: Any = None) -> None:
        return None

    def step(self, slot: Any, t: int, action: np.ndarray) -> None:
        self.made.append(np.array(action))
        self.obs = self.obs + 1

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"steps": np.array([len(self.made)])}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        assert set(arrays) == {"steps"}

    def close(self) -> None:
        return None


def made(action: ActionSpec, epsilon: float, given: np.ndarray, seed: int = 0) -> np.ndarray:
    rows = FakeRows()
    actions = RandomActions(rows, action, epsilon, seed, 0)
    actions.begin({})
    for t in range(STEPS):
        actions.step({}, t, given)
        assert (actions.obs == t + 1).all()
    return np.stack(rows.made)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0])
def test_as_often_as_said_and_evenly(epsilon: float) -> None:
    actions = made(ActionSpec((Categorical((4,)),), scalar=True), epsilon, np.full(B, 3, np.int32))
    count = STEPS * B
    for other in range(3):
        share = (actions == other).sum() / count
        assert abs(share - epsilon / 4) < 5 * np.sqrt(epsilon / 4 / count)


def test_every_part_of_an_action_strays_within_its_range() -> None:
    spec = ActionSpec((Continuous((-5.0, 0.0), (5.0, 1.0)), Binary(1), Categorical((3, 2))))
    actions = made(spec, 1.0, np.full((B, 5), 9, np.float32))
    assert actions.dtype == np.float32
    flat = actions.reshape(-1, 5)
    assert (np.abs(flat[:, :2]) <= 1).all() and flat[:, :2].std() > 0.5
    for column, choices in ((2, 2), (3, 3), (4, 2)):
        assert set(np.unique(flat[:, column])) == set(range(choices))


def test_the_same_seed_strays_alike_and_a_snapshot_goes_on() -> None:
    spec, given = ActionSpec((Categorical((4,)),), scalar=True), np.zeros(B, np.int32)
    np.testing.assert_array_equal(made(spec, 0.5, given), made(spec, 0.5, given))
    assert not np.array_equal(made(spec, 0.5, given), made(spec, 0.5, given, seed=1))
    first, second = FakeRows(), FakeRows()
    before = RandomActions(first, spec, 0.5, 0, 0)
    before.begin({})
    after = RandomActions(second, spec, 0.5, 0, 0)
    after.restore(before.snapshot())
    for actions in (before, after):
        actions.begin({})
        actions.step({}, 0, given)
    np.testing.assert_array_equal(first.made[-1], second.made[-1])
