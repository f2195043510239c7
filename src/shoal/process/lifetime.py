"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import signal


def killed_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, whatever either is doing. Works only on Linux."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
