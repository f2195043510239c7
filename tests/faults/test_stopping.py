"""SIGINT and SIGTERM at awkward moments: once is a checkpoint and exit code 0, twice is the end, and resume goes on."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from driver import LONG, STEPS_A_UPDATE, Train, gone, train

SECONDS = 10  # that a stop may take on an idle machine


def stop(run: Train, number: signal.Signals = signal.SIGINT) -> None:
    """Once: exit code 0 in time, nothing left, a checkpoint of the last update, and a summary that says so."""
    tree = run.tree()
    run.signal(number)
    code = run.end(SECONDS * run.slowness)
    assert code == 0, run.stderr
    assert gone(tree)
    assert "Traceback" not in run.stderr and "stopping" in run.stderr


def resume(folder: Path, steps: int) -> int:
    """Go on to so many steps; how many there were when it ended."""
    with train(folder, "--resume", "run", "--steps", str(steps), "--json") as run:
        assert run.end() == 0, run.stderr
        return int(run.json["env_steps"])


@pytest.mark.parametrize(
    ("runtime", "number"),
    [
        pytest.param("inline", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("threads", signal.SIGINT, marks=pytest.mark.slow),  # as below, in the middle of compilation
        ("processes", signal.SIGTERM),
    ],
)
def test_once_is_a_checkpoint_and_resume_goes_on(tmp_path: Path, runtime: str, number: signal.Signals) -> None:
    with train(tmp_path, "--runtime", runtime, "--steps", LONG, "--json") as run:
        run.training(5 * STEPS_A_UPDATE)
        stop(run, number)
        steps = run.json["env_steps"]
        assert run.json["stopped"] and run.json["eval_mean"] is None
        assert run.checkpoints()[-1].stem == f"step-{steps}"  # of the very last update
        assert json.loads((run.run / "summary.json").read_text())["env_steps"] == steps
    assert resume(tmp_path, steps + 640) == steps + 640


def test_fused_stops_too(tmp_path: Path) -> None:
    with train(tmp_path, "--runtime", "fused", "--steps", "10000000000", "--actors", "1", env="CartPole-v1") as run:
        run.training()
        stop(run)
        assert run.checkpoints()[-1].stem == f"step-{run.steps()}"


def test_twice_is_the_end_at_once(tmp_path: Path) -> None:
    with train(tmp_path, "--runtime", "processes", "--steps", LONG, step_seconds=1) as run:
        run.until(lambda: len(run.made_at()) > 4)  # the actors are at work, on a first unroll of 16 s and more
        tree = run.tree()
        assert len(tree) == 3
        run.signal(signal.SIGINT)
        run.signal(signal.SIGTERM)
        assert run.end(5 * run.slowness) in (128 + signal.SIGINT, 128 + signal.SIGTERM) and gone(tree)
        assert "Traceback" not in run.stderr


@pytest.mark.parametrize("twice", [False, True])
def test_in_the_middle_of_compilation(tmp_path: Path, twice: bool) -> None:
    words = ("--runtime", "threads", "--steps", LONG, "--net.hidden", "16,16,16")
    with train(tmp_path, *words, shoal_cache=tmp_path / "cold") as run:
        run.until(lambda: any((tmp_path / "cold").rglob("*-cache")))  # one function is compiled, and more are to come
        if twice:
            run.signal(signal.SIGINT)
            run.until(lambda: "stopping" in run.stderr)  # the kernel makes one of two that are pending
            run.signal(signal.SIGINT)
            assert run.end(5 * run.slowness) == 128 + signal.SIGINT
            return
        stop(run)
        assert run.checkpoints()
    assert resume(tmp_path, 640) == 640


@pytest.mark.parametrize("after", [0.05, 0.5])
def test_before_there_is_anything_to_save(tmp_path: Path, after: float) -> None:
    with train(tmp_path, "--runtime", "inline", "--steps", LONG) as run:
        # Python itself needs a moment until any handler can be set: wait until it has started on our code.
        run.until(lambda: "msgspec" in maps(run))
        time.sleep(after)
        run.signal(signal.SIGINT)
        assert run.end(SECONDS * run.slowness) == 0, run.stderr
        assert "Traceback" not in run.stderr and "stop" in run.stderr


def maps(run: Train) -> str:
    return Path(f"/proc/{run.process.pid}/maps").read_text()


@pytest.mark.parametrize("runtime", ["inline", pytest.param("threads", marks=pytest.mark.slow), "processes"])
def test_while_an_environment_hangs(tmp_path: Path, runtime: str) -> None:
    words = ("--runtime", runtime, "--steps", LONG, "--json")
    with train(tmp_path, *words, fault_kind="hang", fault_at=200) as run:
        run.until(run.broke_at)
        run.until(run.waits)  # the other actor too, which had work left
        stop(run)
        assert run.json["stopped"] and run.checkpoints()[-1].stem == f"step-{run.json['env_steps']}"


def test_during_evaluation(tmp_path: Path) -> None:
    words = ("--runtime", "inline", "--steps", "64", "--json")
    with train(tmp_path, *words, eval_episodes=1000, step_seconds=0.005) as run:
        run.until(lambda: (run.run / "summary.json").exists())
        stop(run)
        assert run.json["env_steps"] == 64 and run.json["eval_mean"] is None and run.checkpoints()
