"""Other optimisers for one condition at a time, at equal numbers of evaluations.

The thesis describes first-order optimisers as one loop (its Algorithm 3.1), `x_i = x_{i-1} + pi(f, {x_0 .. x_{i-1}})`, and
they differ only in pi. `descend` is that loop; random search, gradient descent and momentum are three `Pi`. The other methods
are known libraries behind the same counter of evaluations. All search the knobs' columns as numbers from -1 to 1; a whole
number is rounded to the nearest, a choice is its largest column.

Deviations from the printed formulas: we minimise, so the best is the smallest and steps go against the gradient. Momentum
adds up the gradients at all earlier points; the printed formula repeats the last one. A step is at most a tenth of the way
from the middle of the box to its side, because a raw gradient of 10,000 would leave the box at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import optimize

from shoal.core.errors import BadInput, nearest
from shoal.core.trajectory import Array
from shoal.optimize.axes import Real
from shoal.optimize.problem import Problem

RATE = 0.01  # gamma: step size in normalised coordinates
DECAY = 0.9  # alpha: momentum's decay
LONGEST_STEP = 0.1
GRADIENT_COST = 2  # evaluations counted for a traced gradient: one forward, one back
_DIFFERENCE = 1e-4
_FAILED = 1e20  # value of a failure for libraries that cannot take infinity


class Result(NamedTuple):
    """The best point that a baseline found."""

    point: np.ndarray  # [width]
    value: float
    evaluations: int
    trace: np.ndarray  # [evaluations]: the best value so far


class Spent(Exception):
    """The evaluations are used up. Raised to leave a library's own loop."""


class Objective:
    """f at one condition as a function of the knobs' columns. Counts evaluations and remembers the best point."""

    def __init__(self, problem: Problem, condition: np.ndarray, budget: int, rng: np.random.Generator) -> None:
        self.problem, self.condition, self.budget, self.rng = problem, condition, budget, rng
        self.best, self.best_at = math.inf, problem.mid()
        self.trace: list[float] = []
        self._slope = (
            jax.jit(jax.grad(lambda point: problem.evaluate_jax(point[None])[0])) if problem.traceable else None
        )

    @property
    def width(self) -> int:
        return self.problem.knob_width

    def __call__(self, x: Array) -> float:
        """f at columns [knob_width], clipped to the box; infinity if it failed."""
        if len(self.trace) >= self.budget:
            raise Spent
        x = np.clip(np.asarray(x, np.float64), -1.0, 1.0)
        value = float(self.problem.evaluate(self._point(x)[None])[0])
        if value < self.best:
            self.best, self.best_at = value, x.copy()
        self.trace.append(self.best)
        return value if math.isfinite(value) else math.inf

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """[knob_width]: exact if f can be traced, else by differences, each an evaluation; 0 where it is not finite."""
        if self._slope is None:
            here = self(x)
            steps = np.where(x + _DIFFERENCE <= 1.0, _DIFFERENCE, -_DIFFERENCE)
            with np.errstate(invalid="ignore"):
                slope = np.array([(self(x + step) - here) for step in np.diag(steps)]) / steps
        else:
            for _ in range(GRADIENT_COST):
                self(x)
            with jax.enable_x64(True):
                slope = np.asarray(self._slope(self._point(x)))[: self.width]
        return np.asarray(np.where(np.isfinite(slope), slope, 0.0))

    def random(self) -> np.ndarray:
        return np.asarray(self.problem.sample_knobs(self.rng, 1)[0])

    def result(self) -> Result:
        point = self._point(self.best_at)
        return Result(point, self.best, len(self.trace), np.array(self.trace))

    def _point(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, self.condition])


@dataclass
class History:
    """The input of pi: the points so far, and the decayed sums of gradients that `momentum` keeps."""

    points: list[np.ndarray] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)


Pi = Callable[[Objective, History], np.ndarray]


def descend(f: Objective, pi: Pi) -> None:
    """Algorithm 3.1: from a random point, step by pi until the evaluations are spent."""
    history = History([f.random()])
    while True:
        step = pi(f, history)
        history.points.append(np.clip(history.points[-1] + step, -1.0, 1.0))


def random_search(f: Objective, history: History) -> np.ndarray:
    """Step to the best of all points so far and a new random one."""
    if not f.trace:
        f(history.points[0])
    f(f.random())
    return np.asarray(f.best_at - history.points[-1])


def gradient_descent(f: Objective, history: History) -> np.ndarray:
    """`-gamma grad f(x_{i-1})`."""
    return _capped(-RATE * f.gradient(history.points[-1]))


def momentum(f: Objective, history: History) -> np.ndarray:
    """`-gamma sum_j alpha^(i-j-1) grad f(x_j)`, j from 0 to i-1."""
    last = history.gradients[-1] if history.gradients else np.zeros(f.width)
    history.gradients.append(DECAY * last + f.gradient(history.points[-1]))  # the sum so far
    return _capped(-RATE * history.gradients[-1])


def _capped(step: np.ndarray) -> np.ndarray:
    length = float(np.linalg.norm(step))
    return step if length <= LONGEST_STEP else step * (LONGEST_STEP / length)


def _nelder_mead(f: Objective) -> None:
    while True:  # when one descent has converged, the next begins elsewhere
        options: Any = {"maxfev": f.budget, "xatol": 1e-8, "fatol": 1e-12}
        optimize.minimize(f, f.random(), method="Nelder-Mead", bounds=_box(f), options=options)


def _differential_evolution(f: Objective) -> None:
    while True:
        optimize.differential_evolution(f, _box(f), maxiter=f.budget, rng=f.rng, polish=False)


def _dual_annealing(f: Objective) -> None:
    while True:
        optimize.dual_annealing(f, _box(f), maxfun=f.budget, rng=f.rng)


def _cma(f: Objective) -> None:
    cma = _library("cma", "cma")
    while True:
        # CMA-ES adapts a covariance and needs more than one column: a second one, which f ignores, costs it little.
        start = np.resize(f.random(), max(2, f.width))
        options = {"bounds": [-1.0, 1.0], "seed": int(f.rng.integers(1, 2**31)), "verbose": -9, "maxfevals": f.budget}
        search = cma.CMAEvolutionStrategy(start, 0.5, options)
        while not search.stop():
            asked = search.ask()
            values = [f(x[: f.width]) for x in asked]
            search.tell(asked, [min(v, _FAILED) for v in values])


def _nevergrad(f: Objective) -> None:
    nevergrad = _library("nevergrad", "nevergrad")
    space = nevergrad.p.Array(init=np.zeros(f.width), lower=-1.0, upper=1.0)
    space.random_state.seed(int(f.rng.integers(2**31)))
    # NGOpt, nevergrad's default, fails on NumPy 2.4 (in a metamodel) and leaves threads that keep the process from ending.
    search = nevergrad.optimizers.TwoPointsDE(parametrization=space, budget=f.budget)
    while True:
        asked = search.ask()
        search.tell(asked, min(f(asked.value), _FAILED))


def _library(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise BadInput(f"method {module!r} is not installed: pip install {package}") from None


def _box(f: Objective) -> optimize.Bounds:
    return optimize.Bounds(np.full(f.width, -1.0), np.full(f.width, 1.0))


METHODS: dict[str, Callable[[Objective], None]] = {
    "random_search": lambda f: descend(f, random_search),
    "gradient_descent": lambda f: descend(f, gradient_descent),
    "momentum": lambda f: descend(f, momentum),
    "nelder_mead": _nelder_mead,
    "differential_evolution": _differential_evolution,
    "dual_annealing": _dual_annealing,
    "cma": _cma,
    "nevergrad": _nevergrad,
}
SLOPES = ("gradient_descent", "momentum")


def optimise(method: str, problem: Problem, condition: Array, budget: int, seed: int = 0) -> Result:
    """The best knobs for one condition [n_conditions] that `method` finds with `budget` evaluations of f.

    Raises:
        BadInput: the method is unknown, not installed, or needs gradients of a knob that has none.
    """
    if method not in METHODS:
        known = f" There are: {', '.join(METHODS)}."
        raise BadInput(f"unknown method {method!r}.{nearest(method, METHODS) or known}")
    if budget < 1:
        raise BadInput(f"budget={budget}: it must be at least 1 evaluation")
    stiff = next((axis.name for axis in problem.knobs if not isinstance(axis, Real)), None)
    if method in SLOPES and stiff is not None:
        raise BadInput(f"method {method!r} needs real knobs, and {stiff!r} is not one")
    given = np.asarray(condition, np.float64).reshape(-1)
    if given.shape != (problem.n_conditions,):
        raise BadInput(f"condition of {len(given)} values: {problem.name} has {problem.n_conditions}")
    f = Objective(problem, given, budget, np.random.default_rng(seed))
    try:
        with np.errstate(invalid="ignore"):  # SciPy subtracts infinities, which stand for failures
            METHODS[method](f)
    except Spent:
        return f.result()
    raise AssertionError(f"{method} stopped before its evaluations were spent")


def evaluations_to_reach(result: Result, value: float) -> int | None:
    """The number of evaluations until the best was `value` or less; None if it never was."""
    reached = np.flatnonzero(result.trace <= value)
    return int(reached[0]) + 1 if len(reached) else None


class BreakEven(NamedTuple):
    """The number of queries after which a law is cheaper, and the two cost curves."""

    queries: float  # the smallest number of queries at which the law has cost less; infinite if never
    at: np.ndarray  # [P] numbers of queries
    law: np.ndarray  # [P] seconds
    baseline: np.ndarray  # [P] seconds


def break_even(
    *,
    law_evaluations: int,
    law_seconds_per_query: float,
    baseline_evaluations: float,
    seconds_per_evaluation: float,
    training_seconds: float = 0.0,
) -> BreakEven:
    """The number of queries after which a law has cost less than a fresh optimisation for each.

    Args:
        law_evaluations: evaluations of f that learning took.
        law_seconds_per_query: seconds for one answer of the law.
        baseline_evaluations: evaluations of f per query until the baseline is as good as the law (`evaluations_to_reach`).
        seconds_per_evaluation: seconds for one evaluation of f.
        training_seconds: seconds of learning, besides evaluating f.
    """
    once = law_evaluations * seconds_per_evaluation + training_seconds
    saved = baseline_evaluations * seconds_per_evaluation - law_seconds_per_query
    queries = math.floor(once / saved) + 1.0 if saved > 0 else math.inf
    most = 3.0 * queries if math.isfinite(queries) else 1000.0
    at = np.unique(np.round(np.geomspace(1.0, max(10.0, most), 200)))
    law = once + at * law_seconds_per_query
    return BreakEven(queries, at, law, at * (baseline_evaluations * seconds_per_evaluation))
