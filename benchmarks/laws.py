"""How good laws from few evaluations are, beside other ways to spend the same evaluations. For `run.py`; prints one JSON object.

    python benchmarks/laws.py KNOBS BUDGET SEEDS [FUNCTION ...]

Each function has KNOBS knobs and as many conditions, its minimum moved by 0.2 along the knobs. The normalised regret is
(f(law) - f*) / (mean of f at random points - f*) over 64 conditions that no method has seen; f* is searched.

surrogate   `learn(algo="surrogate")`, polished
policy      the same law, raw
reinforce   `learn_to_optimize`'s default, if the budget is large enough for one update
nearest     random search or CMA-ES at as many conditions as allow 25 evaluations per knob each; the answer of the nearest one
supervised  a net fitted to the answers of that random search
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import BadInput
from shoal.optimize import Law, Problem, learn_to_optimize
from shoal.optimize.baselines import optimise
from shoal.optimize.distil import META, distil
from shoal.optimize.frugal import learn_frugally
from shoal.optimize.functions import FUNCTIONS, make
from shoal.optimize.judge import spread
from shoal.optimize.search import even_conditions
from shoal.optimize.truth import refined
from shoal.studies.statistics import iqm

HELD_OUT = 64
EACH = 25  # evaluations per knob of a search at one condition
Answers = Callable[[np.ndarray], np.ndarray]


def searched(method: str, problem: Problem, budget: int, seed: int) -> np.ndarray:
    """The best points [C, width] of one search for each of C conditions, all of the budget."""
    count = max(1, budget // (EACH * problem.n_knobs))
    conditions = even_conditions(problem, count, np.random.default_rng(seed))
    shares = [budget // count + (i < budget % count) for i in range(count)]
    found = [optimise(method, problem, c, share, seed).point for c, share in zip(conditions, shares, strict=True)]
    return np.array(found)


def nearest(problem: Problem, known: np.ndarray) -> Answers:
    def answers(conditions: np.ndarray) -> np.ndarray:
        gaps = ((conditions[:, None] - known[None, :, problem.knob_width :]) ** 2).sum(-1)
        return problem.join(known[gaps.argmin(1), : problem.knob_width], conditions)

    return answers


def methods(problem: Problem, budget: int, seed: int, folder: Path) -> dict[str, tuple[Answers, float]]:
    """Each method's answers, and the seconds of CPU that it took."""
    found: dict[str, tuple[Answers, float]] = {}

    def timed(name: str, work: Callable[[], Answers]) -> None:
        began = time.process_time()
        answers = work()
        found[name] = answers, time.process_time() - began

    laws: list[Law] = []

    def surrogate() -> Answers:
        laws.append(learn_frugally(problem, budget=budget, seed=seed, score=False, out=folder / "surrogate").law)
        return laws[0].answers

    def reinforce() -> Answers:
        return learn_to_optimize(problem, algo="reinforce", budget=budget, seed=seed, out=folder / "reinforce").answers

    points = searched("random_search", problem, budget, seed)
    timed("surrogate", surrogate)
    found["policy"] = (lambda c: laws[0].answers(c, polish=False)), 0.0
    with contextlib.suppress(BadInput):  # the budget is below one update
        timed("reinforce", reinforce)
    timed("nearest, random search", lambda: nearest(problem, points))
    timed("nearest, CMA-ES", lambda: nearest(problem, searched("cma", problem, budget, seed)))
    timed("supervised", lambda: Law(problem, distil(problem, points, seed), 1, META).answers)
    return found


def cell(name: str, knobs: int, budget: int, seeds: int) -> list[dict[str, Any]]:
    """One row for each method: its normalised regret, one number per seed."""
    problem = make(name, dims=2 * knobs, free=knobs, shift=0.2)
    conditions = spread(knobs, 1000, HELD_OUT)
    best = refined(problem, conditions)
    random = float(np.nanmean(problem.evaluate(problem.sample(np.random.default_rng(0), 4096)))) - float(best.mean())
    rows: dict[str, dict[str, Any]] = {}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as temporary:
            for method, (answers, seconds) in methods(problem, budget, seed, Path(temporary)).items():
                row = rows.setdefault(method, {"method": method, "function": name, "regret": [], "cpu_s": []})
                gap = float(np.mean(problem.evaluate(answers(conditions)) - best))
                row["regret"].append(gap / random)
                row["cpu_s"].append(seconds)
    return list(rows.values())


def summary(rows: list[dict[str, Any]], knobs: int, budget: int) -> list[dict[str, Any]]:
    """For each method, the interquartile mean over functions and seeds with its 95 % interval, by resampling seeds."""
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        table = [row["regret"] for row in rows if row["method"] == method]
        rng = np.random.default_rng(0)
        again = [iqm([value for values in table for value in rng.choice(values, len(values))]) for _ in range(1000)]
        low, high = np.quantile(again, [0.025, 0.975])
        mid = iqm([value for values in table for value in values])
        found.append({"who": method, "case": f"{knobs} + {knobs} at {budget:,}", "iqm": mid, "ci": [low, high]})
    return found


if __name__ == "__main__":
    knobs, budget, seeds = map(int, sys.argv[1:4])
    fit = [n for n, f in FUNCTIONS.items() if f.dims in (None, 2 * knobs)]
    cells = [row for name in sys.argv[4:] or fit for row in cell(name, knobs, budget, seeds)]
    print(json.dumps({"cells": cells, "rows": summary(cells, knobs, budget)}))
