"""Every test process uses JAX as a run does, with compilations kept between test runs."""

from __future__ import annotations

import logging

import pytest

from shoal.core.device import settle_process

settle_process()


@pytest.fixture(autouse=True)
def _quiet_log() -> None:
    logging.getLogger("shoal").setLevel(logging.WARNING)
