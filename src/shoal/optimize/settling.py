"""The kind of calls that a problem's functions allow (see `kinds`), and how the values of several devices are combined."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from shoal.core.errors import BadInput
from shoal.core.trajectory import Array
from shoal.optimize import kinds

if TYPE_CHECKING:
    from shoal.optimize.problem import Problem


def limit_names(limits: Sequence[Callable[..., Any]]) -> tuple[str, ...]:
    """A name for each constraint: its function's, if all have names and no two the same."""
    own = [str(getattr(g, "__name__", type(g).__name__)) for g in limits]
    plain = all(name.isidentifier() for name in own) and len(set(own)) == len(own)
    return tuple(own) if plain else tuple(f"limit{i + 1}" for i in range(len(own)))


ROBUST = ("mean", "worst")


def check_robust(robust: Any) -> None:
    """Raise `BadInput` unless `robust` is one of `ROBUST` or a quantile."""
    number = isinstance(robust, int | float) and not isinstance(robust, bool) and 0 <= robust <= 1
    if robust not in ROBUST and not number:
        raise BadInput(f"robust={robust!r}: it must be one of {', '.join(ROBUST)}, or a quantile from 0 to 1")


def over_devices(each: Array, robust: str | float, xp: Any) -> Array:
    """Values [devices, N] to [N]. NaN where any device has NaN."""
    if robust == "mean":
        return each.mean(0)
    return xp.max(each, 0) if robust == "worst" else xp.quantile(each, robust, axis=0)


def settle(problem: Problem, kind: str) -> str:
    """The kind for `kind`, which may be `auto`. Evaluations that it takes are counted in `problem.evaluations`."""
    functions = (*problem.devices, *problem.limits)
    if problem.noisy and kind == "jax":
        raise BadInput(f"{problem.name} is noisy and kind='jax': tracing would freeze its noise")
    if problem.noisy and kind == "auto":
        return "python"  # arrays and plain calls cannot be compared if no two values agree
    if kind == "jax":
        _check_traces(problem, functions)
    if kind != "auto":
        return kind
    names = (problem.name,) * len(problem.devices) + problem.limit_names
    found = {
        kinds.choose(_counted(problem, f) if f in problem.devices else f, _rows(problem), _carried(problem), name)
        for f, name in zip(functions, names, strict=True)
    }
    return next(k for k in ("python", "numpy", "jax") if k in found)  # the way that all of them allow


def _counted(problem: Problem, device: Callable[..., Any]) -> Callable[..., Any]:
    def call(**row: Any) -> Any:
        points = max(int(np.size(value)) for value in row.values())
        problem.evaluations += points
        began = time.perf_counter()
        found = device(**row)
        if not any(isinstance(value, jax.core.Tracer) for value in row.values()):
            problem.probe_s = min(
                problem.probe_s, (time.perf_counter() - began) * len(problem.devices) / max(1, points)
            )
        return found

    return call


def _check_traces(problem: Problem, functions: tuple[Callable[..., Any], ...]) -> None:
    table = _carried(problem)(_rows(problem)(3))
    if table is None:
        odd = next(axis.name for axis in problem.knobs if not axis.numeric)
        raise BadInput(f"knob {odd!r} has values that JAX cannot carry: use kind='python' or numbers")
    for f in functions:
        try:
            kinds.traced_values(f, table)
        except BadInput:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise BadInput(f"{problem.name} cannot be traced by JAX, kind='jax': {reason}") from None


def _rows(problem: Problem) -> Callable[[int], list[kinds.Row]]:
    return lambda n: list(problem.rows(problem.sample(np.random.default_rng(0), n)))


def _carried(problem: Problem) -> Callable[[list[kinds.Row]], kinds.Table | None]:
    def table(rows: list[kinds.Row]) -> kinds.Table | None:
        if not all(axis.numeric for axis in problem.axes):
            return None
        return {axis.name: np.asarray([row[axis.name] for row in rows]) for axis in problem.axes}

    return table
