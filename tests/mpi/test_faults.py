"""A rank that is slow, hangs, or cannot take part: the job goes on where it can, and otherwise ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpi_job import HERE, Job, wait_until

SCRIPT = str(HERE / "faults_on_ranks.py")


@pytest.mark.slow
def test_an_environment_of_several_ranks_that_raises_is_made_anew_and_counted(tmp_path: Path) -> None:
    words = ["--runtime", "mpi", "--runtime.ranks-per-env", "2", "--runtime.step-timeout", "10", "--envs", "1"]
    words += ["--algo.unroll", "16", "--algo.batch-size", "16", "--net.hidden", "8", "--eval-episodes", "0"]
    job = Job.train(
        tmp_path, 3, "group_env:Raises", *words, "--steps", "400", "--json", "--quiet", "--no-report", "--out", "run"
    )
    assert job.end() == 0, job.err.read_text()
    assert job.lines[0]["faults"] >= 3, "one after each hundred steps"
    assert job.lines[0]["return_mean"] == 10 * (1 + 2), "both ranks add up, also after a fault"


@pytest.mark.slow
def test_only_environments_are_timed_in_shared_windows_and_across_nodes(tmp_path: Path) -> None:
    job = Job(tmp_path, 2, SCRIPT, "slow")
    assert job.end() == 0, job.err.read_text()
    assert job.lines[:2] == [{"version": 1}] * 2
    for line in job.lines[2:]:
        assert "actor-1 (rank 1): a step of its environment did not return within 1 s" in line["error"]
    assert len(job.lines) == 4


def test_a_script_that_lost_a_rank_starts_nothing_more_and_ends_with_all_ranks(tmp_path: Path) -> None:
    job = Job(tmp_path, 2, SCRIPT, "lost")
    assert job.end() == 1, job.err.read_text()
    first, second = job.lines
    assert "actor-1 (rank 1): a step of its environment did not return within 1 s" in first["first"]
    assert "a rank was lost: start the job again, with --resume" in second["second"]
    wait_until(lambda: not job.ranks(), "the rank that hangs to end", 30)


def test_roles_that_cannot_be_closed_lose_no_rank(tmp_path: Path) -> None:
    job = Job(tmp_path, 2, SCRIPT, "sticky")
    assert job.end() == 0, job.err.read_text()
    each = [[name, "close_raised", "OSError: sticky"] for name in ("actor-1", "learner-0")]
    assert job.lines == [{"faults": each}] * 2


def test_a_rank_that_cannot_take_part_says_why_and_ends_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, 2, SCRIPT, "missing")
    assert job.end() == 1
    assert "ModuleNotFoundError" in job.err.read_text() and "group_env" in job.err.read_text()


def test_a_round_that_a_stop_interrupts_keeps_its_memory_until_it_is_freed(tmp_path: Path) -> None:
    job = Job(tmp_path, 2, SCRIPT, "rounds")
    assert job.end() == 0, job.err.read_text()
    left = {name: value for line in job.lines for name, value in line.items()}
    assert left["held"] >= left["buffers"], "MPI may still write there"
    assert left["groups"] == 2100, "each gave its communicator back"
