"""A law as a Python file of its own, for a device that has only NumPy. It holds the raw policy, without a surrogate."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.errors import BadInput
from shoal.optimize import axes

if TYPE_CHECKING:
    from shoal.optimize.law import Law


def source_of(law: Law) -> str:
    """The source of a module with one function, `law(**conditions)`."""
    w = law.weights
    matrices = [*(m for pair in w.layers for m in pair), *w.head]
    if w.mean is not None and w.scale is not None:
        matrices += [w.mean, w.scale]
    packed = [
        (list(m.shape), base64.b64encode(np.ascontiguousarray(m, np.float32).tobytes()).decode()) for m in matrices
    ]
    knobs = [_knob(axis, at) for axis, at in zip(law.problem.knobs, law.columns_of_head(), strict=True)]
    conditions = [(axis.name, axis.low, axis.high) for axis in law.problem.conditions]
    mid = np.asarray(law.problem.mid(), np.float64).tolist()
    return _TEMPLATE.format(
        name=law.problem.name,
        packed=packed,
        layers=len(w.layers),
        normalised=w.mean is not None,
        activation=w.activation,
        knobs=knobs,
        conditions=conditions,
        mid=mid,
        steps=law.time_steps,
        bounded=bool(law.meta.get("bounded", False)),
    )


def _knob(axis: Any, at: int) -> tuple[Any, ...]:
    """(name, kind, first column in the head's output, bounds or values)."""
    if isinstance(axis, axes.Real):
        return (axis.name, "real", at, (axis.low, axis.high))
    among = [value.item() if isinstance(value, np.generic) else value for value in axis.among]
    for value in among:
        if not isinstance(value, str | int | float):
            raise BadInput(f"knob {axis.name!r} has the value {value!r}: only words and numbers can be exported")
    return (axis.name, "whole" if isinstance(axis, axes.Whole) else "choice", at, among)


_TEMPLATE = '''"""The tuning law of {name!r}: `law(**conditions)` gives the knobs. Needs only NumPy."""
import base64

import numpy as np

PACKED = {packed}
LAYERS, NORMALISED, ACTIVATION, STEPS, BOUNDED = {layers}, {normalised}, {activation!r}, {steps}, {bounded}
KNOBS = {knobs}
CONDITIONS = {conditions}
MID = {mid}
ARRAYS = [np.frombuffer(base64.b64decode(text), np.float32).reshape(shape).astype(float) for shape, text in PACKED]


def _net(x):
    if NORMALISED:
        x = np.clip((x - ARRAYS[-2]) * ARRAYS[-1], -10.0, 10.0)
    for i in range(LAYERS):
        x = x @ ARRAYS[2 * i] + ARRAYS[2 * i + 1]
        x = np.tanh(x) if ACTIVATION == "tanh" else np.maximum(x, 0.0)
    return x @ ARRAYS[2 * LAYERS] + ARRAYS[2 * LAYERS + 1]


def _step(point):
    """The knobs' columns for one point, and the values they stand for."""
    out, columns, values = _net(point), [], {{}}
    for name, kind, at, among in KNOBS:
        if kind == "real":
            value = float(np.clip(np.tanh(out[at]) if BOUNDED else out[at], -1.0, 1.0))
            columns.append(value)
            values[name] = among[0] + (value + 1.0) * (among[1] - among[0]) / 2.0
            continue
        size = len(among)
        chosen = int(np.argmax(out[at : at + size]))
        values[name] = among[chosen]
        if kind == "whole":
            columns.append(chosen * 2.0 / max(1, size - 1) - (1.0 if size > 1 else 0.0))
        else:
            columns += [float(i == chosen) for i in range(size)]
    return columns, values


def law(**conditions):
    if set(conditions) != {{name for name, _, _ in CONDITIONS}}:
        raise TypeError("law() takes " + (", ".join(name for name, _, _ in CONDITIONS) or "nothing"))
    given = [(conditions[name] - low) * 2.0 / (high - low) - 1.0 for name, low, high in CONDITIONS]
    point = np.array([*MID, *given], float)
    for _ in range(STEPS):
        columns, values = _step(point)
        point = np.array([*columns, *given], float)
    return values
'''
