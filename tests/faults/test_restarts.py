"""The main process itself is killed: with `--restarts` the run goes on from its last checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from driver import LONG, Train, gone, train

from shoal.cli import train as train_command

GUARDED = ("--algo", "a2c", "--runtime", "processes", "--topology", "actor_learner", "--steps", LONG)
PATIENCE = 200  # seconds for what takes a few on an idle machine


def main_process(run: Train) -> int:
    """The process that learns, whose parent only waits."""
    (found,) = run.until(run.workers)
    return found


def test_a_killed_main_process_begins_again_where_it_was(tmp_path: Path) -> None:
    with train(tmp_path, *GUARDED, "--restarts", "1") as run:
        run.until(lambda: len(run.checkpoints()) > 1, PATIENCE)
        tree, before = run.tree() - {run.process.pid}, run.steps()
        os.kill(main_process(run), signal.SIGKILL)
        assert gone(tree), "its workers end with it"
        run.until(lambda: run.steps() > before + 640, PATIENCE)
        assert "ended by SIGKILL: resuming from the last checkpoint" in run.stderr and "(1 of 1 restarts)" in run.stderr
        assert "main main_died" in run.faults()
        tree = run.tree()
        run.signal(signal.SIGTERM)
        assert run.end() == 0, run.stderr
        assert gone(tree)


def test_when_no_restart_is_left_it_says_how_to_go_on(tmp_path: Path) -> None:
    with train(tmp_path, *GUARDED, "--restarts", "1", "--checkpoint-every", "1000") as run:
        run.training()  # and no checkpoint since the first, so that it begins again with the weights that it began with
        os.kill(main_process(run), signal.SIGKILL)
        run.until(lambda: "resuming" in run.stderr)
        os.kill(main_process(run), signal.SIGKILL)
        assert run.end() == 1
        assert run.stderr.splitlines()[-1].endswith(f"shoal train --resume {run.run} continues")


def test_processes_are_guarded_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default under `processes`, of one run, outside of MPI."""
    times: list[int] = []

    def note(count: int, run: object) -> int:
        times.append(count)
        return 0

    monkeypatch.setattr(train_command, "restarted", note)
    monkeypatch.setattr(train_command, "_train", lambda *rest: times.append(0) or 0)
    for words in (
        ("--runtime", "processes"),
        ("--runtime", "processes", "--restarts", "0"),
        ("--runtime", "threads"),
        (),
    ):
        assert train_command.run(["CartPole-v1", *words]) == 0
    assert train_command.run(["CartPole-v1", "--runtime", "processes", "--seeds", "2"]) == 0
    assert times == [3, 0, 0, 0, 0]
    times.clear()
    config = tmp_path / "config.json"  # of a run that is resumed, and as a file of settings
    for name in ("processes", "threads"):
        config.write_text(f'{{"env": "CartPole-v1", "runtime": {{"name": "{name}"}}}}')
        assert train_command.run(["--resume", str(tmp_path)]) == 0
        assert train_command.run(["CartPole-v1", "--config", str(config)]) == 0
    assert train_command.run(["CartPole-v1", "--config", str(config), "--runtime", "processes"]) == 0
    assert times == [3, 3, 0, 0, 3]


@pytest.mark.slow
def test_nothing_outlives_the_guard(tmp_path: Path) -> None:
    with train(tmp_path, *GUARDED, "--restarts", "3") as run:
        run.training()
        tree = run.tree()
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert gone(tree)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--restarts", "-1"), "--restarts is -1: at least 0"),
        (("--restarts", "2", "--seeds", "2"), "--restarts and --seeds: guard one run at a time"),
    ],
)
def test_what_cannot_be_guarded_is_said(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with train(tmp_path, *GUARDED, *words) as run:
        assert run.end() == 2
        assert said in run.stderr and len(run.stderr.splitlines()) == 1
