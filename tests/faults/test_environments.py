"""Environments that raise, hang, crash or return what is not a number, in real runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from driver import ENV, LONG, PATIENCE, STEPS_A_UPDATE, Train, train
from faulty_env import LENGTH

from shoal.run.checkpoints import Checkpoints

STEPS = str(20 * STEPS_A_UPDATE)


def finite_weights(run: Train) -> bool:
    arrays = Checkpoints(run.run / "checkpoints").load().arrays
    return all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")


def one_line(run: Train) -> str:
    """The last line that the run wrote to standard error, which must not be part of a traceback."""
    assert "Traceback" not in run.stderr
    return run.stderr.splitlines()[-1]


def episodes(run: Train) -> list[tuple[float, float]]:
    rows = [row for row in run.metrics() if "episode/return" in row]
    return [(row["episode/return"], row["episode/length"]) for row in rows]


@pytest.mark.parametrize(
    "runtime", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("inline", "threads")), "processes"]
)
def test_one_that_raises_is_made_anew_and_the_run_goes_on(tmp_path: Path, runtime: str) -> None:
    with train(tmp_path, "--runtime", runtime, "--steps", STEPS, "--json", fault_kind="raise") as run:
        assert run.end() == 0, run.stderr
        assert run.json["env_steps"] == int(STEPS) and run.json["faults"] == 1
        (broke,) = run.broke_at()
        assert 0 <= min(made for made in run.made_at() if made >= broke) - broke < run.slowness
        assert "faulty_env.py" in run.faults() and "RuntimeError: the dice fell off the table" in run.faults()
        assert sum(row.get("fault/env_raised", 0) for row in run.metrics()) == 1
        # The broken episode is dropped: every episode that was counted is whole.
        assert episodes(run) and set(episodes(run)) == {(LENGTH, LENGTH)}
        assert "Traceback" not in run.stderr and run.stderr.count("the dice fell off the table") == 1


def test_too_many_faults_end_the_run_with_a_checkpoint_and_the_name(tmp_path: Path) -> None:
    words = ("--runtime", "threads", "--steps", LONG, "--max-faults", "2")
    with train(tmp_path, *words, fault_kind="raise", fault_at=200, fault_times=1000) as run:
        assert run.end() == 1
        line = one_line(run)
        assert line.startswith("shoal: 3 faults, more than --max-faults 2") and ENV in line and "the dice" in line
        assert run.checkpoints() and finite_weights(run) and not run.tree()


def test_one_that_hangs_is_killed_and_replaced_under_processes(tmp_path: Path) -> None:
    words = ("--runtime", "processes", "--runtime.step-timeout", "2", "--steps", STEPS, "--json")
    with train(tmp_path, *words, fault_kind="hang") as run:
        assert run.end() == 0, run.stderr
        assert run.json["env_steps"] == int(STEPS) and run.json["faults"] == 1
        assert "env_hung" in run.faults() and "did not return" in run.faults()
        assert set(episodes(run)) == {(LENGTH, LENGTH)} and not run.tree()


def test_one_that_hangs_ends_the_run_under_threads(tmp_path: Path) -> None:
    words = ("--runtime", "threads", "--runtime.step-timeout", "2", "--steps", LONG)
    with train(tmp_path, *words, fault_kind="hang", fault_at=300) as run:
        assert run.end() == 1
        assert "--runtime processes" in one_line(run) and "hangs" in one_line(run)
        assert run.checkpoints() and finite_weights(run) and not run.tree()


def test_a_hang_in_the_very_first_step_is_noticed(tmp_path: Path) -> None:
    words = ("--runtime", "threads", "--runtime.step-timeout", "2", "--steps", LONG)
    with train(tmp_path, *words, fault_kind="hang", fault_at=1, fault_times=100) as run:
        assert run.end() == 1
        assert "hangs" in one_line(run)


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [("nan", "inline"), ("inf", "threads"), pytest.param("nan", "processes", marks=pytest.mark.slow)],
)
def test_what_is_not_a_number_is_dropped_and_counted(tmp_path: Path, kind: str, runtime: str) -> None:
    words = ("--runtime", runtime, "--steps", STEPS, "--json", "--max-faults", "5")
    with train(tmp_path, *words, fault_kind=kind, fault_times=3) as run:
        assert run.end() == 0, run.stderr
        assert run.json["env_steps"] == int(STEPS) and run.json["faults"] == 3
        assert sum(row.get("fault/env_nan", 0) for row in run.metrics()) == 3
        assert ENV in run.faults() and finite_weights(run)
        assert set(episodes(run)) == {(LENGTH, LENGTH)}


@pytest.mark.slow
def test_too_much_that_is_not_a_number_ends_the_run(tmp_path: Path) -> None:
    words = ("--runtime", "inline", "--steps", LONG, "--max-faults", "3")
    with train(tmp_path, *words, fault_kind="nan", fault_times=1000, fault_at=200) as run:
        assert run.end() == 1
        assert ENV in one_line(run) and "env_nan" in one_line(run)
        assert run.checkpoints() and finite_weights(run)


def test_a_killed_actor_is_replaced_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    with train(tmp_path, "--runtime", "processes", "--steps", LONG, "--json", step_seconds=0.001) as run:
        run.training(10 * STEPS_A_UPDATE)
        before = set(run.workers())
        assert len(before) == 2
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        run.until(lambda: len(run.workers()) == 2 and set(run.workers()) != before)
        run.training(run.steps() + 20 * STEPS_A_UPDATE)  # it goes on, with the successor's unrolls too
        run.signal(signal.SIGTERM)
        assert run.end() == 0, run.stderr
        assert run.json["env_steps"] == run.json["updates"] * STEPS_A_UPDATE and run.json["faults"] == 1
        assert "SIGKILL" in run.faults()
        # An unroll that was seen twice, or in part, would be an episode of another length.
        assert set(episodes(run)) == {(LENGTH, LENGTH)}
        assert max(row["lag/max"] for row in run.metrics() if "lag/max" in row) <= 1


@pytest.mark.slow
def test_throughput_recovers_from_a_killed_actor(tmp_path: Path) -> None:
    with train(tmp_path, "--runtime", "processes", "--steps", LONG, step_seconds=0.002) as run:
        run.training(20 * STEPS_A_UPDATE)
        usual = speed(run)
        os.kill(min(run.workers()), signal.SIGKILL)
        limit = time.monotonic() + PATIENCE
        while (now := speed(run)) < 0.5 * usual:  # a machine that has become busier may not reach all of it again
            assert time.monotonic() < limit, f"{now:.0f} steps/s, {usual:.0f} before"


def speed(run: Train) -> float:
    """Steps a second over the next few."""
    before, began = run.steps(), time.monotonic()
    run.training(before + 40 * STEPS_A_UPDATE)
    return (run.steps() - before) / (time.monotonic() - began)


@pytest.mark.parametrize(
    ("kind", "name"), [("segv", "SIGSEGV"), pytest.param("kill", "SIGKILL", marks=pytest.mark.slow)]
)
def test_a_crash_of_the_environment_is_named(tmp_path: Path, kind: str, name: str) -> None:
    with train(tmp_path, "--runtime", "processes", "--steps", STEPS, "--json", fault_kind=kind) as run:
        assert run.end() == 0, run.stderr
        assert run.json["env_steps"] == int(STEPS) and run.json["faults"] == 1
        assert "actor_died\nactor-" in run.faults() and name in run.faults()


def test_actors_that_die_at_once_do_not_keep_a_run_alive(tmp_path: Path) -> None:
    words = ("--runtime", "processes", "--steps", LONG, "--max-faults", "2")
    with train(tmp_path, *words, fault_kind="segv", fault_at=1, fault_times=1000) as run:
        assert run.end() == 1
        assert "SIGSEGV" in one_line(run) and ENV in one_line(run) and not run.tree()
