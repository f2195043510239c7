"""The bell between processes, on any descriptor."""

from __future__ import annotations

import fcntl
import os
import resource
import time
from collections.abc import Iterator

import pytest

from shoal.runtimes.processes import EventfdBell


@pytest.fixture
def high_fd() -> Iterator[int]:
    """An eventfd above 1023, which `select` cannot take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"at most {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    low = os.eventfd(0, os.EFD_NONBLOCK)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
    os.close(low)
    yield high
    os.close(high)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_bell_takes_any_descriptor_and_keeps_a_ring(high_fd: int) -> None:
    assert high_fd > 1023
    bell = EventfdBell(high_fd)
    bell.ring()
    bell.ring()
    began = time.monotonic()
    bell.wait(1000.0)
    assert time.monotonic() - began < 500
    with pytest.raises(BlockingIOError):  # the rings were taken
        os.eventfd_read(high_fd)


def test_a_wait_ends_without_a_ring(high_fd: int) -> None:
    began = time.monotonic()
    EventfdBell(high_fd).wait(0.0015)
    assert time.monotonic() - began >= 0.0015
