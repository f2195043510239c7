"""Workers on shared parameters die by kill -9: they are replaced and the run goes on; whatever is killed, nothing stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from driver import LONG, Train, gone, shared_memory, train
from test_leftovers import named_memory

SHARED = ("--topology", "shared_params", "--algo", "a2c", "--algo.batch-size", "0", "--runtime", "processes")


def running(run: Train, processes: int) -> set[int]:
    run.training(500)
    tree = run.tree()
    assert len(tree) == processes and not named_memory(tree)
    return tree


@pytest.mark.parametrize(
    ("consistency", "shards"),
    [
        ("lock", 0),
        pytest.param("sharded", 2, marks=pytest.mark.slow),
        pytest.param("hogwild", 0, marks=pytest.mark.slow),
    ],
)
def test_killed_workers_and_servers_are_replaced_and_the_run_goes_on(
    tmp_path: Path, consistency: str, shards: int
) -> None:
    before = shared_memory()
    words = ("--topology.consistency", consistency, "--topology.shards", str(shards or 2), "--max-faults", "10")
    with train(tmp_path, *SHARED, *words, "--steps", LONG) as run:
        running(run, 3 + shards)
        for victim in sorted(run.workers()):  # each worker and each server once
            known = set(run.workers())
            os.kill(victim, signal.SIGKILL)
            run.until(lambda known=known: set(run.workers()) - known)  # type: ignore[misc]
        steps = run.steps()
        run.until(lambda: run.steps() > steps + 640)
        assert run.faults().count("actor_died") == 2 and run.faults().count("shard_died") == shards
        tree = run.tree()
        assert len(tree) == 3 + shards
        run.signal(signal.SIGTERM)
        assert run.end() == 0 and gone(tree)
    assert shared_memory() <= before


@pytest.mark.slow
def test_the_budget_holds_although_a_worker_was_killed(tmp_path: Path) -> None:
    words = ("--topology.consistency", "lock", "--steps", "9600", "--json")
    with train(tmp_path, *SHARED, *words) as run:
        running(run, 3)
        os.kill(run.workers()[0], signal.SIGKILL)
        assert run.end(240) == 0, run.stderr
        assert run.json["env_steps"] == 9600 and run.json["faults"] == 1


@pytest.mark.parametrize("whole", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_main_process_or_the_whole_group_is_killed_and_resume_goes_on(tmp_path: Path, whole: bool) -> None:
    before = shared_memory()
    with train(tmp_path, *SHARED, "--topology.consistency", "hogwild", "--steps", LONG) as run:
        run.until(run.checkpoints)
        tree = running(run, 3)
        if whole:
            for pid in tree:
                os.kill(pid, signal.SIGKILL)
        else:
            os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert gone(tree) and shared_memory() <= before
        steps = run.steps() + 640
    with train(tmp_path, "--resume", "run", "--steps", str(steps), "--json") as again:
        assert again.end(240) == 0, again.stderr
        assert steps <= again.json["env_steps"] < steps + 32
