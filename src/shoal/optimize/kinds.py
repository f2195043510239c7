"""Ways to call a function: one point at a time (python), on arrays (numpy), or traced and compiled (jax).

`choose` picks one by comparing tracing and arrays with plain calls at a few points. A function that draws random numbers
would repeat the first ones when traced, so a difference rules tracing out.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import BadInput
from shoal.core.trajectory import Array

KINDS = ("auto", "jax", "numpy", "python")
# A Python number that took longer came from Python code, which tracing or arrays would run once instead of each time.
_SLOW_S = 1e-3
_PATIENCE_S = 0.5  # for plain calls when probing a function
_PROBES = 8
_ENOUGH = 3

Function = Callable[..., Any]
Row = Mapping[str, Any]  # {name: value}
Table = Mapping[str, Array]  # {name: [N]}


class Failed(NamedTuple):
    """An evaluation that gave no finite number, and why."""

    reason: str


def check_arity(f: Function, names: Sequence[str], who: str) -> None:
    """Refuse an f that cannot be called with exactly these keyword arguments, naming the first that does not fit."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # a builtin has no signature: its first call will tell
        return
    taken = signature.parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in taken)
    by_name = [p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in names:
        if name not in by_name and not takes_any:
            raise BadInput(f"{who} takes no parameter {name!r}: it must take every knob and condition by name")
    for p in taken:
        required = p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        if required and (p.name not in names or p.kind is p.POSITIONAL_ONLY):
            raise BadInput(f"{who} needs a parameter {p.name!r} that is neither a knob nor a condition")


def call_one(f: Function, row: Row, who: str) -> float | Failed:
    """One plain call. An exception, NaN or infinity gives `Failed`; a result that is not a number raises `BadInput`."""
    return _plain(f, row, who)[0]


def _plain(f: Function, row: Row, who: str) -> tuple[float | Failed, type]:
    """The result of a call as a number, and its original type."""
    try:
        with np.errstate(all="ignore"):
            got = f(**row)
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}".splitlines()[0]), type(None)
    value = _as_number(got, who)
    return (value if math.isfinite(value) else Failed(f"it returned {value}")), type(got)


def _as_number(got: Any, who: str) -> float:
    if isinstance(got, int | float):  # the common case first: this is in the inner loop
        return float(got)
    array = np.asarray(got) if hasattr(got, "shape") else None
    if array is None or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise BadInput(f"{who} returned {_shown(got)}: it must return one number for a point")
    if array.shape != ():
        raise BadInput(f"{who} returned an array of shape {array.shape}: it must return one number for a point")
    return float(got)


def _shown(got: Any) -> str:
    text = repr(got)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(got).__name__}"


def call_batch(f: Function, table: Table, size: int, who: str) -> np.ndarray:
    """Values [N] by one call on arrays [N]. Passes on exceptions of f; raises `BadInput` for another shape."""
    with np.errstate(all="ignore"):
        got = np.asarray(f(**table))
    if got.shape != (size,):
        raise BadInput(
            f"{who} returned shape {got.shape} for arrays of shape ({size},): it must return one value for each"
        )
    return got.astype(np.float64)


def call_rows(f: Function, rows: Sequence[Row], who: str) -> tuple[np.ndarray, str | None]:
    """Values [N] by plain calls, NaN where f failed, and the reason of the last failure."""
    values, reason = np.full(len(rows), np.nan), None
    for i, row in enumerate(rows):
        value = call_one(f, row, who)
        if isinstance(value, Failed):
            reason = value.reason
        else:
            values[i] = value
    return values, reason


def call_arrays(f: Function, table: Table, rows: Sequence[Row], who: str) -> tuple[np.ndarray, str | None, bool]:
    """As `call_rows`, in one call on arrays. If that raises, one by one: a bad row must not cost the others.

    The third result says whether it raised.
    """
    try:
        values = call_batch(f, table, len(rows), who)
    except BadInput:
        raise
    except Exception:
        return *call_rows(f, rows, who), True
    failed = ~np.isfinite(values)
    why = "it returned a value that is not finite" if failed.any() else None
    return np.where(failed, np.nan, values), why, False


def trace(f: Function, table: Table) -> Array:
    """Values [N] of a traceable f at arrays [N]; pure."""

    def one(row: Row) -> Array:
        value = jnp.asarray(f(**row))
        if value.shape != ():
            raise BadInput(f"f returned an array of shape {value.shape}: it must return one number for a point")
        return value

    return jax.vmap(one)(dict(table))


def choose(f: Function, rows: Callable[[int], list[Row]], table: Callable[[list[Row]], Table | None], who: str) -> str:
    """`jax`, `numpy` or `python`: the fastest way to call f with the same results as plain calls.

    Args:
        f: called by keyword.
        rows: gives n random points, each as the arguments of a plain call.
        table: the same points as arrays; None if JAX cannot hold them.
        who: f's name, for errors.
    """
    seen: list[tuple[Row, float]] = []
    made: set[type] = set()
    quickest, began = math.inf, time.perf_counter()
    for row in rows(_PROBES):
        start = time.perf_counter()
        value, kind = _plain(f, row, who)
        quickest = min(quickest, time.perf_counter() - start)
        if isinstance(value, float):
            seen.append((row, value))
            made.add(kind)
        if len(seen) == _ENOUGH or time.perf_counter() - began > _PATIENCE_S:
            break
    if not seen or (quickest > _SLOW_S and made <= {int, float}):
        return "python"
    points, values = [row for row, _ in seen], np.array([value for _, value in seen])
    carried = table(points)
    if carried is not None and _agrees(values, lambda: traced_values(f, carried)):
        return "jax"
    arrays = {name: np.asarray([row[name] for row in points]) for name in points[0]}
    if len(points) > 1 and _agrees(values, lambda: call_batch(f, arrays, len(points), who)):
        return "numpy"
    return "python"


def traced_values(f: Function, table: Table) -> np.ndarray:
    """Values [N] in double precision, so that they can be compared with plain calls."""
    with jax.enable_x64(True):
        return np.asarray(jax.jit(lambda t: trace(f, t))({n: jnp.asarray(a) for n, a in table.items()}), np.float64)


def _agrees(values: np.ndarray, other: Callable[[], np.ndarray]) -> bool:
    try:
        got = other()
    except Exception:  # f may raise anything on arrays or tracers: then it needs plain calls
        return False
    return bool(np.allclose(got, values, rtol=1e-4, atol=1e-6 * float(np.max(np.abs(values)))))
