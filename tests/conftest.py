"""Every test process uses JAX as a run does, with compilations kept between test runs."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from shoal.process.device import settle_process

settle_process()


@pytest.fixture(autouse=True)
def _quiet_log() -> None:
    logging.getLogger("shoal").setLevel(logging.WARNING)


MAPS = Path("/proc/self/maps")
MANY = 20_000  # mappings; the kernel allows 65,530 a process, and each compiled function takes several


@pytest.fixture(autouse=True, scope="module")
def _room_for_code() -> Iterator[None]:
    """One process compiles for thousands of tests: what earlier modules compiled goes before there is no room for more."""
    yield
    if MAPS.exists() and MAPS.read_text().count("\n") > MANY:
        jax.clear_caches()
        gc.collect()
