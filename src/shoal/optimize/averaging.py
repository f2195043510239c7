"""Laws from the states of a training: of one state, or of a running mean of the weights of many."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.core.blueprint import named_leaves
from shoal.experiment import Plan
from shoal.launch.compose import make_algorithm
from shoal.optimize.law import Law, Weights
from shoal.optimize.problem import Problem

MEMORY = 0.8  # share of the averaged weights kept at each look: the last fifty updates count most


class Laws:
    """Makes laws from a training's states."""

    def __init__(self, plan: Plan, problem: Problem, time_steps: int) -> None:
        self._algorithm, self._net = make_algorithm(plan), plan.net
        self._problem, self._time_steps = problem, time_steps
        self._sums: dict[str, np.ndarray] = {}
        self._weight = 0.0

    def of(self, state: Any) -> Law:
        """The law with the weights of this state alone."""
        return self._law(named_leaves(self._algorithm.actor_state(state)))

    def averaged(self, state: Any) -> Law:
        """The law with a running mean of the weights of all states given here.

        Each update jumps with the noise of its few episodes; the mean over the last looks does not (Polyak and Juditsky 1992).
        """
        arrays = named_leaves(self._algorithm.actor_state(state))
        self._weight = MEMORY * self._weight + 1.0
        for name, array in arrays.items():
            self._sums[name] = MEMORY * self._sums.get(name, 0.0) + np.asarray(array, np.float64)
        return self._law({n: np.asarray(s / self._weight, np.float32) for n, s in self._sums.items()})

    def _law(self, arrays: dict[str, np.ndarray]) -> Law:
        net = self._net
        meta = {
            "activation": net.activation,
            "time_steps": self._time_steps,
            "own_scale": "params/policy/log_std" in arrays,
            "bounded": net.bounded,
        }
        return Law(self._problem, Weights.of(arrays, net.activation), self._time_steps, meta)
