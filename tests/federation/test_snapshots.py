"""Snapshots of a parent's weights: one at every multiple, within the memory limit, none twice."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.federation import snapshots, state
from shoal.federation.snapshots import Snapshots
from shoal.federation.state import State

START = state.start(np.zeros(4, np.float32))


def after(updates: int) -> State:
    return START._replace(version=updates, weights=np.full(4, updates, np.float32), steps=10 * updates)


def test_every_multiple_is_kept_once() -> None:
    made = Snapshots(3, START)
    for updates in (0, 1, 2, 3, 3, 4, 6, 7):
        made.note(after(updates), 1.0)
    assert [(one.updates, one.steps, one.weights[0]) for one in made.kept] == [(3, 30, 3.0), (6, 60, 6.0)]


def test_the_first_state_after_a_skipped_multiple_says_which_it_is() -> None:
    made = Snapshots(3, START)
    for updates in (2, 4, 5, 6):
        made.note(after(updates), 1.0)
    assert [one.updates for one in made.kept] == [4, 6]


def test_a_restarted_parent_goes_on_at_the_next_multiple() -> None:
    made = Snapshots(3, after(4))
    for updates in (4, 5, 6):
        made.note(after(updates), 1.0)
    assert [one.updates for one in made.kept] == [6]


def test_none_are_kept_unless_asked_for() -> None:
    made = Snapshots(0, START)
    made.note(after(100), 1.0)
    assert made.kept == []


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST", 2 * 4 * 4)
    made = Snapshots(1, START)
    for updates in range(1, 6):
        made.note(after(updates), 1.0)
    assert [one.updates for one in made.kept] == [1, 2] and made.dropped == 3
