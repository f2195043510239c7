"""The contract of every port with its ends on four ranks, through shared windows and through one-sided ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mpi_job import HERE, Job


@pytest.fixture(scope="module", params=["shared", "rma"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    job = Job(folder, 4, str(HERE / "ports_on_ranks.py"), request.param)
    code = job.end()
    assert code == 0, job.err.read_text()[-3000:]
    return [{"windows": request.param, **line} for line in job.lines]


def test_every_contract_holds(results: list[dict[str, Any]]) -> None:
    failed = [f"{line['test']}: {line['failure']}" for line in results if line["failure"]]
    assert not failed, "\n\n".join(failed)


def test_all_of_them_ran(results: list[dict[str, Any]]) -> None:
    ran = {line["test"].partition(".")[0].partition(":")[0] for line in results}
    everywhere = {"TestStream", "TestSharedStream", "TestBoard", "TestGroupOfRanks", "hammer"}
    shared = {"TestTable", "TestRoster", "TestCall", "TestGroup", "TestPool"}
    assert ran == everywhere | (shared if results[0]["windows"] == "shared" else set())
    assert len(results) > 30
