"""Memory given back to the system, in processes that ask for it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from shoal.process import memory

STATM = Path("/proc/self/statm")


def resident() -> int:
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def test_nothing_is_released_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(memory._state, "sparing", False)
    assert not memory.release()


@pytest.mark.skipif(not STATM.exists(), reason="reads its memory from /proc")
def test_freed_memory_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block stays in use, so that glibc alone returns nothing."""
    monkeypatch.setitem(memory._state, "sparing", True)
    blocks = [bytes(8000) for _ in range(8000)]
    del blocks[1:-1]
    kept = resident()
    assert memory.release()
    assert kept - resident() > 32 << 20
    assert len(blocks) == 2
