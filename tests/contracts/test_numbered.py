"""Nothing is lost, doubled or torn on the way through a queue, however the two sides are delayed."""

from __future__ import annotations

from typing import Any

import pytest
import stream_roles

from shoal.core.program import Report
from shoal.runtimes import RUNTIMES

LANES = 2


def passed(runtime: str, pushes: int, **spec: Any) -> dict[str, Any]:
    made = RUNTIMES[runtime]
    session = made(made.Config()).start(stream_roles.numbered(LANES, pushes, **spec), lambda: False)
    try:
        event = next(iter(session))
        assert isinstance(event, Report), event
        state: dict[str, Any] = event.state
        return state
    finally:
        session.close()


# A stream whose producers may end is copied under locks; the plain one is read in place.
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_every_slot_arrives_once_and_whole(runtime: str, ends: bool) -> None:
    assert passed(runtime, 3000, ends=ends) == {"wrong": [], "torn": 0, "counts": [3000] * LANES}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ends", [False, True])
def test_a_million_slots_between_processes(ends: bool) -> None:
    each = 1_000_000 // LANES
    assert passed("processes", each, ends=ends) == {"wrong": [], "torn": 0, "counts": [each] * LANES}
