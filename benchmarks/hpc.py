"""Measurements for clusters: the Stream port between ranks, and Bellman targets computed elsewhere."""

from __future__ import annotations

from pathlib import Path

from rooms import HERE, Failed, run_json
from shoal_runs import PYTHON
from targets import Result, Target

MPIEXEC = str(Path(PYTHON).with_name("mpiexec"))


def mpi_queue(quick: bool) -> Result:
    """The Stream port between two ranks under MPICH, by shared and by one-sided windows; beside `queue`, which has no MPI."""
    more = ["--quick"] if quick else []
    try:
        found = run_json([MPIEXEC, "-n", "2", PYTHON, str(HERE / "mpi_queue.py"), *more], timeout=600)
        without = run_json([PYTHON, str(HERE / "queue_speed.py"), *more], timeout=300)
    except Failed as failure:
        return Result([{"who": "Shoal", "error": str(failure)}], [])
    cases = {case: row for case, row in found.items() if isinstance(row, dict)}
    cases |= {f"no MPI, {case}": row for case, row in without.items() if isinstance(row, dict)}
    return Result([{"who": "Shoal", "case": case, **row} for case, row in cases.items()], [])


def offload(quick: bool) -> Result:
    """Bellman targets of a minibatch, net 8-64-128-4: one sample at a time (as published), batched, and each of them spread over
    idle processes (the published remedy for the first: 3.3 times on 4 processes)."""
    try:
        found = run_json([PYTHON, str(HERE / "offload.py"), *(["--quick"] if quick else [])], timeout=900)
    except Failed as failure:
        return Result([{"who": "Shoal", "error": str(failure)}], [])
    rows = [{"who": "Shoal", **row} for row in found["rows"]]
    gain = next(row["gain"] for row in rows if row["case"] == "128: batched")
    return Result(rows, [Target("batched, times one at a time, minibatch of 128", gain, ">= 10")])
