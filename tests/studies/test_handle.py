"""A run in a process of its own: its metrics come as it makes them, it pauses and stops on request, and goes on elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli.main import main
from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Report
from shoal.process.lock import Holder, holder_of
from shoal.studies.handle import RunHandle, flags_of

LONG, UPDATE = 10**9, 8 * 2
SETTINGS: dict[str, Any] = {
    "algo": {"name": "a2c", "unroll": 8, "final_rate": 1.0},
    "net": {"hidden": (4,)},
    "topology": "sequential",
    "runtime": "inline",
    "backend": "jax",
    "actors": 1,
    "envs": 2,
    "eval_episodes": 0,
    "sinks": ("jsonl",),
}


def test_a_run_is_read_paused_and_goes_on_elsewhere_bit_for_bit(tmp_path: Path) -> None:
    run = RunHandle.start("CartPole-v1", out=tmp_path / "here", steps=LONG, metrics_every=0, **SETTINGS)
    first = next(run.metrics())
    assert first["step"] > 0 and "loss/policy" in first
    seen = RunHandle.attach(run.path)  # as another process sees it
    assert run.running and seen.running and "running" in repr(seen)
    seen.pause()
    seen.pause()
    summary = run.wait()
    assert summary["ended"] == "paused" and summary == seen.wait() and not seen.running
    steps = [row["step"] for row in run.metrics()]
    assert steps == [first["step"] + UPDATE * (i + 1) for i in range(len(steps))], "every line once, to the last"
    assert steps[-1] == summary["env_steps"]
    there = tmp_path / "there"
    shutil.move(run.path, there)
    total = summary["updates"] + 3
    rest = RunHandle.start(resume=there, steps=total * UPDATE)
    assert [row["step"] for row in rest.metrics()][-1] == total * UPDATE
    ended = rest.wait()
    assert ended["ended"] == "budget" and ended["updates"] == total

    def enough(report: Report) -> bool:
        return report.version == total

    whole = shoal.train(
        "CartPole-v1", out=tmp_path / "whole", callbacks=[enough], steps=LONG, quiet=True, report=False, **SETTINGS
    )
    assert whole.summary["ended"] == "stopped"
    assert whole.params_hash == ended["params_sha256"]


def test_the_command_stops_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = RunHandle.start("CartPole-v1", out=tmp_path / "run", steps=LONG, metrics_every=0, **SETTINGS)
    next(run.metrics())
    with pytest.raises(SystemExit) as end:
        main(["stop", str(run.path)])
    assert end.value.code == 0 and "stopped after" in capfd.readouterr().err
    assert run.wait()["ended"] == "stopped"
    with pytest.raises(SystemExit) as end:
        main(["pause", str(run.path)])
    assert end.value.code == 2 and "no process trains there now" in capfd.readouterr().err


def test_what_is_refused_or_never_began_is_told(tmp_path: Path) -> None:
    refused = RunHandle.start("NoSuchEnv-v0", out=tmp_path / "a")
    early = RunHandle.start("CartPole-v1", out=tmp_path / "b", steps=LONG, **SETTINGS)
    early.pause()  # before it has as much as imported anything
    with pytest.raises(BadInput, match="NoSuchEnv-v0"):
        refused.wait()
    with pytest.raises(RunFailed, match="stopped before it began"):
        early.wait()
    assert list(early.metrics()) == []
    with pytest.raises(BadInput, match="by its id or its import path"):
        RunHandle.start(None)


def test_waiting_may_end_before_the_run(tmp_path: Path) -> None:
    run = RunHandle.start("CartPole-v1", out=tmp_path / "run", steps=LONG, **SETTINGS)
    with pytest.raises(TimeoutError, match="still runs"):
        run.wait(0.0)
    run.kill()
    with pytest.raises(RunFailed, match="-9"):
        run.wait()


def test_a_run_on_another_machine_is_asked_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(os, "kill", lambda *words: asked.append(words))
    monkeypatch.setattr("shoal.studies.handle.holder_of", lambda path: Holder(7, "elsewhere", "now"))
    with pytest.raises(BadInput, match="process 7 on elsewhere since now: send the request on that machine"):
        RunHandle(tmp_path).pause()
    assert asked == [] and holder_of(tmp_path) is None


def test_settings_become_flags() -> None:
    settings = {**SETTINGS, "algo.entropy": -0.5, "until_return": None, "life_ends": True}
    assert flags_of(settings) == [
        "--backend=jax",
        "--actors=1",
        "--envs=2",
        "--eval-episodes=0",
        "--sinks=jsonl",
        "--life-ends=true",
        "--algo=a2c",
        "--algo.unroll=8",
        "--algo.final-rate=1.0",
        "--algo.entropy=-0.5",
        "--topology=sequential",
        "--runtime=inline",
        "--net.hidden=4",
    ]
