"""Shoal: distributed deep reinforcement learning. One algorithm, every topology.

`import shoal` is quick: JAX and the environments are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.api import Reply as Reply
    from shoal.api import Run as Run
    from shoal.api import RunHandle as RunHandle
    from shoal.api import load as load
    from shoal.api import train as train
    from shoal.api import tune as tune
    from shoal.optimize import learn_to_optimize as learn_to_optimize

__version__ = "0.1.0"
__all__ = [
    "Reply",
    "Run",
    "RunHandle",
    "__version__",
    "learn_to_optimize",
    "load",
    "optimize",
    "train",
    "tune",
    "tuning",
]


def __getattr__(name: str) -> Any:
    if name in ("train", "tune", "load", "Run", "Reply", "RunHandle"):
        from shoal import api

        return getattr(api, name)
    if name == "learn_to_optimize":
        from shoal.optimize import learn_to_optimize

        return learn_to_optimize
    if name in ("optimize", "tuning"):
        import importlib

        return importlib.import_module(f"shoal.{name}")
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
