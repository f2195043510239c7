"""Whatever ends a run, nothing of it stays: no process, no shared memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from driver import LONG, Train, gone, train


def named_memory(pids: set[int]) -> list[str]:
    """Mappings of named shared memory: what has no name cannot outlive its processes."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [line for line in lines if "/dev/shm" in line]


def running(run: Train) -> set[int]:
    run.training()
    tree = run.tree()
    assert len(tree) == 3 and not named_memory(tree)
    return tree


@pytest.mark.slow
def test_the_parent_is_killed(tmp_path: Path) -> None:
    with train(tmp_path, "--runtime", "processes", "--steps", LONG) as run:
        tree = running(run)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert gone(tree)


def test_the_parent_is_killed_while_its_children_hang(tmp_path: Path) -> None:
    """One of them in native code that keeps Python's lock, so that no thread of it can notice anything."""
    with train(tmp_path, "--runtime", "processes", "--steps", LONG, fault_kind="lock", fault_times=2) as run:
        run.until(lambda: len(run.broke_at()) == 2)
        tree = run.tree()
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert gone(tree)


def test_the_group_is_killed_and_resume_goes_on(tmp_path: Path) -> None:
    with train(tmp_path, "--runtime", "processes", "--steps", LONG) as run:
        run.until(run.checkpoints)
        tree = running(run)
        os.killpg(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert gone(tree)
        steps = run.steps() + 640
    with train(tmp_path, "--resume", "run", "--steps", str(steps), "--json") as again:
        assert again.end() == 0, again.stderr
        assert again.json["env_steps"] == -(-steps // 64) * 64


@pytest.mark.parametrize(
    "words", [pytest.param(("--steps", "32000"), marks=pytest.mark.slow), ("--steps", LONG, "--max-faults", "0")]
)
def test_the_end_of_a_run(tmp_path: Path, words: tuple[str, ...]) -> None:
    with train(tmp_path, "--runtime", "processes", *words, fault_kind="raise", fault_at=2000, fault_times=9) as run:
        tree = running(run)
        run.end()
        assert gone(tree)


def test_what_an_environment_started_ends_with_its_actor(tmp_path: Path) -> None:
    """One actor is killed in the middle of the run; the others end with it. Nothing calls `close` of these environments."""
    words = ("--runtime", "processes", "--steps", LONG, "--envs", "1")
    with train(tmp_path, *words, env="faulty_env:WithServer") as run:
        run.training()
        workers = run.workers()
        tree = run.tree()
        assert len(workers) == 2 and len(tree) == 1 + 2 + 2, "two actors with a server each"
        servers = tree - {run.process.pid, *workers}
        os.kill(workers[0], signal.SIGKILL)
        run.until(lambda: len(run.tree() - tree) == 2)  # a successor with its own server
        run.until(lambda: len(servers & run.tree()) == 1, seconds=30)
        everything = run.tree() | tree
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.end() == 0
        assert gone(everything)
