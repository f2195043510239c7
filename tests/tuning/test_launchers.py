"""Workers on several machines: runs are spread over the launchers, and wrong launchers are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from shoal.core.errors import BadInput
from shoal.tuning import trainings
from shoal.tuning.config import make_config, prepare
from shoal.tuning.trainings import Runs

STUDY: dict[str, Any] = {
    "env": "CartPole-v1",
    "settings": {"algo": "a2c", "runtime": "fused"},
    "space": {"learning_rate": "log(1e-5,1e-2)"},
}


class Handle:
    """A run handle without a process."""

    started: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def __init__(self) -> None:
        self.running = True

    @classmethod
    def start(cls, env: str | None = None, *, launcher: str, **settings: Any) -> Handle:
        cls.started.append((launcher, {"env": env, **settings}))
        return cls()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    monkeypatch.setattr(trainings, "RunHandle", Handle)
    monkeypatch.setattr(Handle, "started", [])
    return Handle.started


def test_a_run_starts_where_the_fewest_are_running(started: list[tuple[str, dict[str, Any]]], tmp_path: Path) -> None:
    runs = Runs("CartPole-v1", ("ssh a", "ssh b"))
    _, second, _ = (runs.start(tmp_path, {"seed": n}, go_on=False) for n in range(3))
    assert [launcher for launcher, _ in started] == ["ssh a", "ssh b", "ssh a"]
    second.running = False  # type: ignore[attr-defined]
    runs.start(tmp_path, {"seed": 3}, go_on=True)
    assert started[-1] == ("ssh b", {"env": None, "resume": tmp_path, "seed": 3})


def test_without_launchers_runs_are_children(started: list[tuple[str, dict[str, Any]]], tmp_path: Path) -> None:
    Runs("CartPole-v1").start(tmp_path, {}, go_on=False)
    assert started == [("", {"env": "CartPole-v1", "out": tmp_path})]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"launchers": ("nosuch node1",)}, "launcher 'nosuch node1': there is no program 'nosuch' here"),
        ({"launchers": (" ",)}, "a launcher is empty"),
        ({"launchers": ("sh -c",), "population": True}, "a population is one program on this machine"),
    ],
)
def test_wrong_launchers_are_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        prepare(make_config({**STUDY, **changed}))
