"""No job outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mpi_job import LIVE


@pytest.fixture(autouse=True)
def _no_job_is_left() -> Iterator[None]:
    yield
    while LIVE:
        LIVE.pop().kill()
