"""JAX settings of this process: one compute thread, synchronous dispatch, compilations kept on disk."""

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
    """Let Python's garbage collector run once per 50,000 new objects instead of once per 700.

    For Shoal's own processes. Imports and tracing make hundreds of thousands of objects, nearly all permanent, and scanning
    them repeatedly takes a tenth of the time to the first step.
    """
    gc.set_threshold(50_000, 20, 20)


def cache_folder() -> Path | None:
    """The folder for compiled code between runs: $SHOAL_CACHE, or one in the user's cache; None if $SHOAL_CACHE is `off`."""
    chosen = os.environ.get("SHOAL_CACHE")
    if chosen == "off":
        return None
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "shoal"


@cache
def settle_process() -> None:
    """Configure JAX for this process. Call it before the first JAX computation; later calls do nothing.

    XLA gets one thread, because actors already fill the cores and results depend on the size of its pool. Dispatch is
    synchronous, because with one thread an actor's call would wait behind a whole update.
    """
    os.environ["NPROC"] = "1"
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not _accelerator():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    config: Any = jax.config  # untyped in JAX
    config.update("jax_cpu_enable_async_dispatch", False)
    folder = cache_folder()
    if config.jax_compilation_cache_dir is None and folder is not None:
        config.update("jax_compilation_cache_dir", str(folder / "xla"))
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _straight_random_bits()


def _straight_random_bits() -> None:
    """Compile JAX's hash without the loop that it uses only on CPUs: the same bits, in one pass instead of eighty small ones.

    There is no public switch. A JAX version with other internals computes the same bits, more slowly for small nets.
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
    """Exclude all existing objects from garbage collection inside the block.

    JAX keeps hundreds of thousands of objects, and a full collection over them stops every thread for a third of a second.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def available_memory() -> int:
    """Bytes that can still be used without swapping and within the limits of the control group."""
    machine, group = _machine_memory(), memory_left()
    return machine if group is None else min(machine, group)


def _machine_memory() -> int:
    """Bytes that are free or can be freed; all of the machine's memory if the system does not report them."""
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))


def _accelerator() -> bool:
    """Whether there may be a GPU: then JAX chooses the platform itself."""
    return sys.platform == "linux" and Path("/proc/driver/nvidia").exists()
