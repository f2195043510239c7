"""A tuning law: conditions in, minimiser out, in microseconds. Uses only NumPy, so that it loads quickly.

A law that was learnt from few evaluations also carries the surrogate of f that it comes from, and searches it for each answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.core.errors import BadInput
from shoal.core.spec import Binary, Categorical, Continuous
from shoal.optimize import axes
from shoal.run.policy import load_policy, save_policy

if TYPE_CHECKING:
    from shoal.optimize.search import Search
    from shoal.optimize.surrogate import Surrogate

log = logging.getLogger("shoal")
FORMAT = "tuning law 1"
SURROGATE = "surrogate/"  # how the names of its arrays begin
LIMIT = "limit"  # the same for a constraint's, with its number
ONE_THREAD = 1 << 18  # multiplications up to which OpenBLAS wakes no second thread, which would cost ten times more


Layer = tuple[np.ndarray, np.ndarray]  # weights [a, b] and biases [b]


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
        """In double precision, although the weights are single: exported laws then differ only by the order of sums."""
        layers, head, mean, scale = self._wide
        x = points.astype(np.float64)
        if mean is not None and scale is not None:
            x = np.clip((x - mean) * scale, -10.0, 10.0)
        for w, b in layers:
            x = x @ w + b
            x = np.tanh(x) if self.activation == "tanh" else np.maximum(x, 0.0)
        out: np.ndarray = x @ head[0] + head[1]
        return out

    @cached_property
    def _wide(self) -> tuple[tuple[Layer, ...], Layer, np.ndarray | None, np.ndarray | None]:
        """The layers, the head and the normalisation in double precision."""

        def wide(array: np.ndarray) -> np.ndarray:
            return np.asarray(array, np.float64)

        layers = tuple((wide(w), wide(b)) for w, b in self.layers)
        head = wide(self.head[0]), wide(self.head[1])
        if self.mean is None or self.scale is None:
            return layers, head, None, None
        return layers, head, wide(self.mean), wide(self.scale)


class Regret(NamedTuple):
    """Excess of f at the law's answers over f at searched optima."""

    mean: float
    ci: tuple[float, float] | None  # 95 %, of the mean
    worst: float
    n: int


class Explanation(NamedTuple):
    """An answer with the surrogate's opinion of it. Distances are in normalised coordinates, where every box is 2 wide."""

    knobs: dict[str, Any]
    predicted: float  # f
    spread: float  # one standard deviation of `predicted`, without f's own noise
    noise: float  # one standard deviation of f's noise
    distance: float  # to the nearest point at which f was evaluated
    evaluations: int  # that the surrogate knows
    limits: dict[str, float]  # each constraint as predicted: allowed if not above 0


class Law:
    """`law(temp=25, vdd=1.8)` gives the knobs. Arrays give arrays.

    The raw policy starts mid-box and applies its mode T times. A law with a surrogate polishes: it searches the surrogate's mean,
    which evaluates f nowhere. `polish=False` gives the raw policy's answer instead, in microseconds.
    """

    def __init__(
        self,
        problem: Any,
        weights: Weights,
        time_steps: int,
        meta: Mapping[str, Any],
        surrogate: Surrogate | None = None,
        limits: tuple[Surrogate, ...] = (),
        told: Mapping[str, Any] | None = None,
    ) -> None:
        self.problem, self.weights, self.time_steps, self.meta = problem, weights, time_steps, dict(meta)
        self.surrogate, self.limits = surrogate, limits  # of f, and of each constraint
        # The problem's description: of a law loaded without its problem, the stored one, which also names the constraints.
        self.told = dict(problem.describe() if told is None else told)
        self._search: Search | None = None
        self._parts = problem.action_spec().parts
        self._own_scale = bool(meta["own_scale"])
        self._bounded = bool(meta.get("bounded", False))
        self._warned = False

    def __call__(self, *, polish: Any = True, **conditions: Any) -> dict[str, Any]:
        if "polish" in self.problem.names:  # a condition of that name
            conditions["polish"], polish = polish, True
        self._check(conditions)
        start = self.problem.normalise(**conditions)
        points = self._answered(start.reshape(-1, self.problem.width), polish)
        if start.ndim == 1:
            return self._knobs(points[0])
        values = self.problem.denormalise(points)
        return {axis.name: np.asarray(values[axis.name]).reshape(start.shape[:-1]) for axis in self.problem.knobs}

    def points(self, starts: np.ndarray) -> np.ndarray:
        """Normalised points after T steps of the policy's mode: [N, width] to [N, width]."""
        starts = np.asarray(starts, np.float64)
        for _ in range(self.time_steps):
            starts = np.asarray(self.problem.from_action(starts, self._mode(self.weights(starts))))
        return starts

    def answers(self, conditions: np.ndarray, *, polish: bool = True) -> np.ndarray:
        """Points for normalised conditions [N, n_conditions]."""
        return self._answered(self.problem.join(self.problem.mid(), conditions), polish)

    def explain(self, conditions: Mapping[str, float] | None = None, /, **more: float) -> Explanation:
        """The polished answer, with what the surrogate expects there: `explain(c)` or `explain(temp=25, vdd=1.8)`.

        f is not evaluated.

        Raises:
            BadInput: the law has no surrogate.
        """
        if self.surrogate is None:
            raise BadInput("this law has no surrogate that could explain it: learn it with algo='surrogate'")
        conditions = {**(conditions or {}), **more}
        self._check(conditions)
        point = self._answered(self.problem.normalise(**conditions).reshape(1, -1), polish=True)
        mean, spread = self.surrogate.both(point)
        return Explanation(
            self._knobs(point[0]),
            float(mean[0]),
            float(spread[0]),
            self.surrogate.noise,
            float(self.surrogate.nearest(point)[0]),
            len(self.surrogate.rows),
            {
                name: float(model.mean(point)[0])
                for name, model in zip(self.told.get("subject_to", ()), self.limits, strict=True)
            },
        )

    def regret(self, n: int = 256, seed: int = 0) -> Regret:
        """Regret against a searched optimum at n random conditions, which were used neither to train nor to choose the law."""
        return self.regret_at(self.problem.sample_conditions(np.random.default_rng(seed), n), seed)

    def violations(self, conditions: np.ndarray, *, polish: bool = True) -> int:
        """At how many of these conditions [N, n_conditions], from -1 to 1, the answer violates a constraint. Evaluates f there."""
        self._needs_f()
        if not self.problem.limits:
            return 0
        _, limits = self.problem.measure(self.answers(np.asarray(conditions), polish=polish))
        return int((~(limits <= 0.0)).any(0).sum())

    def regret_at(self, conditions: np.ndarray, seed: int = 0, *, polish: bool = True) -> Regret:
        """Regret against a searched optimum at these conditions [N, n_conditions], from -1 to 1.

        Answers at which f fails or a constraint is violated are left out.
        """
        from shoal.optimize.truth import refined

        self._needs_f()
        conditions = np.asarray(conditions)
        gap = np.asarray(self.problem.evaluate(self.answers(conditions, polish=polish))) - np.asarray(
            refined(self.problem, conditions, seed)
        )
        if not np.isfinite(gap).any():
            raise BadInput(f"{self.problem.name}: f fails or a constraint is violated at all of the law's answers")
        gap = gap[np.isfinite(gap)]
        return Regret(float(gap.mean()), _interval(gap, seed), float(gap.max()), len(gap))

    def refine(
        self, conditions: Mapping[str, float] | None = None, /, *, evaluations: int = 200, **more: float
    ) -> dict[str, Any]:
        """The law's answer, improved by f: `refine(c, evaluations=20)` or `refine(temp=25, vdd=1.8)`.

        The best of at most `evaluations` points; the first is the law's own answer. A law with a surrogate tries where
        that expects less; another one moves the real knobs by a local optimiser and leaves the others as they are.
        """
        from shoal.optimize import refining

        self._needs_f()
        if evaluations < 1:
            raise BadInput(f"evaluations is {evaluations}: at least 1")
        conditions = {**(conditions or {}), **more}
        self._check(conditions)
        point = self._answered(self.problem.normalise(**conditions)[None], polish=True)[0]
        if self.surrogate is not None:
            found = refining.by_surrogate(self.problem, self.surrogate, self.limits, point, evaluations)
            return self._knobs(found)
        columns = self._real_columns()
        if not columns:  # no real knob to polish
            return self(**conditions)
        return self._knobs(refining.by_simplex(self.problem, columns, point, evaluations))

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with its own description; reading it executes nothing."""
        w = self.weights
        arrays = {f"layer{i}/{n}": a for i, pair in enumerate(w.layers) for n, a in zip("wb", pair, strict=True)}
        arrays |= {"head/w": w.head[0], "head/b": w.head[1]}
        if w.mean is not None and w.scale is not None:
            arrays |= {"mean": w.mean, "scale": w.scale}
        if self.surrogate is not None:
            arrays |= {f"{SURROGATE}{name}": array for name, array in self.surrogate.arrays().items()}
        for i, model in enumerate(self.limits):
            arrays |= {f"{LIMIT}{i}/{name}": array for name, array in model.arrays().items()}
        save_policy(path, arrays, {**self.meta, "format": FORMAT, "problem": self.told})

    def export(self, path: str | Path) -> Path:
        """Write a file that answers as the raw policy does, for a device without Shoal: a C99 header if the name ends in .h, else
        a Python module that needs only NumPy."""
        from shoal.optimize.law_header import header_of
        from shoal.optimize.law_source import source_of

        path = Path(path)
        path.write_text(header_of(self) if path.suffix == ".h" else source_of(self))
        return path.absolute()

    def _answered(self, starts: np.ndarray, polish: bool) -> np.ndarray:
        """The law's answers [N, width] to the conditions of points [N, width]."""
        if self.surrogate is None or not polish:
            return self.points(starts)
        if self._search is None:
            from shoal.optimize.search import Search

            self._search = Search(self.problem, self.surrogate, limits=self.limits)
        return self._search.minima(np.asarray(starts, np.float64)[:, self.problem.knob_width :])

    def _knobs(self, point: np.ndarray) -> dict[str, Any]:
        values = self.problem.denormalise(point)
        return {axis.name: values[axis.name] for axis in self.problem.knobs}

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

    def columns_of_head(self) -> list[int]:
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
                    columns.append(out[:, at : at + size].argmax(axis=1)[:, None].astype(np.float64))
                    at += size
            else:
                assert isinstance(part, Binary)
                columns.append((out[:, at : at + part.size] > 0).astype(np.float64))
                at += part.size
        action = np.concatenate(columns, axis=1)
        return action[:, 0] if self.problem.action_spec().scalar else action


def load(path: str | Path, problem: Any = None) -> Law:
    """Load a saved law. With `problem`, f can be evaluated again; raises `BadInput` if the file is of another problem."""
    from shoal.optimize.problem import Problem

    arrays, meta = load_policy(path)
    if meta.get("format") != FORMAT:
        raise BadInput(f"{str(path)!r} is not a tuning law")
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
    models = []
    for prefix in (SURROGATE, *(f"{LIMIT}{i}/" for i in range(len(stored.get("subject_to", ()))))):
        if f"{prefix}theta" in arrays:
            from shoal.optimize.surrogate import Surrogate

            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            models.append(Surrogate.of(problem, own))
    return Law(
        problem,
        weights,
        int(meta["time_steps"]),
        {k: meta[k] for k in ("activation", "time_steps", "own_scale", "bounded", "step") if k in meta},
        models[0] if models else None,
        tuple(models[1:]),
        stored,
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
