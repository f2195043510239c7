"""One thread for small matrices.

A Gaussian process of some hundred rows takes thousands of small factorisations. OpenBLAS shares each of them out among all cores,
and its threads spin while they wait for each other: on a busy machine that takes ten times the processor time of one thread.
The limit holds only inside `one_thread`, so that f keeps the threads it wants. With another BLAS, nothing is limited.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

_ENDINGS = ("64_", "")  # NumPy's wheels have 64-bit integers, SciPy's do not


class _Blas(NamedTuple):
    get: Callable[[], int]
    set: Callable[[int], None]


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit the OpenBLAS of NumPy and SciPy to one thread. May be nested; the former limits come back."""
    before = [(blas, blas.get()) for blas in _libraries()]
    for blas, threads in before:
        if threads != 1:
            blas.set(1)
    try:
        yield
    finally:
        for blas, threads in before:
            if threads != 1:
                blas.set(threads)


@cache
def _libraries() -> tuple[_Blas, ...]:
    found = []
    for package in (np, scipy):
        home = Path(str(package.__file__)).parent
        places = (home.parent / f"{package.__name__}.libs", home / ".dylibs")  # of wheels for Linux and macOS
        for path in (path for place in places for path in sorted(place.glob("*openblas*"))):
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                continue
            found += [_Blas(get, put) for get, put in _functions(library)]
    return tuple(found)


def _functions(library: Any) -> Iterator[tuple[Callable[[], int], Callable[[int], None]]]:
    for ending in _ENDINGS:
        for prefix in ("scipy_openblas", "openblas"):
            get = getattr(library, f"{prefix}_get_num_threads{ending}", None)
            put = getattr(library, f"{prefix}_set_num_threads{ending}", None)
            if get is not None and put is not None:
                get.restype, put.restype, put.argtypes = ctypes.c_int, None, [ctypes.c_int]
                yield get, put
                return
