"""The optimum that a law is measured against, for each condition, and the score.

`monte_carlo` is the thesis' method: the best of many random points. `refined` spreads them evenly and continues the search
around the best. Results are kept in memory: asking again for the same problem and conditions costs nothing.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import optimize
from scipy.stats import qmc

from shoal.core.errors import BadInput, RunFailed
from shoal.core.trajectory import Array
from shoal.optimize.axes import Real
from shoal.optimize.problem import Problem

SAMPLES = 2048  # random points per condition
SAMPLES_ONE_BY_ONE = 128  # the same if each is a call of its own
WINDOW = 1000  # training steps averaged at the start and at the end of a run
BEST_FROM = 500  # the training step from which the best counts: an untrained policy may start at the optimum
_COMBINATIONS = 64  # all combinations of discrete knobs are searched up to this number
_SHARE = 16  # samples of each combination, at least
_RIVALS = 4  # combinations around which the search continues, at least
_ROWS = 1 << 17  # evaluated at a time, to bound memory
_ZOOMS = 24
_SHRINK = 0.6
_REPEATS = 8  # averaged evaluations of a noisy f
_KEPT = 64
_cache: OrderedDict[Any, Optimum] = OrderedDict()


class Optimum(NamedTuple):
    """The best point found for each condition."""

    points: np.ndarray  # [C, width]
    values: np.ndarray  # [C]


def monte_carlo(problem: Problem, conditions: Array, samples: int | None = None, seed: int = 0) -> np.ndarray:
    """The smallest of f at `samples` random knobs, for conditions [C, n_conditions]: [C].

    Raises:
        RunFailed: f failed, or a constraint was violated, everywhere.
    """
    return _kept(problem, conditions, "monte_carlo", samples, seed).values


def refined(problem: Problem, conditions: Array, seed: int = 0, samples: int | None = None) -> np.ndarray:
    """The smallest value of f by evenly spread points, random points ever closer to the best, and a local optimiser: [C].

    If the combinations of discrete knobs are few, all are sampled, and the search continues from the best samples of the most
    promising ones; otherwise some are sampled. Then each discrete knob is tried in turn, the others held.
    """
    return optimum(problem, conditions, seed, samples).values


def optimum(problem: Problem, conditions: Array, seed: int = 0, samples: int | None = None) -> Optimum:
    """`refined`, with the points [C, width] where the values were found."""
    return _kept(problem, conditions, "refined", samples, seed)


def _kept(problem: Problem, conditions: Array, method: str, samples: int | None, seed: int) -> Optimum:
    how = method, samples or (SAMPLES_ONE_BY_ONE if problem.kind == "python" else SAMPLES), seed
    conditions = np.ascontiguousarray(conditions, np.float64)
    if conditions.ndim != 2 or conditions.shape[1] != problem.n_conditions:
        raise BadInput(f"conditions of shape {conditions.shape}: they must be [C, {problem.n_conditions}]")
    try:
        key = hash(problem), problem, conditions.shape, conditions.tobytes(), how
    except TypeError:  # an f that cannot be hashed cannot be cached
        return _search(problem, conditions, how)
    if key not in _cache:
        _cache[key] = _search(problem, conditions, how)
        while len(_cache) > _KEPT:
            _cache.popitem(last=False)
    return _cache[key]


def _search(problem: Problem, conditions: np.ndarray, how: tuple[str, int, int]) -> Optimum:
    method, samples, seed = how
    rng = np.random.default_rng(seed)
    if method == "monte_carlo":
        found = _best_of(problem, problem.sample_knobs(rng, samples), conditions, 1)
    else:
        found = _refine(problem, conditions, samples, rng)
    if np.isnan(found.values).all():
        if problem.limits:
            raise RunFailed(f"{problem.name}: a search for its optima found no point that satisfies the constraints")
        why = f": {problem.last_error}" if problem.last_error else ""
        raise RunFailed(f"every evaluation of {problem.name} failed{why}")
    return found


def cost(problem: Problem, samples: int | None = None) -> int:
    """Evaluations that searching one optimum takes, at most, if f is called one point at a time."""
    samples = samples or SAMPLES_ONE_BY_ONE
    sizes = [axis.size for axis in problem.knobs if not isinstance(axis, Real)]
    sets = math.prod(sizes) if math.prod(sizes) <= _COMBINATIONS else 1
    if not _real_columns(problem).any():
        return (sets if sets > 1 else max(samples, min(math.prod(sizes), 1 << 14))) + 2 * sum(sizes)
    spread = sets * (1 << math.ceil(math.log2(_share(samples, sets))))
    zooms = _ZOOMS * _zoomed(samples, sets) * _around(samples)
    return (spread + zooms + 2 * sum(sizes)) * (_REPEATS if problem.noisy else 1) + min(200, samples)


def _share(samples: int, sets: int) -> int:
    """Evenly spread samples of each combination of discrete knobs."""
    return max(2, min(samples if sets == 1 else max(_SHARE, samples // sets), 1 << 14))


def _zoomed(samples: int, sets: int) -> int:
    """Samples around which the search continues: several, because the best sample need not lie in the best valley."""
    return max(1 if sets == 1 else _RIVALS, samples // 64)


def _around(samples: int) -> int:
    return max(4, min(16, samples // 16))


def _refine(problem: Problem, conditions: np.ndarray, samples: int, rng: np.random.Generator) -> Optimum:
    free = _real_columns(problem)
    sets, n = _starts(problem, samples, rng), len(conditions)
    most = _zoomed(samples, len(sets)) if free.any() else 1
    # The best samples of each combination compete, so that one combination cannot take all places.
    parts = [_best_of(problem, knobs, conditions, max(1, most // len(sets))) for knobs in sets]
    points = np.concatenate([part.points.reshape(n, -1, problem.width) for part in parts], 1)
    values = np.concatenate([part.values.reshape(n, -1) for part in parts], 1)
    order = np.argsort(values, 1)[:, :most]  # NaN comes last
    ranked = Optimum(
        np.take_along_axis(points, order[..., None], 1).reshape(-1, problem.width),
        np.take_along_axis(values, order, 1).reshape(-1),
    )
    if free.any():
        ranked = _zoom(problem, ranked, free, _around(samples), rng)
    found = _lowest(ranked.points.reshape(n, -1, problem.width), ranked.values.reshape(n, -1))
    if not free.all():
        found = _sweep(problem, _sweep(problem, found))
    if free.any() and not problem.noisy:
        with np.errstate(invalid="ignore"):  # SciPy subtracts infinities, which stand for failures
            found = _better(found, _polish(problem, found, free, min(200, samples)))
    return found


def _starts(problem: Problem, samples: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Knob columns [S, knob_width]: one set for each combination of discrete knobs, or one for all if those are many."""
    real = sum(isinstance(axis, Real) for axis in problem.knobs)
    sizes = [axis.size for axis in problem.knobs if not isinstance(axis, Real)]
    count = _share(samples, math.prod(sizes) if math.prod(sizes) <= _COMBINATIONS else 1)
    spread = qmc.Sobol(max(1, real), rng=rng).random_base2(math.ceil(math.log2(count))) if real else np.zeros((1, 0))
    blank = np.zeros((1, problem.width))
    if math.prod(sizes) > _COMBINATIONS:
        n = len(spread) if real else max(count, min(math.prod(sizes), 1 << 14))
        picks = np.stack([rng.integers(size, size=n) for size in sizes], -1)
        return [_knobs(problem, blank, np.resize(spread, (n, real)), picks)]
    every = itertools.product(*(range(size) for size in sizes))  # of no discrete knobs: one empty combination
    return [_knobs(problem, blank, spread, np.tile(np.array(pick, int), (len(spread), 1))) for pick in every]


def _knobs(problem: Problem, blank: np.ndarray, spread: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """Columns from positions in the unit cube (real knobs) and indices (discrete knobs)."""
    action = np.empty((len(spread), problem.n_knobs))
    is_real = np.array([isinstance(axis, Real) for axis in problem.knobs])
    action[:, is_real], action[:, ~is_real] = 2.0 * spread - 1.0, picks
    points = problem.from_action(np.broadcast_to(blank, (len(spread), problem.width)), action)
    return np.asarray(points[:, : problem.knob_width])


def _best_of(problem: Problem, knobs: np.ndarray, conditions: np.ndarray, most: int) -> Optimum:
    """The `most` best of S knobs for each of C conditions: [C * most], condition by condition."""
    at_once = max(1, _ROWS // len(knobs))
    points, values = [], []
    for some in np.array_split(conditions, math.ceil(len(conditions) / at_once)):
        tried = problem.join(knobs[None], some[:, None])  # [c, S, width]
        got = _values(problem, tried)
        order = np.argsort(got, 1)[:, :most]  # NaN comes last
        points.append(np.take_along_axis(tried, order[..., None], 1))
        values.append(np.take_along_axis(got, order, 1))
    return Optimum(np.concatenate(points).reshape(-1, problem.width), np.concatenate(values).reshape(-1))


def _zoom(problem: Problem, start: Optimum, free: np.ndarray, around: int, rng: np.random.Generator) -> Optimum:
    """Random points around the best so far, in a box that shrinks around it."""
    best, reach = start, 0.25
    for _ in range(_ZOOMS):
        moves = rng.uniform(-reach, reach, (len(best.values), around, len(free))) * free
        points = best.points[:, None] + np.pad(moves, ((0, 0), (0, 0), (0, problem.n_conditions)))
        points[..., : problem.knob_width] = points[..., : problem.knob_width].clip(-1.0, 1.0)
        best = _better(best, _lowest(points, _values(problem, points)))
        reach *= _SHRINK
    return best


def _sweep(problem: Problem, start: Optimum) -> Optimum:
    """Improve the optimum one discrete knob after another: try all its values, hold the others, and keep the best."""
    best, at = start, 0
    for axis in problem.knobs:
        if not isinstance(axis, Real):
            points = np.repeat(best.points[:, None], axis.size, 1)
            points[..., at : at + axis.width] = axis.columns(np.arange(axis.size, dtype=np.float64))
            best = _better(best, _lowest(points, _values(problem, points)))
        at += axis.width
    return best


def _polish(problem: Problem, start: Optimum, free: np.ndarray, most: int) -> Optimum:
    """Improve each point by a local optimiser: L-BFGS-B with exact gradients if f can be traced, else Nelder-Mead."""
    columns = np.flatnonzero(free)
    gradient = jax.jit(jax.grad(lambda point: problem.evaluate_jax(point[None])[0])) if problem.traceable else None
    points = start.points.copy()
    for row in points:

        def moved(x: np.ndarray, row: np.ndarray = row) -> np.ndarray:
            point = row.copy()
            point[columns] = x
            return point

        def value(x: np.ndarray) -> float:
            got = float(problem.evaluate(moved(x)[None])[0])
            return got if math.isfinite(got) else math.inf

        def slope(x: np.ndarray) -> np.ndarray:
            assert gradient is not None
            with jax.enable_x64(True):
                return np.asarray(np.nan_to_num(np.asarray(gradient(moved(x)))[columns]))

        box = [(-1.0, 1.0)] * len(columns)
        if gradient is not None:
            done = optimize.minimize(value, row[columns], jac=slope, method="L-BFGS-B", bounds=box, tol=1e-12)
        else:
            limits: Any = {"maxfev": most, "xatol": 1e-6, "fatol": 1e-12, "initial_simplex": _simplex(row[columns])}
            done = optimize.minimize(value, row[columns], method="Nelder-Mead", bounds=box, options=limits)
        row[columns] = done.x
    return Optimum(points, _values(problem, points[:, None])[:, 0])


def _simplex(x: np.ndarray, size: float = 1e-3) -> np.ndarray:
    """[n + 1, n]: a simplex around x, inside the box, and small because the zoom came first."""
    steps = np.where(x + size <= 1.0, size, -size)
    return np.concatenate([x[None], x + np.diag(steps)])


def _values(problem: Problem, points: np.ndarray) -> np.ndarray:
    """f at points [C, S, width]: [C, S]; the mean of several evaluations if it is noisy."""
    flat = points.reshape(-1, problem.width)
    each = [problem.evaluate(flat) for _ in range(_REPEATS if problem.noisy else 1)]
    return np.asarray(np.mean(each, 0)).reshape(points.shape[:-1])


def _lowest(points: np.ndarray, values: np.ndarray) -> Optimum:
    """The best along the second axis; NaN only where all failed."""
    at = np.where(np.isnan(values), np.inf, values).argmin(1)
    rows = np.arange(len(values))
    return Optimum(points[rows, at], values[rows, at])


def _better(a: Optimum, b: Optimum) -> Optimum:
    """Row by row the one with the smaller value."""
    take = np.isnan(a.values) | (b.values < a.values)
    return Optimum(np.where(take[:, None], b.points, a.points), np.where(take, b.values, a.values))


def _real_columns(problem: Problem) -> np.ndarray:
    """[knob_width] bool: the columns of real knobs, which can be moved a little."""
    return np.concatenate([np.full(axis.width, isinstance(axis, Real)) for axis in problem.knobs])


def mse(values: Array, truth: Array) -> float:
    """The mean square of f(law) - optimum; points where f failed are left out, NaN if all did."""
    gap = np.asarray(values, np.float64) - np.asarray(truth, np.float64)
    return _mean(gap * gap)


def msle(values: Array, truth: Array) -> float:
    """The mean square of log(1 + f(law) - optimum); a gap below zero counts as none.

    The usual formula takes log(1 + f(law)) - log(1 + optimum), which needs values above -1. If the optimum is neither negative
    nor above f(law), it is never larger than this one, so a bound that holds here holds there.
    """
    gap = np.maximum(np.asarray(values, np.float64) - np.asarray(truth, np.float64), 0.0)
    return _mean(np.log1p(gap) ** 2)


def _mean(squares: np.ndarray) -> float:
    known = squares[~np.isnan(squares)]
    return float(known.mean()) if len(known) else math.nan


class Summary(NamedTuple):
    """A curve summarised as in the thesis' tables. NaN where there is no data."""

    start: float  # at step 0, before any training
    first_mean: float  # over the first 1,000 steps
    first_var: float
    last_mean: float  # over the last 1,000 steps
    last_var: float
    best: float  # from step 500 on; in a shorter run, after step 0


@dataclass
class Scores:
    """Scores at training steps, in order."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    def summary(self) -> Summary:
        """Summarise the curve. Step 0 stands alone: it belongs to no mean and is never the best."""
        steps, values = np.array(self.steps, int), np.array(self.values, float)
        trained = (steps > 0) & ~np.isnan(values)
        last = int(steps.max(initial=0))
        late = values[trained & (steps > last - WINDOW)]
        early = values[trained & (steps <= WINDOW)]
        counted = values[trained & (steps >= (BEST_FROM if last >= BEST_FROM else 1))]
        start = values[steps == 0]
        return Summary(
            start=float(start[0]) if len(start) else math.nan,
            first_mean=float(early.mean()) if len(early) else math.nan,
            first_var=float(early.var()) if len(early) else math.nan,
            last_mean=float(late.mean()) if len(late) else math.nan,
            last_var=float(late.var()) if len(late) else math.nan,
            best=float(counted.min()) if len(counted) else math.nan,
        )
