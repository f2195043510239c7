"""What a port raises is raised where the role waits for it."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from shoal.core.ports import Op
from shoal.core.program import Context, Ports, Program, Report, RoleSpec, Steps
from shoal.runtimes.inline import Inline, InlineConfig
from shoal.runtimes.processes import Processes, ProcessesConfig
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


def test_processes_that_cannot_all_be_started_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = subprocess.Popen, list[subprocess.Popen[bytes]]()

    def start(words: list[str], **how: Any) -> Any:
        if started:
            raise BlockingIOError("too many processes")
        started.append(real(["sleep", "600"], **how))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    roles = [RoleSpec(name=name, build=Careful, main=name == "main") for name in ("main", "first", "second")]
    descriptors = set(os.listdir("/proc/self/fd"))
    try:
        with pytest.raises(BlockingIOError, match="too many"):
            Processes(ProcessesConfig(pin=False)).start(Program(roles=tuple(roles)), lambda: False)
        assert started[0].poll() is not None
        assert set(os.listdir("/proc/self/fd")) <= descriptors
    finally:
        started[0].kill()
