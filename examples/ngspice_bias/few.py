"""The law of the bias cell from at most 300 simulations, and its regret over all corners. About half a minute for each seed.

python examples/ngspice_bias/few.py [seeds]        needs ngspice on the PATH (apt-get install ngspice)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bias import problem

from shoal.optimize import Law, learn

BUDGET = 300


class Best(NamedTuple):
    """The optima at some conditions, and the range of the cost there."""

    conditions: np.ndarray  # [C, 2], from -1 to 1
    values: np.ndarray  # [C]
    span: float


def searched(temps: int, supplies: int, trims: int = 61) -> Best:
    """The best of all fingers and even trims at a grid of conditions with its corners, then of finer trims around the best."""
    bias = problem()
    sides = np.meshgrid(np.linspace(-1, 1, temps), np.linspace(-1, 1, supplies), indexing="ij")
    conditions, grid = np.stack(sides, -1).reshape(-1, 2), np.linspace(-1, 1, trims)

    def costs(trim: np.ndarray, fingers: np.ndarray, condition: np.ndarray) -> np.ndarray:
        action = np.stack([trim, fingers], 1)
        knobs = bias.from_action(np.zeros((len(action), bias.width)), action)[:, : bias.knob_width]
        return np.asarray(bias.evaluate(bias.join(knobs, condition[None])))

    best, seen = [], []
    finer = np.linspace(-1, 1, 23) * (grid[1] - grid[0])
    for condition in conditions:
        coarse = costs(np.tile(grid, 8), np.repeat(np.arange(8.0), trims), condition).reshape(8, trims)
        leading = np.argsort(coarse.min(1))[:3]
        around = np.clip(grid[coarse[leading].argmin(1)][:, None] + finer, -1, 1)
        fine = costs(around.ravel(), np.repeat(leading.astype(float), len(finer)), condition)
        best.append(min(coarse.min(), fine.min()))
        seen.append(coarse)
    return Best(conditions, np.array(best), float(np.ptp(seen)))


def regret(law: Law, best: Best) -> np.ndarray:
    """How much more the law's answers cost than the best ones, as a share of the cost's range: [C]."""
    return np.asarray((law.problem.evaluate(law.answers(best.conditions)) - best.values) / best.span)


if __name__ == "__main__":
    best = searched(7, 5)
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        with tempfile.TemporaryDirectory() as folder:
            learnt = learn(problem(), algo="surrogate", budget=BUDGET, seed=seed, score=False, out=Path(folder) / "run")
        lost = 100 * regret(learnt.law, best)
        at = f"over {len(lost)} conditions, corners included"
        print(
            f"seed {seed}: {learnt.evaluations} simulations, regret {lost.mean():.2f} % of the range, worst {lost.max():.2f} % {at}"
        )
