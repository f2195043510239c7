"""A learner that is killed: the others wait for its successor, and all go on from what was published last."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from driver import LONG, Train, gone, train

TWO = ("--algo", "a2c", "--runtime", "processes", "--topology", "actor_learner", "--learners", "2", "--steps", LONG)
PATIENCE = 200  # seconds for what takes a few on an idle machine: four processes start and compile


def pid_of(run: Train, role: str) -> int:
    """The worker process that has this role."""
    found = [pid for pid in run.workers() if f'"name":"{role}"' in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(found) == 1, (role, found)
    return found[0]


def learnt(run: Train, steps: int) -> None:
    run.until(lambda: run.steps() >= steps, PATIENCE)


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("learner-1", ()),
        pytest.param("actor-0", (), marks=pytest.mark.slow),
        # Everybody waits for everybody: what the dead learner held is waited for too.
        pytest.param("learner-1", ("--topology.max-lag", "0"), marks=pytest.mark.slow, id="lockstep"),
    ],
)
def test_the_run_goes_on_without_it_and_with_its_successor(tmp_path: Path, role: str, words: tuple[str, ...]) -> None:
    with train(tmp_path, *TWO, *words) as run:
        learnt(run, 1)
        first = pid_of(run, role)
        for _ in range(2):  # the successor may die as well
            victim, before = pid_of(run, role), run.steps()
            os.kill(victim, signal.SIGKILL)
            run.until(lambda victim=victim: gone({victim}, 1))
            learnt(run, before + 50 * 64)
        assert pid_of(run, role) != first
        assert f"{role.split('-')[0]}_died\n{role} was ended by SIGKILL" in run.faults()
        steps = [row["step"] for row in run.metrics() if "speed/updates" in row]
        versions = [row["speed/updates"] for row in run.metrics() if "speed/updates" in row]
        assert steps == sorted(steps) and versions == sorted(versions), "nothing goes back"
        tree = run.tree()
        run.signal(signal.SIGINT)
        assert run.end() == 0, run.stderr
        assert gone(tree) and run.checkpoints()


@pytest.mark.slow
def test_learners_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    with train(tmp_path, *TWO) as run:
        run.until(run.checkpoints, PATIENCE)
        run.signal(signal.SIGINT)
        assert run.end() == 0, run.stderr
        steps = run.steps() + 640
    with train(tmp_path, "--resume", "run", "--steps", str(steps), "--json") as again:
        assert again.end(PATIENCE) == 0, again.stderr
        assert again.json["env_steps"] >= steps and again.json["learners"] == 2
