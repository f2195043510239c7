"""Shoal: distributed deep reinforcement learning. One algorithm, every topology.

`import shoal` is quick: JAX and the environments load when they are first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.launch import Run as Run
    from shoal.launch import load as load
    from shoal.launch import train as train

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    if name in ("train", "load", "Run"):
        from shoal import launch

        return getattr(launch, name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
