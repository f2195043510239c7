"""Every test process uses JAX as a run does, with compilations kept between test runs."""

from __future__ import annotations

import ctypes
import gc
import logging
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from shoal.process import compile_ahead, memory
from shoal.process.device import collect_rarely, settle_process

collect_rarely()
settle_process()
compile_ahead.KEPT = 64  # many tests compile the same; a run compiles a few functions once


@pytest.fixture(autouse=True)
def _quiet_log() -> None:
    logging.getLogger("shoal").setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def _spares_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`shoal join` spares memory for the rest of its process, which takes seconds at each compilation in one as large as this."""
    monkeypatch.setattr(memory, "_state", {"sparing": False})


MAPS, MEMORY = Path("/proc/self/maps"), Path("/proc/self/statm")
MANY = 20_000  # mappings; the kernel allows 65,530 a process, and each compiled function takes several
ROOM = (
    1250 * 2**20
)  # bytes of memory that a test process may use before it frees what it compiled: 1.5 GB are not exceeded
MORE = 150 * 2**20  # bytes on top of what was left after freeing: below that, freeing again would only compile again


def _resident() -> int:
    return int(MEMORY.read_text().split()[1]) * resource.getpagesize() if MEMORY.exists() else 0


_left = 0  # bytes after the last time that something was freed


@pytest.fixture(autouse=True)
def _room_for_data() -> Iterator[None]:
    """One process compiles for thousands of tests: what was compiled before goes, before it takes too much memory."""
    yield
    if _resident() > max(ROOM, _left + MORE):
        _collect()  # cycles that hold arrays and compiled functions are a fifth of it, and nothing compiles again
        if _resident() > ROOM - MORE:
            _free()


@pytest.fixture(autouse=True, scope="module")
def _room_for_code() -> Iterator[None]:
    """The same for mappings, which take longer to count."""
    yield
    if MAPS.exists() and MAPS.read_text().count("\n") > MANY:
        _free()


def _free() -> None:
    compile_ahead.forget()
    jax.clear_caches()
    _collect()


def _collect() -> None:
    global _left
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # the C library would keep what is freed
    _left = _resident()
