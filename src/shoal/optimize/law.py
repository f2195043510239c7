"""A tuning law: conditions in, minimiser out, in microseconds. Uses only NumPy, so that it loads quickly."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.core.errors import BadInput
from shoal.core.spec import Binary, Categorical, Continuous
from shoal.optimize import axes
from shoal.run.policy import load_policy, save_policy

log = logging.getLogger("shoal")
FORMAT = "tuning law 1"
ONE_THREAD = 1 << 18  # multiplications up to which OpenBLAS wakes no second thread, which would cost ten times more


@dataclass(frozen=True)
class Weights:
    """The acting half of a feed-forward net: dense layers, the head, and the normalisation of observations."""

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    head: tuple[np.ndarray, np.ndarray]
    activation: str
    mean: np.ndarray | None
    scale: np.ndarray | None

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], activation: str) -> Weights:
        """From the leaves of an `ActorState`, by name."""
        trunk = "params/policy/trunk" if any(n.startswith("params/policy/trunk") for n in arrays) else "params/trunk"
        count = sum(n.startswith(f"{trunk}/hidden") and n.endswith("/w") for n in arrays)
        layers = tuple((arrays[f"{trunk}/hidden{i}/w"], arrays[f"{trunk}/hidden{i}/b"]) for i in range(count))
        head = arrays["params/policy/head/w"], arrays["params/policy/head/b"]
        return cls(layers, head, activation, arrays.get("obs_mean"), arrays.get("obs_scale"))

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """[N, width] to the head's output [N, P]."""
        rows = max(1, ONE_THREAD // max(w.size for w, _ in (*self.layers, self.head)))
        if len(points) <= rows:
            return self._forward(points)
        return np.concatenate([self._forward(points[at : at + rows]) for at in range(0, len(points), rows)])

    def _forward(self, points: np.ndarray) -> np.ndarray:
        x = points.astype(np.float32)
        if self.mean is not None and self.scale is not None:
            x = np.clip((x - self.mean) * self.scale, -10.0, 10.0)
        for w, b in self.layers:
            x = x @ w + b
            x = np.tanh(x) if self.activation == "tanh" else np.maximum(x, 0.0)
        out: np.ndarray = x @ self.head[0] + self.head[1]
        return out


class Regret(NamedTuple):
    """Excess of f at the law's answers over f at searched optima."""

    mean: float
    ci: tuple[float, float] | None  # 95 %, of the mean
    worst: float
    n: int


class Law:
    """`law(temp=25, vdd=1.8)` gives the knobs. Arrays give arrays. It starts mid-box and applies the policy's mode T times."""

    def __init__(self, problem: Any, weights: Weights, time_steps: int, meta: Mapping[str, Any]) -> None:
        self.problem, self.weights, self.time_steps, self.meta = problem, weights, time_steps, dict(meta)
        self._parts = problem.action_spec().parts
        self._own_scale = bool(meta["own_scale"])
        self._bounded = bool(meta.get("bounded", False))
        self._warned = False

    def __call__(self, **conditions: Any) -> dict[str, Any]:
        self._check(conditions)
        start = self.problem.normalise(**conditions)
        points = self.points(start.reshape(-1, self.problem.width))
        if start.ndim == 1:
            values = self.problem.denormalise(points[0])
            return {axis.name: values[axis.name] for axis in self.problem.knobs}
        values = self.problem.denormalise(points)
        return {axis.name: np.asarray(values[axis.name]).reshape(start.shape[:-1]) for axis in self.problem.knobs}

    def points(self, starts: np.ndarray) -> np.ndarray:
        """Normalised points after T steps of the policy's mode: [N, width] to [N, width]."""
        for _ in range(self.time_steps):
            starts = np.asarray(self.problem.from_action(starts, self._mode(self.weights(starts))), np.float32)
        return starts

    def answers(self, conditions: np.ndarray) -> np.ndarray:
        """Points for normalised conditions [N, n_conditions]."""
        return self.points(self.problem.join(self.problem.mid(), conditions))

    def regret(self, n: int = 256, seed: int = 0) -> Regret:
        """Regret against a searched optimum at n random conditions, which were used neither to train nor to choose the law."""
        return self.regret_at(self.problem.sample_conditions(np.random.default_rng(seed), n), seed)

    def regret_at(self, conditions: np.ndarray, seed: int = 0) -> Regret:
        """Regret against a searched optimum at these conditions [N, n_conditions], from -1 to 1."""
        from shoal.optimize.truth import refined

        self._needs_f()
        conditions = np.asarray(conditions)
        gap = np.asarray(self.problem.evaluate(self.answers(conditions))) - np.asarray(
            refined(self.problem, conditions, seed)
        )
        if not np.isfinite(gap).any():
            raise BadInput(f"{self.problem.name}: all evaluations at the law's answers failed")
        gap = gap[np.isfinite(gap)]
        return Regret(float(gap.mean()), _interval(gap, seed), float(gap.max()), len(gap))

    def refine(
        self, conditions: Mapping[str, float] | None = None, /, *, budget: int = 200, **more: float
    ) -> dict[str, Any]:
        """The law's answer, polished by a local optimiser that starts there: `refine(c)` or `refine(temp=25, vdd=1.8)`.

        It moves the real knobs and leaves the others as the law chose them; `budget` evaluations of f at most.
        """
        from scipy.optimize import minimize

        self._needs_f()
        conditions = {**(conditions or {}), **more}
        self._check(conditions)
        point = self.points(self.problem.normalise(**conditions)[None])[0]
        columns = self._real_columns()
        if not columns:  # no real knob to polish
            return self(**conditions)

        def value(x: np.ndarray) -> float:
            trial = point.copy()
            trial[columns] = np.clip(x, -1.0, 1.0)
            got = float(self.problem.evaluate(trial[None])[0])
            return got if np.isfinite(got) else 1e30

        # A small simplex, because the law's answer is near the optimum and the optimiser's own first steps would leave it.
        inward = np.where(point[columns] > 0, -0.05, 0.05)
        simplex = np.vstack([point[columns], point[columns] + np.diag(inward)])
        limits: Any = {"maxfev": budget, "initial_simplex": simplex}
        found = minimize(value, point[columns], method="Nelder-Mead", options=limits)
        point[columns] = np.clip(found.x, -1.0, 1.0)  # the best point seen; the law's own answer was the first
        values = self.problem.denormalise(point)
        return {axis.name: values[axis.name] for axis in self.problem.knobs}

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with its own description; reading it executes nothing."""
        w = self.weights
        arrays = {f"layer{i}/{n}": a for i, pair in enumerate(w.layers) for n, a in zip("wb", pair, strict=True)}
        arrays |= {"head/w": w.head[0], "head/b": w.head[1]}
        if w.mean is not None and w.scale is not None:
            arrays |= {"mean": w.mean, "scale": w.scale}
        save_policy(path, arrays, {**self.meta, "format": FORMAT, "problem": self.problem.describe()})

    def export(self, path: str | Path) -> Path:
        """Write a Python file that needs only NumPy and answers as this law does, for a device without Shoal."""
        path = Path(path)
        path.write_text(_exported(self))
        return path.absolute()

    def _check(self, conditions: Mapping[str, Any]) -> None:
        outside = self.problem.check_range(**conditions)
        if outside and not self._warned:
            log.warning(
                "%s outside the range that the law was trained on: its answer is a guess there", ", ".join(outside)
            )
            self._warned = True

    def _needs_f(self) -> None:
        if self.problem.devices == (_absent,):
            raise BadInput("this law was loaded without its function: shoal.optimize.load(path, problem) evaluates it")

    def _real_columns(self) -> list[int]:
        found, at = [], 0
        for axis in self.problem.knobs:
            found += [at] if isinstance(axis, axes.Real) else []
            at += axis.width
        return found

    def _columns_of_head(self) -> list[int]:
        """For each knob, its first column in the head's output: its mean, or its first logit."""
        found: list[int] = []
        at = 0
        for part in self._parts:
            if isinstance(part, Continuous):
                found += range(at, at + part.width)
                at += part.width * (1 if self._own_scale else 2)
            elif isinstance(part, Categorical):
                for size in part.sizes:
                    found.append(at)
                    at += size
        return found

    def _mode(self, out: np.ndarray) -> np.ndarray:
        """The most likely action of the distribution that the head's output describes."""
        columns, at = [], 0
        for part in self._parts:
            if isinstance(part, Continuous):
                means = out[:, at : at + part.width]
                columns.append(np.tanh(means) if self._bounded else means)
                at += part.width * (1 if self._own_scale else 2)
            elif isinstance(part, Categorical):
                for size in part.sizes:
                    columns.append(out[:, at : at + size].argmax(axis=1)[:, None].astype(np.float32))
                    at += size
            else:
                assert isinstance(part, Binary)
                columns.append((out[:, at : at + part.size] > 0).astype(np.float32))
                at += part.size
        action = np.concatenate(columns, axis=1)
        return action[:, 0] if self.problem.action_spec().scalar else action


def load(path: str | Path, problem: Any = None) -> Law:
    """Load a saved law. With `problem`, f can be evaluated again; raises `BadInput` if the file is of another problem."""
    from shoal.optimize.problem import Problem

    arrays, meta = load_policy(path)
    if meta.get("format") != FORMAT:
        raise BadInput(f"{str(path)!r} is no tuning law")
    stored = meta["problem"]
    if problem is None:
        problem = Problem(
            _absent,
            knobs={name: _written(told) for name, told in stored["knobs"].items()},
            conditions={name: tuple(bounds) for name, bounds in stored["conditions"].items()},
            kind="python",
            name=stored["name"],
        )
    elif problem.describe() != stored:
        raise BadInput(f"law {str(path)!r} is of another problem: {stored.get('name')!r}, not {problem.name!r}")
    count = sum(name.endswith("/w") and name.startswith("layer") for name in arrays)
    layers = tuple((arrays[f"layer{i}/w"], arrays[f"layer{i}/b"]) for i in range(count))
    head = arrays["head/w"], arrays["head/b"]
    weights = Weights(layers, head, str(meta["activation"]), arrays.get("mean"), arrays.get("scale"))
    return Law(
        problem,
        weights,
        int(meta["time_steps"]),
        {k: meta[k] for k in ("activation", "time_steps", "own_scale", "bounded", "step") if k in meta},
    )


def _interval(gap: np.ndarray, seed: int) -> tuple[float, float] | None:
    """95 % interval of the mean, by resampling; None for a single value."""
    if len(gap) < 2:
        return None
    picks = np.random.default_rng(seed).integers(len(gap), size=(2000, len(gap)))
    low, high = np.quantile(gap[picks].mean(1), [0.025, 0.975])
    return float(low), float(high)


def _absent(**values: Any) -> float:
    """Placeholder for the function of a law that was loaded without it."""
    return float("nan")


def _written(told: Any) -> Any:
    """A knob as the user wrote it, from the problem's description."""
    if isinstance(told, Mapping):
        return range(*told["range"]) if "range" in told else list(told["choice"])
    return tuple(told)


def _exported(law: Law) -> str:
    """The source of a module with one function, `law(**conditions)`."""
    w = law.weights
    matrices = [*(m for pair in w.layers for m in pair), *w.head]
    if w.mean is not None and w.scale is not None:
        matrices += [w.mean, w.scale]
    packed = [
        (list(m.shape), base64.b64encode(np.ascontiguousarray(m, np.float32).tobytes()).decode()) for m in matrices
    ]
    knobs = [_knob(axis, at) for axis, at in zip(law.problem.knobs, law._columns_of_head(), strict=True)]
    conditions = [(axis.name, axis.low, axis.high) for axis in law.problem.conditions]
    mid = np.asarray(law.problem.mid(), np.float32).tolist()
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
        bounded=law._bounded,
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
ARRAYS = [np.frombuffer(base64.b64decode(text), np.float32).reshape(shape) for shape, text in PACKED]


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
    point = np.array([*MID, *given], np.float32)
    for _ in range(STEPS):
        columns, values = _step(point)
        point = np.array([*columns, *given], np.float32)
    return values
'''
