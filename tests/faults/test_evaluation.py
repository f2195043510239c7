"""Environments that break while a trained policy is evaluated or filmed: what was learnt is never lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driver import HERE, SOURCE, Train, gone, train
from faulty_env import LENGTH

WORDS = ("--runtime", "inline", "--steps", "64", "--json")  # an environment lives for 16 steps of training


def finished(run: Train) -> None:
    """Trained to the end: everything is there, and standard error has no traceback."""
    assert run.end() == 0, run.stderr
    assert run.json["env_steps"] == 64 and not run.json["stopped"] and run.json["faults"] == 0
    assert json.loads((run.run / "summary.json").read_text()) == run.json
    assert (run.run / "policy.safetensors").exists() and run.checkpoints()
    assert "Traceback" not in run.stderr and gone(run.tree(), 1)


@pytest.mark.parametrize(
    ("kind", "logged"),
    [
        ("raise", "RuntimeError: the dice fell off the table"),
        ("segv", "SIGSEGV"),
        pytest.param("nan", "its observation was not finite", marks=pytest.mark.slow),
        pytest.param("inf", "its reward was not finite", marks=pytest.mark.slow),
        pytest.param("kill", "SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_a_broken_episode_is_counted_and_played_again(tmp_path: Path, kind: str, logged: str) -> None:
    with train(tmp_path, *WORDS, eval_episodes=20, fault_kind=kind, fault_times=2) as run:
        finished(run)
        assert run.json["eval_mean"] == run.json["eval_sampled_mean"] == LENGTH and run.json["eval_sd"] == 0
        assert run.json["eval_episodes"] == 20 and run.json["eval_faults"] == 2
        assert run.faults().count(logged) == 2 and "evaluator" in run.faults()


@pytest.mark.parametrize("kind", ["hang", pytest.param("lock", marks=pytest.mark.slow)])
def test_one_that_hangs_is_noticed(tmp_path: Path, kind: str) -> None:
    words = ("--runtime", "threads", "--topology.overlap", "false", "--runtime.step-timeout", "2", *WORDS[2:])
    # An actor on a thread may begin another unroll of 16 steps before it hears of the end: it must not meet the fault.
    with train(tmp_path, *words, eval_episodes=20, fault_kind=kind, fault_at=40) as run:
        finished(run)
        assert run.json["eval_mean"] == LENGTH and run.json["eval_faults"] == 1
        assert "env_hung" in run.faults() and "did not return" in run.faults()


def test_too_many_faults_leave_the_figures_out(tmp_path: Path) -> None:
    words = (*WORDS, "--max-faults", "3")
    with train(tmp_path, *words, eval_episodes=20, fault_kind="raise", fault_at=18, fault_times=1000) as run:
        finished(run)
        assert run.json["eval_mean"] is run.json["eval_sampled_mean"] is run.json["eval_episodes"] is None
        assert run.json["eval_faults"] == 4
        [line] = [line for line in run.stderr.splitlines() if "not evaluated" in line]
        assert "more than --max-faults 3" in line and "faulty_env:Faulty" in line and "of 20 episodes" in line


def command(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(SOURCE), str(HERE)])
    return subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "FAULT_FOLDER": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_commands_that_cannot_play_say_so_in_a_line(tmp_path: Path) -> None:
    with train(tmp_path, *WORDS, "--max-faults", "1", env="faulty_env:Unfilmable") as run:
        finished(run)
    ended = command(tmp_path, "eval", "run", FAULT_KIND="kill", FAULT_AT="5", FAULT_TIMES="9")
    assert ended.returncode == 1 and ended.stdout == "" and not (run.run / "evaluation.json").exists()
    [line] = ended.stderr.splitlines()
    assert line.startswith("shoal: 2 faults in evaluation, more than --max-faults 1") and "SIGKILL" in line
    filmed = command(tmp_path, "play", "run")
    assert filmed.returncode == 1 and not (run.run / "video.mp4").exists()
    [line] = filmed.stderr.splitlines()
    assert line.startswith("shoal: the process that filmed faulty_env:Unfilmable") and "code 3" in line


def test_a_renderer_that_ends_its_process_costs_the_clip_alone(tmp_path: Path) -> None:
    words = ["train", "faulty_env:Unfilmable", "--out", "run", *WORDS, "--eval-episodes", "2", "--actors", "1"]
    ended = command(tmp_path, *words, "--envs", "4", "--algo.unroll", "16", "--net.hidden", "8")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["eval_mean"] == LENGTH
    page = (tmp_path / "run" / "report.html").read_text()
    assert "No clip: the process that filmed" in page and "code 3" in page
    assert "evaluator_died" in (tmp_path / "run" / "faults.log").read_text()
