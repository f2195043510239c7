"""Only environment calls are timed: a role may compute, compile and wait for as long as it takes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import timed_roles

from shoal.core.errors import RunFailed
from shoal.core.program import Fault, Report
from shoal.runtimes import watch
from shoal.runtimes.processes import Processes, ProcessesConfig
from shoal.runtimes.threads import Threads, ThreadsConfig

LIMIT = 0.5  # seconds of a step
RUNTIMES = {
    "threads": Threads(ThreadsConfig(step_timeout=LIMIT)),
    "processes": Processes(ProcessesConfig(step_timeout=LIMIT)),
}


def events(runtime: str, where: str, seconds: float, steps_env: bool = True) -> list[Any]:
    """Up to the first fault or report."""
    slow = partial(timed_roles.Slow, where, seconds)
    session = RUNTIMES[runtime].start(timed_roles.program(slow, steps_env), lambda: False)
    try:
        return [next(iter(session))]
    finally:
        session.close()


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("where", ["build", "compute"])
def test_what_is_no_environment_may_take_longer_than_a_step(
    monkeypatch: pytest.MonkeyPatch, runtime: str, where: str
) -> None:
    if runtime == "threads":  # a process has imports to do
        monkeypatch.setattr(watch, "START_TIMEOUT", LIMIT)
    (event,) = events(runtime, where, 4 * LIMIT)
    assert isinstance(event, Report) and event.state == "done"


def test_an_environment_that_hangs_is_replaced_with_its_process_and_the_line_says_which_and_why() -> None:
    (event,) = events("processes", "env", 1000)
    assert isinstance(event, Fault) and event.kind == "env_hung" and event.role == "slow"
    assert event.detail == (
        f"slow was killed and replaced: a step of its environment did not return within {LIMIT:g} s"
        " (--runtime.step-timeout)"
    )


def test_an_environment_that_hangs_ends_the_run_under_threads() -> None:
    with pytest.raises(RunFailed, match=r"slow: a step of its environment did not return within 0\.5 s"):
        events("threads", "env", 4 * LIMIT)


def test_a_role_without_an_environment_is_never_taken_to_hang() -> None:
    (event,) = events("threads", "env", 4 * LIMIT, steps_env=False)
    assert isinstance(event, Report)
