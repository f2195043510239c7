"""Ways to spend a number of evaluations of f(x, c) on a law. For `laws.py`.

surrogate            `learn(algo="surrogate")`, polished
policy               the same law, raw
reinforce            `learn_to_optimize`'s default, if the budget is large enough for one update
SEARCH, nearest      SEARCH at as many conditions as allow 25 evaluations per knob each; the answer of the nearest one.
                     SEARCH is random search, CMA-ES, or nevergrad (TwoPointsDE)
SEARCH, net          a net fitted to these answers
Gaussian process     contextual Bayesian optimisation with scikit-learn's: even conditions, knobs by the lower confidence bound;
                     only up to 2,000 evaluations
supervised           the arg min of an even design of knobs at each of as many conditions, and a net fitted to them
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import qmc

from shoal.core.errors import BadInput
from shoal.optimize import Law, Problem, learn_to_optimize
from shoal.optimize.baselines import optimise
from shoal.optimize.distil import META, distil
from shoal.optimize.frugal import learn_frugally
from shoal.optimize.search import even_knobs
from shoal.optimize.threads import one_thread

EACH = 25  # evaluations per knob of a search at one condition
ROWS = 1500  # of the Gaussian process, at most: time grows with their cube
FITTED = 300  # rows that its lengths are fitted to, at most
KAPPA = 2.0
MOST_OF_PROCESS = 2000  # evaluations of the Gaussian process: with 20,000, it would take hours for each law
Answers = Callable[[np.ndarray], np.ndarray]
Found = dict[str, Answers]


def in_numpy(problem: Problem) -> Problem:
    """The same problem, called with NumPy's arrays: single points take a tenth of the time of a compiled call."""
    knobs, conditions = (
        {axis.name: (axis.low, axis.high) for axis in axes} for axes in (problem.knobs, problem.conditions)
    )
    return Problem(problem.devices[0], knobs=knobs, conditions=conditions, kind="numpy", name=problem.name)


def surrogate(
    problem: Problem, budget: int, seed: int, folder: Path, look: Callable[[int, Any], None] | None = None
) -> Found:
    law = learn_frugally(in_numpy(problem), budget=budget, seed=seed, score=False, out=folder, look=look).law
    return {"surrogate": law.answers, "policy": lambda c: law.answers(c, polish=False)}


def reinforce(problem: Problem, budget: int, seed: int, folder: Path) -> Found:
    try:
        law = learn_to_optimize(problem, algo="reinforce", budget=budget, seed=seed, out=folder)
    except BadInput:  # the budget is below one update
        return {}
    return {"reinforce": law.answers}


def searching(name: str, method: str) -> Callable[..., Found]:
    def run(problem: Problem, budget: int, seed: int, folder: Path) -> Found:
        points = searched(method, in_numpy(problem), budget, seed)
        return {f"{name}, nearest": nearest(problem, points), f"{name}, net": net(problem, points, seed)}

    return run


def supervised(problem: Problem, budget: int, seed: int, folder: Path) -> Found:
    problem = in_numpy(problem)
    rng = np.random.default_rng(seed)
    points = []
    for condition, share in _shares(problem, budget, rng):
        design = problem.join(even_knobs(problem, share, rng), condition[None])
        points.append(design[problem.evaluate(design).argmin()])
    return {"supervised": net(problem, np.array(points), seed)}


def _shares(problem: Problem, budget: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, int]]:
    """Evenly spread conditions, and the number of evaluations that each gets: all of the budget."""
    count = max(1, budget // (EACH * problem.n_knobs))
    for i, condition in enumerate(_conditions(problem, count, rng)):
        yield condition, budget // count + (i < budget % count)


def _conditions(problem: Problem, count: int, rng: np.random.Generator) -> np.ndarray:
    """[count, n_conditions], evenly spread from -1 to 1."""
    power = max(0, count - 1).bit_length()
    return np.asarray(2.0 * qmc.Sobol(problem.n_conditions, rng=rng).random_base2(power)[:count] - 1.0)


def searched(method: str, problem: Problem, budget: int, seed: int) -> np.ndarray:
    """The best points [C, width] of one search for each of C conditions."""
    shares = _shares(problem, budget, np.random.default_rng(seed))
    return np.array([optimise(method, problem, c, share, seed).point for c, share in shares])


def nearest(problem: Problem, known: np.ndarray) -> Answers:
    def answers(conditions: np.ndarray) -> np.ndarray:
        gaps = ((conditions[:, None] - known[None, :, problem.knob_width :]) ** 2).sum(-1)
        return problem.join(known[gaps.argmin(1), : problem.knob_width], conditions)

    return answers


def net(problem: Problem, known: np.ndarray, seed: int) -> Answers:
    return Law(problem, distil(problem, known, seed), 1, META).answers


def gaussian_process(problem: Problem, budget: int, seed: int, folder: Path) -> Found:
    """A quarter of the budget or less is an even design; then batches that grow with the rows, each with new conditions.

    With more than `ROWS` rows, the process is given the newest third of that number and a random rest.
    """
    problem, rng = in_numpy(problem), np.random.default_rng(seed)
    first = min(budget // 4, 10 * problem.width)
    points = problem.join(even_knobs(problem, first, rng), _conditions(problem, first, rng))
    values = problem.evaluate(points)
    fit_at, kernel = 0, None
    while True:
        model, kernel, fit_at = _fitted(points, values, kernel, fit_at, rng)
        room = budget - len(points)
        if room <= 0:
            break
        conditions = _conditions(problem, min(room, max(4, len(points) // 12)), rng)
        new = np.array([_lowest(problem, model, c, points, KAPPA, rng) for c in conditions])
        points, values = np.concatenate([points, new]), np.concatenate([values, problem.evaluate(new)])
    rng = np.random.default_rng(seed)
    return {
        "Gaussian process": lambda given: np.array([_lowest(problem, model, c, points, 0.0, rng, 512) for c in given])
    }


def _fitted(
    points: np.ndarray, values: np.ndarray, kernel: Any, fit_at: int, rng: np.random.Generator
) -> tuple[Any, Any, int]:
    """The process given the rows, its kernel, and the number of rows at which that is fitted again."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    if kernel is None:
        lengths = Matern(np.ones(points.shape[1]), (0.02, 20.0), nu=2.5)
        kernel = ConstantKernel(1.0, (1e-3, 1e3)) * lengths + WhiteKernel(1e-6, (1e-8, 1.0))
    keep = np.arange(len(points))
    if len(keep) > ROWS:
        keep = np.concatenate([rng.choice(keep[: -ROWS // 3], ROWS - ROWS // 3, replace=False), keep[-ROWS // 3 :]])
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore")  # of an optimiser at its bounds
        if len(points) >= fit_at:
            some = rng.choice(keep, min(FITTED, len(keep)), replace=False)
            fit = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(points[some], values[some])
            kernel, fit_at = fit.kernel_, int(1.5 * len(points))
        model = GaussianProcessRegressor(kernel, normalize_y=True, optimizer=None).fit(points[keep], values[keep])
    return model, kernel, fit_at


def _lowest(
    problem: Problem, model: Any, condition: np.ndarray, tried: np.ndarray, kappa: float, rng: Any, count: int = 128
) -> np.ndarray:
    """The point of the lowest mean - kappa sd among random knobs and the latest that were tried, then around the best."""
    latest = tried[-count:, : problem.knob_width]
    knobs, best, reach = np.concatenate([problem.sample_knobs(rng, count), latest]), None, 0.1
    for _ in range(4):
        points = problem.join(knobs, condition[None])
        with one_thread():
            if kappa:
                mean, spread = model.predict(points, return_std=True)
                mean = mean - kappa * spread
            else:
                mean = model.predict(points)
        best = points[mean.argmin()]
        moved = best[: problem.knob_width] + reach * rng.standard_normal((count // 4, problem.knob_width))
        knobs, reach = np.concatenate([best[None, : problem.knob_width], np.clip(moved, -1.0, 1.0)]), reach * 0.3
    assert best is not None
    return best


METHODS: dict[str, Callable[[Problem, int, int, Path], Found]] = {
    "surrogate": surrogate,
    "reinforce": reinforce,
    "random search": searching("random search", "random_search"),
    "CMA-ES": searching("CMA-ES", "cma"),
    "nevergrad": searching("nevergrad", "nevergrad"),
    "Gaussian process": gaussian_process,
    "supervised": supervised,
}
