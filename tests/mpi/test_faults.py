"""What an environment of several ranks does after a fault."""

from __future__ import annotations

from pathlib import Path

from mpi_job import Job


def test_an_environment_of_several_ranks_that_raises_is_made_anew_and_counted(tmp_path: Path) -> None:
    words = ["--runtime", "mpi", "--runtime.ranks-per-env", "2", "--runtime.step-timeout", "10", "--envs", "1"]
    words += ["--algo.unroll", "16", "--algo.batch-size", "16", "--net.hidden", "8", "--eval-episodes", "0"]
    job = Job.train(
        tmp_path, 3, "group_env:Raises", *words, "--steps", "128", "--json", "--quiet", "--no-report", "--out", "run"
    )
    assert job.end(60) == 0, job.err.read_text()
    assert job.lines[0]["faults"] >= 3, "one after each thirty steps"
    assert job.lines[0]["return_mean"] == 10 * (1 + 2), "both ranks add up, also after a fault"
