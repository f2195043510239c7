"""A function with knobs to choose and conditions that are given.

A point is a row of numbers: the columns of each knob (`axes`), then one column from -1 to 1 for each condition. Actions have
one column per knob. Laws, samplers and baselines use points; only f sees the knobs' own units.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import BadInput, nearest
from shoal.core.spec import ActionPart, ActionSpec
from shoal.core.trajectory import Array
from shoal.optimize import kinds, settling
from shoal.optimize.axes import Axis, Choice, Real, action_parts, grid, knob, module_of, real

Function = Callable[..., Any]
GRID = 441  # conditions of a score, at most: 21 x 21


class Problem:
    """f over knobs and conditions. Immutable; equal problems have the same f, axes, kind and robustness.

    Args:
        f: called with keyword arguments by knob and condition name, returns one number, smaller is better; or a list of
            such functions (devices), for which one answer must suit all.
        knobs: the inputs to choose: `(low, high)`, `range(...)` or a list of values, by name.
        conditions: the inputs that are given: `(low, high)` by name; none at all is plain optimisation.
        kind: how f can be called: `jax`, `numpy`, `python`, or `auto` to find out by a few calls.
        noisy: f gives another value each time; it is then never traced.
        subject_to: g, or a list of them, called as f is: a point is allowed if every g(...) <= 0 there.
        robust: how several devices are combined: `mean`, `worst`, or a number from 0 to 1, the quantile over them.
        name: the problem's name in reports; f's own name by default.

    Raises:
        BadInput: bounds reversed or infinite, a name twice, or an f of another arity or shape.
    """

    def __init__(
        self,
        f: Function | Sequence[Function],
        *,
        knobs: Mapping[str, Any],
        conditions: Mapping[str, tuple[float, float]] = MappingProxyType({}),
        kind: str = "auto",
        noisy: bool = False,
        subject_to: Function | Sequence[Function] = (),
        robust: str | float = "mean",
        name: str | None = None,
    ) -> None:
        self.devices: tuple[Function, ...] = tuple(f) if isinstance(f, Sequence) else (f,)
        self.limits: tuple[Function, ...] = tuple(subject_to) if isinstance(subject_to, Sequence) else (subject_to,)
        self.noisy, self.robust = noisy, robust
        self.penalty: tuple[tuple[float, float], ...] | None = None  # a step and a slope for each constraint
        if not self.devices or not all(callable(device) for device in self.devices):
            raise BadInput(f"f={f!r}: it must be a function or a list of functions")
        if not all(callable(g) for g in self.limits):
            raise BadInput(f"subject_to={subject_to!r}: it must be a function or a list of functions")
        self.name = name or str(getattr(self.devices[0], "__name__", type(self.devices[0]).__name__))
        if not knobs:
            raise BadInput(f"{self.name}: a problem needs at least one knob")
        if kind not in kinds.KINDS:
            raise BadInput(f"kind={kind!r}: it must be one of {', '.join(kinds.KINDS)}")
        settling.check_robust(robust)
        twice = sorted(set(knobs) & set(conditions))
        if twice:
            raise BadInput(f"{twice[0]!r} is both a knob and a condition: it can only be one")
        self.knobs: tuple[Axis, ...] = tuple(knob(n, written) for n, written in knobs.items())
        self.conditions: tuple[Real, ...] = tuple(real(n, bounds) for n, bounds in conditions.items())
        for device in self.devices:
            kinds.check_arity(device, self.names, self.name)
        for g, called in zip(self.limits, self.limit_names, strict=True):
            kinds.check_arity(g, self.names, called)
        self._forget()
        self.probe_s = math.inf  # seconds of an evaluation, the least of those that find the kind
        self.kind = settling.settle(self, kind)
        self.probes = self.evaluations  # evaluations used to find the kind

    # Description

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.knobs, *self.conditions)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @property
    def n_knobs(self) -> int:
        return len(self.knobs)

    @property
    def n_conditions(self) -> int:
        return len(self.conditions)

    @property
    def knob_width(self) -> int:
        """The number of columns of a point that an action sets."""
        return sum(axis.width for axis in self.knobs)

    @property
    def width(self) -> int:
        return self.knob_width + self.n_conditions

    @property
    def limit_names(self) -> tuple[str, ...]:
        return settling.limit_names(self.limits)

    @property
    def traceable(self) -> bool:
        return self.kind == "jax"

    @property
    def parts(self) -> tuple[ActionPart, ...]:
        """The parts of an action; neighbouring knobs of the same sort share one. Bounds are normalised, as points are."""
        return action_parts(self.knobs)

    def action_spec(self) -> ActionSpec:
        """The spec of actions [N, n_knobs]: one column per knob, in order."""
        return ActionSpec(self.parts)

    def describe(self) -> dict[str, Any]:
        """Names and bounds as plain values, ready for JSON."""
        return {
            "name": self.name,
            "knobs": {axis.name: axis.describe() for axis in self.knobs},
            "conditions": {axis.name: axis.describe() for axis in self.conditions},
            "devices": len(self.devices),
            "robust": self.robust,
            **({"subject_to": list(self.limit_names)} if self.limits else {}),
        }

    @property
    def fingerprint(self) -> str:
        """Equal for equal knobs and conditions: a law of another fingerprint answers another question."""
        told = self.describe()
        return hashlib.sha256(json.dumps([told["knobs"], told["conditions"]]).encode()).hexdigest()[:16]

    # Between points, actions and values

    def denormalise(self, points: Array) -> dict[str, Any]:
        """{name: values [N]} of points [N, width], knobs clipped to their bounds; a single point [width] gives plain values."""
        points = np.asarray(points, np.float64)
        self._check_width(points)
        found: dict[str, Any] = {}
        for axis, columns in self._split(points):
            if isinstance(axis, Choice):
                chosen = [axis.among[i] for i in axis.index(columns).reshape(-1)]
                found[axis.name] = chosen[0] if points.ndim == 1 else chosen
            else:
                values = self._values(axis, columns)
                found[axis.name] = values.item() if points.ndim == 1 else values
        return found

    def normalise(self, **values: Any) -> np.ndarray:
        """The point [width] of these values, or points [..., width] if some are arrays.

        Knobs that are left out take the middle of their box; every condition must be given.
        """
        self._check_names(values, self.names)
        columns = []
        for axis in self.axes:
            if axis.name in values:
                columns.append(axis.encode(values[axis.name]))
            elif axis in self.knobs:
                columns.append(axis.middle())
            else:
                raise BadInput(f"condition {axis.name!r} is missing: {self.name} needs {self._listed(self.conditions)}")
        shape = np.broadcast_shapes(*(c.shape[:-1] for c in columns))
        return np.concatenate([np.broadcast_to(c, (*shape, c.shape[-1])) for c in columns], -1)

    def from_action(self, points: Array, action: Array) -> Array:
        """Points [..., width] with the knobs of the action [..., n_knobs] and unchanged conditions. Traceable."""
        xp = module_of(action) if isinstance(action, jax.Array) else module_of(points)
        action = xp.asarray(action)
        columns = [axis.columns(action[..., i]).astype(points.dtype) for i, axis in enumerate(self.knobs)]
        return xp.concatenate([*columns, xp.asarray(points)[..., self.knob_width :]], -1)

    def check_range(self, **conditions: Any) -> list[str]:
        """The names of conditions with a value outside the bounds."""
        self._check_names(conditions, [axis.name for axis in self.conditions])
        given = [axis for axis in self.conditions if axis.name in conditions]
        edge = 1.0 + 1e-9  # rounding must not push a bound outside itself
        return [axis.name for axis in given if (np.abs(axis.encode(conditions[axis.name])) > edge).any()]

    # Points

    def mid(self) -> np.ndarray:
        """The knobs' columns [knob_width] in the middle of their box; for a choice, the middle value."""
        return np.concatenate([axis.middle() for axis in self.knobs])

    def join(self, knobs: Array, conditions: Array) -> np.ndarray:
        """Points [N, width] from knob columns [N, knob_width] or [knob_width] and conditions [N, n_conditions]."""
        conditions = np.asarray(conditions, np.float64)
        shape = np.broadcast_shapes(np.shape(knobs)[:-1], conditions.shape[:-1])
        both = [np.broadcast_to(part, (*shape, np.shape(part)[-1])) for part in (np.asarray(knobs), conditions)]
        return np.concatenate(both, -1)

    def sample_knobs(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Columns [n, knob_width], uniform over the box."""
        return np.concatenate([axis.random(rng, n) for axis in self.knobs], -1)

    def sample_conditions(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """[n, n_conditions], uniform from -1 to 1."""
        return rng.uniform(-1.0, 1.0, (n, self.n_conditions))

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Points [n, width], uniform over knobs and conditions."""
        return np.concatenate([self.sample_knobs(rng, n), self.sample_conditions(rng, n)], -1)

    def condition_grid(self, most: int = GRID) -> np.ndarray:
        """[C, n_conditions]: -1, -0.9, ... 1 along each condition, coarser if that is more than `most` points.

        If fewer than three along each would fit, a fixed Latin hypercube of `most` points; [1, 0] without conditions.
        """
        return grid(self.n_conditions, most)

    # Values of f

    def evaluate(self, points: Array) -> np.ndarray:
        """Values [N] of points [N, width], over all devices; NaN where any of them failed, counted in `failures`.

        NaN as well where a constraint is violated; after `with_penalty`, f and the penalty.
        """
        return np.asarray(self._allowed(*self.measure(points), np))

    def measure(self, points: Array) -> tuple[np.ndarray, np.ndarray]:
        """f at points [N, width] over all devices, [N], and the constraints, [G, N]; NaN where they failed. One evaluation each."""
        values = np.asarray(self._over_devices(self.evaluate_each(points), np))
        if not self.limits:
            return values, np.zeros((0, len(values)))
        return values, self._called(np.asarray(points), self.limits, self._compiled_limits)

    def with_penalty(self, penalty: tuple[tuple[float, float], ...]) -> Problem:
        """A copy whose `evaluate` adds to f what violations cost: for each constraint a step, and a slope times g."""
        made = copy.copy(self)
        made.penalty = penalty
        return made

    def evaluate_each(self, points: Array) -> np.ndarray:
        """Values [devices, N], in the points' precision if f is traced; NaN where f raised or was not finite."""
        points = np.asarray(points)
        self._check_width(points)
        if points.ndim != 2:
            raise BadInput(f"points of shape {points.shape}: they must be [N, {self.width}]")
        self.evaluations += len(points)
        each = self._called(points, self.devices, self._compiled)
        failed = int(np.isnan(each).any(0).sum())
        if failed:
            self._failed.append(failed)
        return each

    def evaluate_jax(self, points: Array) -> Array:
        """Values [...] of points [..., width], for use inside jit; NaN where f is not finite. Counts nothing."""
        flat = points.reshape(-1, self.width)
        limits = self._trace(flat, self.limits) if self.limits else jnp.zeros((0, len(flat)))
        values = self._allowed(self._over_devices(self._trace(flat, self.devices), jnp), limits, jnp)
        return values.reshape(points.shape[:-1])

    @property
    def failures(self) -> int:
        """Number of points that failed in `evaluate` in this process; a copy in another process counts its own."""
        return sum(self._failed)

    @property
    def last_error(self) -> str | None:
        """The reason of the last failure; None if there was none, or if f is compiled and gives no reason."""
        return self._reasons[-1] if self._reasons else None

    def _called(self, points: np.ndarray, functions: Sequence[Function], compiled: Function) -> np.ndarray:
        if self.traceable:
            return self._evaluate_traced(points, compiled)
        return self._evaluate_plain(points.astype(np.float64), functions)

    def _evaluate_traced(self, points: np.ndarray, compiled: Function) -> np.ndarray:
        double = points.dtype == np.float64
        size = len(points)
        padded = 1 << max(0, size - 1).bit_length()  # each new size costs a compilation
        full = np.concatenate([points, np.repeat(points[:1], padded - size, 0)]) if 0 < size < padded else points
        with jax.enable_x64(double):
            values = compiled(full if double else full.astype(np.float32))
            return np.array(values)[:, :size]  # a writable copy

    def _trace(self, points: Array, functions: Sequence[Function]) -> Array:
        if not self.traceable:
            raise BadInput(f"{self.name} is called as {self.kind}: only a JAX-traceable f can be part of compiled code")
        table = {axis.name: self._values(axis, columns) for axis, columns in self._split(points)}
        each = jnp.stack([kinds.trace(device, table).astype(points.dtype) for device in functions])
        return jnp.where(jnp.isfinite(each), each, jnp.nan)

    def _evaluate_plain(self, points: np.ndarray, functions: Sequence[Function]) -> np.ndarray:
        table = {axis.name: self._values(axis, columns) for axis, columns in self._split(points)}
        rows = list(self.rows(points))
        each = []
        for device in functions:
            if self.kind == "numpy" and not self._raised:
                values, reason, raised = kinds.call_arrays(device, table, rows, self.name)
                self._raised |= raised
                self.evaluations += len(rows) * (raised and functions is self.devices)  # all of them again, one by one
            else:
                values, reason = kinds.call_rows(device, rows, self.name)
            each.append(values)
            if reason is not None:
                self._reasons.append(reason)
        return np.stack(each)

    def _allowed(self, values: Array, limits: Array, xp: Any) -> Array:
        """f [N] as `evaluate` gives it, where the constraints have values [G, N]."""
        if not self.limits:
            return values
        if self.penalty is None:
            return xp.where((limits <= 0.0).all(0), values, xp.nan)
        step, slope = xp.asarray(self.penalty).astype(values.dtype).T[..., None]
        return values + (step * (limits > 0.0) + slope * xp.maximum(limits, 0.0)).sum(0)

    def _over_devices(self, each: Array, xp: Any) -> Array:
        return each[0] if len(self.devices) == 1 else settling.over_devices(each, self.robust, xp)

    def rows(self, points: np.ndarray) -> Iterable[kinds.Row]:
        """The arguments of f at each of the points [N, width]."""
        values = self.denormalise(points)
        plain = [v if isinstance(v, list) else v.tolist() for v in values.values()]
        return (dict(zip(values, row, strict=True)) for row in zip(*plain, strict=True))

    def _values(self, axis: Axis, columns: Array) -> Array:
        return axis.values(columns) if axis in self.conditions and isinstance(axis, Real) else axis.bounded(columns)

    def _split(self, points: Array) -> Iterable[tuple[Axis, Array]]:
        at = 0
        for axis in self.axes:
            yield axis, points[..., at : at + axis.width]
            at += axis.width

    def _check_width(self, points: np.ndarray) -> None:
        if points.shape[-1:] != (self.width,):
            raise BadInput(f"points of shape {points.shape}: {self.name} has {self.width} columns")

    def _check_names(self, given: Iterable[str], valid: Sequence[str]) -> None:
        for name in given:
            if name not in valid:
                known = ", ".join(valid) or "none"
                raise BadInput(f"{self.name} has no {name!r}: it has {known}.{nearest(name, valid)}")

    def _listed(self, axes: Sequence[Axis]) -> str:
        return ", ".join(axis.name for axis in axes)

    # Equal, hashed, sent to another process

    def _key(self) -> tuple[Any, ...]:
        return (
            self.devices,
            repr(self.axes),
            self.n_knobs,
            self.kind,
            self.noisy,
            self.robust,
            self.limits,
            self.penalty,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Problem({self.name}, knobs={self._listed(self.knobs)}, conditions={self._listed(self.conditions)})"

    def _forget(self) -> None:
        """Reset this process's own state. Appending to a deque is atomic, so drivers may share a problem."""
        self._failed: deque[int] = deque()
        self._reasons: deque[str] = deque(maxlen=1)
        self._compiled = jax.jit(lambda points: self._trace(points, self.devices))
        self._compiled_limits = jax.jit(lambda points: self._trace(points, self.limits))
        self.evaluations = 0  # points at which `evaluate` called f; a copy (each driver has one) counts its own
        self._raised = False  # an f called with arrays has raised: from then on it is called point by point

    def __getstate__(self) -> dict[str, Any]:
        own = ("_failed", "_reasons", "_compiled", "_compiled_limits", "evaluations", "_raised")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
