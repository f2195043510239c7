"""A run in a process of its own: its metrics come as it makes them, it pauses and stops on request, and goes on elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli.main import main
from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Report
from shoal.process.lock import Holder, RunLock, holder_of
from shoal.process.relay import RemoteCommand
from shoal.studies.handle import RunHandle
from shoal.studies.words import flags_of

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


@pytest.mark.slow
def test_a_launcher_runs_it_elsewhere_and_passes_requests_on(tmp_path: Path) -> None:
    """`sh -c` stands for `ssh node1`: it takes a line for a shell, and knows nothing of our signals."""
    run = RunHandle.start(
        "CartPole-v1", out=tmp_path / "run", steps=LONG, metrics_every=0, launcher="sh -c", **SETTINGS
    )
    next(run.metrics())
    assert run._command is not None
    holder = holder_of(run.path)
    assert holder is not None and holder.pid != run._command.pid, "a process of the relay trains"
    run.pause()
    assert run.wait()["ended"] == "paused"
    rest = RunHandle.start(resume=run.path, steps=LONG, launcher="sh -c")
    next(rest.metrics())
    assert isinstance(rest._command, RemoteCommand)
    rest._command.hang_up()  # as when the driver or the connection has gone
    assert rest.wait()["ended"] == "stopped"


def test_a_launcher_passes_on_how_it_ended(tmp_path: Path) -> None:
    refused = RunHandle.start("NoSuchEnv-v0", out=tmp_path / "a", launcher="sh -c")
    killed = RunHandle.start("CartPole-v1", out=tmp_path / "b", steps=LONG, launcher="sh -c", **SETTINGS)
    with pytest.raises(BadInput, match="NoSuchEnv-v0"):
        refused.wait()
    killed.kill()
    with pytest.raises(RunFailed):
        killed.wait()
    assert killed.code == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("launcher", "told"), [("nosuch node1", "no program 'nosuch'"), ("ssh 'node1", "No closing quotation")]
)
def test_a_launcher_that_cannot_start_is_refused(tmp_path: Path, launcher: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        RunHandle.start("CartPole-v1", out=tmp_path / "a", launcher=launcher)
    assert not (tmp_path / "a").exists()


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
    assert not refused.path.exists(), "what was made for it is gone"
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


@pytest.mark.parametrize(
    ("error", "told"), [(ProcessLookupError, "no process trains there now"), (PermissionError, "another user")]
)
def test_a_process_that_cannot_be_asked_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError], told: str
) -> None:
    def kill(*words: Any) -> None:
        raise error

    monkeypatch.setattr(os, "kill", kill)
    with RunLock(tmp_path), pytest.raises(BadInput, match=told):
        RunHandle(tmp_path).pause()


def test_a_run_that_hears_no_signals_is_not_sent_any(tmp_path: Path) -> None:
    """Outside the main thread there are no handlers: the signal would end the whole process."""
    heard: list[bool] = []

    def note(report: Report) -> bool:
        holder = holder_of(tmp_path / "run")
        assert holder is not None
        heard.append(holder.takes_signals)
        with pytest.raises(BadInput, match="outside its main thread"):
            RunHandle.attach(tmp_path / "run").pause()
        return True

    def work() -> None:
        shoal.train("CartPole-v1", out=tmp_path / "run", callbacks=[note], quiet=True, report=False, **SETTINGS)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [False]


def test_a_result_is_of_this_life(tmp_path: Path) -> None:
    """The summary goes when a resumed run begins: one that is killed then has none."""
    steps = 2 * UPDATE
    run = shoal.train("CartPole-v1", out=tmp_path / "run", steps=steps, quiet=True, report=False, **SETTINGS)
    there: list[bool] = []

    def note(report: Report) -> None:
        there.append(run.folder.summary_path.exists())

    shoal.train(resume=run.path, steps=2 * steps, callbacks=[note], quiet=True, report=False)
    assert there and not any(there) and RunHandle.attach(run.path).wait()["env_steps"] == 2 * steps
    run.folder.summary_path.unlink()
    with pytest.raises(RunFailed, match="ended without a summary"):
        RunHandle.attach(run.path).wait()


GUARDED = """
import signal, sys
from pathlib import Path
from shoal.process.lock import RunLock
from shoal.process.restarts import restarted

def run(folder, begun):
    with RunLock(Path(sys.argv[1])):
        begun(Path(sys.argv[1]))
        print("trains", flush=True)
        signal.pause()
    return 0

raise SystemExit(restarted(3, run))
"""


def test_a_guarded_run_can_be_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", GUARDED, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as guard:
        assert guard.stdout is not None and guard.stdout.readline() == "trains\n"
        handle, first = RunHandle(tmp_path), holder_of(tmp_path)
        assert first is not None and first.guard is not None and first.guard.pid == guard.pid
        os.kill(first.pid, signal.SIGKILL)  # by something else: it begins again, and runs all the while
        while (now := holder_of(tmp_path)) is not None and now.pid == first.pid:
            assert guard.poll() is None
        assert now is not None and guard.stdout.readline() == "trains\n"
        handle.kill()
        assert guard.wait() == -signal.SIGKILL
        with pytest.raises(RunFailed, match="ended without a summary"):
            handle.wait(60.0)
        assert guard.stdout.read() == ""


STUCK = """
import ctypes, sys
sys.path[:] = %r
import shoal
from shoal.process import signals
signals.PATIENCE = signals.LAST_RESORT = 0.1
library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)

def stay(report):
    if report.version > 1:
        library.pthread_mutex_lock(mutex)
        print("stuck", flush=True)
        library.pthread_mutex_lock(mutex)  # for ever, in native code, whatever signals come

shoal.train("CartPole-v1", out=sys.argv[1], callbacks=[stay], quiet=True, report=False, **%r)
"""


def test_a_run_that_is_stuck_in_native_code_leaves_a_result(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STUCK % (sys.path, {**SETTINGS, "steps": LONG}), str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "stuck\n"
            handle = RunHandle.attach(tmp_path / "run")
            handle.pause()
            summary = handle.wait(60.0)
            assert summary["ended"] == "paused" and summary["updates"] > 1
            assert process.wait() == 0 and (tmp_path / "run" / "policy.safetensors").exists()
            assert not (tmp_path / "run" / "run.lock").exists()
        finally:
            process.kill()


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
