"""What a port raises is raised where the role waits for it; silence is a fault of actors alone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import RunFailed
from shoal.core.ports import Op
from shoal.core.program import BoardSpec, Context, Ports, Program, Report, RoleSpec, Steps
from shoal.runtimes.inline import Inline, InlineConfig
from shoal.runtimes.threads import Threads, ThreadsConfig


def broken() -> Any:
    raise LookupError("gone")


class Careful:
    """Asks for what is gone, and goes on."""

    catches = True

    def __init__(self, ports: Ports, context: Context) -> None:
        return None

    def run(self) -> Steps:
        seen = "nothing"
        try:
            yield from Op(broken, what="what is gone")
        except LookupError as error:
            if not self.catches:
                raise
            seen = str(error)
        yield Report(version=0, env_steps=0, began_at=0.0, ended_at=0.0, episodes=(), metrics={}, state=seen)

    def snapshots(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        return None


class Careless(Careful):
    catches = False


@pytest.mark.parametrize("runtime", [Inline(InlineConfig()), Threads(ThreadsConfig())])
def test_a_role_may_catch_what_its_port_raised(runtime: Any) -> None:
    session = runtime.start(Program(roles=(RoleSpec(name="r", build=Careful, main=True),)), lambda: False)
    assert [event.state for event in session] == ["gone"]
    session.close()


@pytest.mark.parametrize("runtime", [Inline(InlineConfig()), Threads(ThreadsConfig())])
def test_what_it_does_not_catch_ends_the_session(runtime: Any) -> None:
    session = runtime.start(Program(roles=(RoleSpec(name="r", build=Careless, main=True),)), lambda: False)
    with pytest.raises(LookupError, match="gone"):
        list(session)
    session.close()


class Slow:
    """Takes its time where nothing can be seen of it."""

    def __init__(self, ports: Ports, context: Context) -> None:
        self._board = ports["board"]

    def run(self) -> Steps:
        time.sleep(0.8)
        self._board.publish(1, np.ones(1, np.float32))
        yield from self._board.read(2**40)

    def snapshots(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        return None


class Waiting(Careful):
    def __init__(self, ports: Ports, context: Context) -> None:
        self._board = ports["board"]

    def run(self) -> Steps:
        yield from self._board.read(1)
        yield Report(version=1, env_steps=0, began_at=0.0, ended_at=0.0, episodes=(), metrics={}, state="done")


@pytest.mark.parametrize("what", ["actor", "learner"])
def test_only_an_actor_that_is_silent_is_taken_to_hang(what: str) -> None:
    roles = (RoleSpec(name="main", build=Waiting, main=True), RoleSpec(name="slow", build=Slow, what=what))
    ports = {"board": BoardSpec(writer="slow", readers=("main", "slow"), size=1, history=2)}
    session = Threads(ThreadsConfig(step_timeout=0.3)).start(Program(roles=roles, ports=ports), lambda: False)
    try:
        if what == "actor":
            with pytest.raises(RunFailed, match=r"slow has not finished a step for 0\.3 s"):
                next(iter(session))
        else:
            event = next(iter(session))
            assert isinstance(event, Report) and event.state == "done"
    finally:
        session.close()
