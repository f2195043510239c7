"""Learn to optimise: conditions in, minimiser out.

This package holds `problem` (f, its knobs and conditions, on `axes` and `kinds` of calling), `functions` (benchmarks with
known minima), `truth` (searched optima and the score against them), `judge` (which law is kept, and on which conditions),
`baselines` (other optimisers at equal numbers of evaluations) and `pictures` (arrays for the figures). Laws come from policy
gradients (`learn`) or from few evaluations (`frugal`: an `explorer` asks a `surrogate`, whose minima `search` finds). May import:
`launch` and everything below it; NumPy, SciPy, JAX; `cma` and `nevergrad` only in `baselines`. You may change: add a
function by its formula and a line in `functions.FUNCTIONS`, a baseline by a line in `baselines.METHODS`. Looking for the
figures themselves? `observe.landscape`. For algorithms? `algos`.
"""

from __future__ import annotations

from shoal.optimize.law import Law, load
from shoal.optimize.learn import learn, learn_to_optimize
from shoal.optimize.problem import Problem

__all__ = ["Law", "Problem", "learn", "learn_to_optimize", "load"]
