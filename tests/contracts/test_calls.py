"""Call between roles that run at the same time, on every runtime that makes it; its contract is in `test_ports`."""

from __future__ import annotations

import call_roles
import numpy as np
import pytest

from shoal.core.program import Report
from shoal.runtimes import RUNTIMES


@pytest.mark.parametrize("name", ["inline", "threads", "processes"])
def test_every_question_is_answered_once_and_nobody_is_forgotten(name: str) -> None:
    """Four clients and two servers on the runtime itself: a lost ring would show as a wait of a whole pause."""
    runtime = RUNTIMES[name]
    session = runtime(runtime.Config()).start(call_roles.hammer(), lambda: False)
    try:
        event = next(iter(session))
        assert isinstance(event, Report), event
        found = event.state
    finally:
        session.close()
    assert [one["wrong"] for one in found] == [0] * call_roles.CLIENTS
    assert sum(one["slow"] for one in found) <= 0.02 * call_roles.CLIENTS * call_roles.QUESTIONS
    assert np.mean([one["batches"] for one in found]) > 1.2, "questions are put together"
