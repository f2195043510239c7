"""A disk that is full while a run saves, and checkpoints that are damaged when it resumes."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver import LONG, STEPS_A_UPDATE, Train, train

from shoal.run.checkpoints import Checkpoints


def newest(run: Train) -> int:
    return Checkpoints(run.run / "checkpoints").load().step


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "shoal-test", str(folder)]
    if os.getuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only who may mount can make a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """A file that takes all that is left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 1024)


def test_a_full_disk_costs_no_training(tmp_path: Path) -> None:
    with small_disk(tmp_path), train(tmp_path, "--runtime", "threads", "--steps", LONG, step_seconds=0.001) as run:
        run.until(run.checkpoints)
        filler = tmp_path / "filler"
        fill(filler)
        run.until(lambda: "cannot save a checkpoint" in run.stderr)
        before = newest(run)  # still loads
        told = run.stderr.count("cannot save a checkpoint")
        assert run.process.poll() is None
        filler.unlink()
        run.until(lambda: newest(run) > before)  # and it saves again as soon as it can
        run.signal(signal.SIGINT)
        assert run.end() == 0, run.stderr
        assert told == 1 and "No space left" in run.stderr and "Traceback" not in run.stderr
        assert Checkpoints(run.run / "checkpoints").load().step > before


def test_a_write_that_fails_costs_no_training(tmp_path: Path) -> None:
    """The same where nobody may mount: files may not grow beyond a few bytes, the metrics included."""
    with train(tmp_path, "--runtime", "inline", "--steps", LONG, step_seconds=0.001) as run:
        run.until(run.checkpoints)
        pid = run.process.pid
        free = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (2000, free[1]))
        run.until(lambda: "cannot save a checkpoint" in run.stderr and "cannot write" in run.stderr)
        before = newest(run)
        assert run.process.poll() is None and run.stderr.count("cannot save a checkpoint") == 1
        assert run.stderr.count("metrics.jsonl") == 1
        resource.prlimit(pid, resource.RLIMIT_FSIZE, free)
        run.until(lambda: newest(run) > before)
        run.signal(signal.SIGINT)
        assert run.end() == 0 and "Traceback" not in run.stderr
        assert [row["step"] for row in run.metrics()] == sorted(row["step"] for row in run.metrics())


@pytest.mark.slow
def test_a_disk_that_stays_full_is_a_failure_at_the_end(tmp_path: Path) -> None:
    with train(tmp_path, "--runtime", "inline", "--steps", LONG, step_seconds=0.001) as run:
        run.until(run.checkpoints)
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (2000, 2000))
        run.until(lambda: "cannot save a checkpoint" in run.stderr)
        run.signal(signal.SIGINT)
        assert run.end() == 1
        assert "Traceback" not in run.stderr and "cannot write the run folder" in run.stderr.splitlines()[-1]
        assert newest(run) > 0


def test_a_log_that_cannot_be_written_costs_no_training(tmp_path: Path) -> None:
    """Not even standard error, which is a file here, can take another byte."""
    with train(tmp_path, "--runtime", "inline", "--steps", LONG, fault_kind="raise", fault_times=5) as run:
        run.until(run.checkpoints)
        free = resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (1, free[1]))
        run.until(lambda: len(run.broke_at()) == 5)
        before = newest(run)
        worked = run.cpu()
        run.until(lambda: run.cpu() > worked + 0.2)
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, free)
        run.until(lambda: newest(run) > before)


def test_resume_passes_over_damaged_checkpoints(tmp_path: Path) -> None:
    with train(tmp_path, "--runtime", "inline", "--steps", LONG) as run:
        run.until(lambda: len(run.checkpoints()) >= 3)
        run.signal(signal.SIGINT)
        assert run.end() == 0
        manifests = run.checkpoints()
        last, before = (int(path.stem.removeprefix("step-")) for path in (manifests[-1], manifests[-2]))
        damage(manifests[-1].with_suffix(".safetensors"))
        goal = str(last + 10 * STEPS_A_UPDATE)
        rows = len(run.metrics())
    with train(tmp_path, "--resume", "run", "--steps", goal, "--json") as again:
        assert again.end() == 0, again.stderr
        assert again.json["env_steps"] == int(goal)
        assert f"step-{last}.safetensors is damaged" in again.stderr.splitlines()[0]
        assert again.metrics()[rows]["step"] == before + STEPS_A_UPDATE
    for path in run.checkpoints():
        damage(path)
    with train(tmp_path, "--resume", "run", "--steps", goal + "0") as refused:
        assert refused.end() == 2
        assert "no checkpoint to resume" in refused.stderr.splitlines()[-1] and "Traceback" not in refused.stderr


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
