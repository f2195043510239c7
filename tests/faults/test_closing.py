"""Environments that raise when they are closed: a run that is over keeps its results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_env import Dawdling, Littering, Sticky, Tidy

import shoal
from shoal.cli.main import main
from shoal.run.sinks import read_metrics
from shoal.runtimes.processes import FAREWELL, ProcessesSession

T, B, ACTORS, UPDATES = 8, 2, 2, 3
STEPS = UPDATES * T * B * ACTORS
TINY: dict[str, Any] = {
    "algo": {"name": "a2c", "unroll": T},
    "net": {"hidden": (8,)},
    "actors": ACTORS,
    "envs": B,
    "steps": STEPS,
    "eval_episodes": 0,
    "sinks": ("jsonl",),
    "quiet": True,
    "report": False,
}
PLACES = [("sequential", "inline"), ("sync", "inline"), ("sync", "threads"), ("sequential", "processes")]


@pytest.mark.parametrize(("topology", "runtime"), PLACES)
def test_all_of_them_are_closed_and_the_run_is_a_whole_one(topology: str, runtime: str, tmp_path: Path) -> None:
    Sticky.closed = 0
    run = shoal.train(Sticky, out=tmp_path / "run", topology=topology, runtime=runtime, **TINY)
    roles = 1 if topology == "sequential" else ACTORS  # that hold environments
    assert run.summary["ended"] == "budget" and run.summary["env_steps"] == STEPS
    assert Sticky.closed == ACTORS * B and run.summary["faults"] == roles
    assert run.folder.policy_path.exists() and run.folder.summary_path.exists()
    assert (run.path / "faults.log").read_text().count("close_raised") == roles
    assert "OSError: sticky" in (run.path / "faults.log").read_text()
    assert sum(row.get("fault/close_raised", 0) for row in read_metrics(run.path / "metrics.jsonl")) == roles


def test_the_command_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "faulty_env:Sticky", "--topology", "sequential", "--runtime", "inline", "--actors", str(ACTORS)]
    words += ["--envs", str(B), "--steps", str(STEPS), "--algo", "a2c", "--algo.unroll", str(T), "--net.hidden", "8"]
    words += ["--eval-episodes", "2", "--max-faults", "0", "--no-report", "--json", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    summary = json.loads(said.out.splitlines()[-1])
    assert summary["ended"] == "budget" and summary["eval_episodes"] == 2 and summary["faults"] == 1
    assert "OSError: sticky" in said.err and "cannot write" not in said.err and "Traceback" not in said.err


def test_actors_in_processes_close_their_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setenv("CLOSED", str(closed))
    run = shoal.train(Tidy, out=tmp_path / "run", topology="sync", runtime="processes", **TINY)
    processes = [file.name.partition("-")[0] for file in closed.iterdir()]
    assert len(processes) == ACTORS * B and len(set(processes)) == ACTORS and run.summary["faults"] == 0


def test_a_request_to_leave_is_not_lost_in_a_finaliser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setenv("CLOSED", str(closed))
    run = shoal.train(Littering, out=tmp_path / "run", topology="sync", runtime="processes", **TINY)
    assert run.summary["ended"] == "budget" and len(list(closed.iterdir())) == ACTORS * B
    assert "Exception ignored" not in capfd.readouterr().err


def test_what_they_raise_is_a_fault_of_a_whole_run(tmp_path: Path) -> None:
    run = shoal.train(Sticky, out=tmp_path / "run", topology="sync", runtime="processes", **TINY)
    assert run.summary["ended"] == "budget" and run.summary["faults"] == ACTORS
    assert (run.path / "faults.log").read_text().count("OSError: sticky") == ACTORS


def test_one_that_never_finishes_closing_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(ProcessesSession, "close", _timed(ProcessesSession.close, waited))
    run = shoal.train(Dawdling, out=tmp_path / "run", topology="sync", runtime="processes", **TINY)
    assert run.summary["ended"] == "budget" and FAREWELL <= sum(waited) < 60


def _timed(close: Callable[[Any], Any], seconds: list[float]) -> Callable[[Any], Any]:
    def timed(session: Any) -> Any:
        began = time.monotonic()
        try:
            return close(session)
        finally:
            seconds.append(time.monotonic() - began)

    return timed
