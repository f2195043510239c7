"""Tables between roles that run at the same time: nothing is lost under a lock, and what is lost without one is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import table_roles
from table_roles import TURNS

from shoal.core.program import Fault, Report
from shoal.runtimes import RUNTIMES


def outcome(runtime: str, consistency: str, pusher: Any = table_roles.Pusher) -> tuple[Any, list[Fault]]:
    """What the table holds after two workers have pushed, and what broke meanwhile."""
    made = RUNTIMES[runtime]
    session = made(made.Config()).start(table_roles.program(consistency, pusher), lambda: False)
    faults = []
    try:
        for event in session:
            if isinstance(event, Report):
                return event.state, faults
            faults.append(event)
    finally:
        session.close()
    raise AssertionError("the session ended without a report")


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_under_a_lock_nothing_is_lost_and_nobody_sees_half_a_version(runtime: str) -> None:
    state, faults = outcome(runtime, "lock")
    assert state["count"] == TURNS and (state["vector"] == TURNS).all()
    assert state["torn"] == 0 and state["lost"] == 0 and not faults
    assert sum(state["turns"]) == TURNS and min(state["turns"]) > 0
    if runtime == "inline":
        assert state["turns"] == [TURNS // 2] * 2


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_hogwild_knows_what_it_loses(runtime: str) -> None:
    state, _ = outcome(runtime, "hogwild")
    assert state["count"] == TURNS, "pushes are counted exactly, whatever becomes of what they add"
    missing = TURNS - state["vector"]
    assert (missing >= 0).all() and (missing < TURNS / 2).all()
    np.testing.assert_allclose(state["lost"], missing[::20].mean() / TURNS, rtol=1e-6)
    if runtime == "inline":
        assert state["lost"] == 0


def test_a_worker_that_dies_inside_a_push_leaves_nothing_and_its_turn_to_the_next() -> None:
    state, faults = outcome("processes", "lock", table_roles.Dying)
    assert [fault.kind for fault in faults] == ["actor_died"]
    assert state["count"] == TURNS and (state["vector"] == TURNS).all() and state["torn"] == 0
