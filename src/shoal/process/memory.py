"""Memory that compilations leave behind, for processes on small devices.

Tracing leaves cycles of Python objects, and glibc keeps what a compilation has freed for later allocations. Both add to the peak of
the next compilation.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any

M_ARENA_MAX = -8  # glibc's malloc.h

_state = {"sparing": False}


def spare_memory() -> None:
    """From now on, release unused memory before and after each compilation, and let all threads share one heap.

    For a process of Shoal's own: a child on a small device. It makes the first start slower, and a warm one not at all.
    """
    _state["sparing"] = True
    limit = _glibc("mallopt")
    if limit is not None:
        limit(M_ARENA_MAX, 1)


def release() -> bool:
    """Give unused memory back to the system if this process spares it; whether it does."""
    if not _state["sparing"]:
        return False
    gc.collect()
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)
    return True


def _glibc(name: str) -> Any:
    """A function of glibc; None with another C library."""
    return getattr(ctypes.CDLL(None), name, None)
