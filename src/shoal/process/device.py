"""How JAX uses this process: one compute thread, calls that return when they are done, compilations kept on disk."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from shoal.process.limits import memory_left


def collect_rarely() -> None:
    """Let Python's garbage collector run once in 50,000 new objects instead of once in 700.

    For processes of Shoal's own. Imports and tracing make hundreds of thousands of objects, nearly all of which stay, and
    looking through them again and again takes a tenth of the time to the first step.
    """
    gc.set_threshold(50_000, 20, 20)


def cache_folder() -> Path:
    """Where compiled code is kept between runs: $SHOAL_CACHE, or the user's cache folder."""
    chosen = os.environ.get("SHOAL_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "shoal"


@cache
def settle_process() -> None:
    """Call before the first JAX computation of a process; later calls do nothing.

    One thread, because actors already fill the cores, and because results depend on the size of XLA's pool. Synchronous
    dispatch, because with one thread an actor's call would wait behind a whole update.
    """
    os.environ["NPROC"] = "1"
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not _accelerator():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    config: Any = jax.config  # untyped in JAX
    config.update("jax_cpu_enable_async_dispatch", False)
    if config.jax_compilation_cache_dir is None:
        config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _straight_random_bits()


def _straight_random_bits() -> None:
    """Compile JAX's hash without the loop that it has on CPUs alone: the same bits, in one pass instead of eighty small ones.

    There is no public switch. A JAX that keeps it elsewhere computes the same, and slower where nets are small.
    """
    try:
        from jax._src.interpreters import mlir
        from jax._src.random import threefry2x32
    except ImportError:
        return
    private: Any = threefry2x32
    rule = getattr(private, "_threefry2x32_lowering_rule", None)
    if rule is not None:
        mlir.register_lowering(private.threefry2x32_p, rule, platform="cpu")


@contextmanager
def unscanned() -> Iterator[None]:
    """What is there already is left out of garbage collections meanwhile.

    JAX keeps hundreds of thousands of objects, and a full collection over them stops every thread for a third of a second.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def available_memory() -> int:
    """Bytes that may still be used: without swapping, and within the limits of a control group."""
    machine, group = _machine_memory(), memory_left()
    return machine if group is None else min(machine, group)


def _machine_memory() -> int:
    """Bytes that are free or can be freed, as far as the system tells; else all that there are."""
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))


def _accelerator() -> bool:
    """Whether a GPU could be there: then JAX chooses the platform itself."""
    return sys.platform == "linux" and Path("/proc/driver/nvidia").exists()
