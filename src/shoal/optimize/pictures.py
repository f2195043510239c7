"""Arrays for a problem's figures, in the user's own units. `observe.landscape` draws them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shoal.core.errors import BadInput, nearest
from shoal.core.trajectory import Array
from shoal.optimize.axes import Real
from shoal.optimize.problem import Problem
from shoal.optimize.truth import optimum


class Surface(NamedTuple):
    """f over two of its axes, the others fixed."""

    names: tuple[str, str]
    x: np.ndarray  # [S]
    y: np.ndarray  # [S]
    values: np.ndarray  # [S, S]: row by y, column by x; NaN where f failed


class Answers(NamedTuple):
    """A knob over a condition: the law's answer and the best one."""

    knob: str
    condition: str
    at: np.ndarray  # [C] the condition
    law: np.ndarray  # [C]
    best: np.ndarray  # [C]
    law_values: np.ndarray  # [C] f
    best_values: np.ndarray  # [C]


def surface(problem: Problem, x: str | None = None, y: str | None = None, side: int = 101, **held: Any) -> Surface:
    """f on a grid over two real axes: the first knob and the first condition (or second knob) unless named.

    Other knobs and conditions take the values in `held`, or the middle of their box.
    """
    real = [axis for axis in problem.axes if isinstance(axis, Real)]
    conditions = [axis for axis in real if axis in problem.conditions]
    usual = [*(axis for axis in real if axis not in conditions), *conditions]
    if len(usual) < 2:
        raise BadInput(f"{problem.name} has {len(usual)} real axes: a surface needs two")
    other = [axis for axis in (conditions or usual) if axis.name != x]
    first = _named(problem, real, x) if x is not None else next(axis for axis in usual if axis.name != y)
    second = _named(problem, real, y) if y is not None else next(a for a in (*other, *usual) if a is not first)
    if first is second:
        raise BadInput(f"a surface over {first.name!r} twice: it needs two axes")
    across, along = np.linspace(first.low, first.high, side), np.linspace(second.low, second.high, side)
    middle = {axis.name: (axis.low + axis.high) / 2.0 for axis in problem.conditions}
    grid_x, grid_y = np.meshgrid(across, along)
    points = problem.normalise(**{**middle, **held, first.name: grid_x, second.name: grid_y})
    values = problem.evaluate(points.reshape(-1, problem.width)).reshape(side, side)
    return Surface((first.name, second.name), across, along, np.asarray(values, np.float64))


def _named(problem: Problem, real: list[Real], name: str) -> Real:
    for axis in real:
        if axis.name == name:
            return axis
    valid = [axis.name for axis in real]
    raise BadInput(f"{problem.name} has no real axis {name!r}: it has {', '.join(valid)}.{nearest(name, valid)}")


def answers(problem: Problem, points: Array, knob: str | None = None, condition: str | None = None) -> Answers:
    """A law's answers, as points [C, width], beside the best ones; the first knob and condition unless named."""
    if not problem.n_conditions:
        raise BadInput(f"{problem.name} has no conditions: there is nothing to draw its answers over")
    knob = knob or problem.knobs[0].name
    condition = condition or problem.conditions[0].name
    for name, valid in ((knob, problem.knobs), (condition, problem.conditions)):
        if name not in [axis.name for axis in valid]:
            raise BadInput(f"{problem.name} has no {name!r} to draw: {', '.join(axis.name for axis in valid)}")
    points = np.asarray(points, np.float64)
    best = optimum(problem, points[:, problem.knob_width :])
    given, wanted = problem.denormalise(points), problem.denormalise(best.points)
    order = np.argsort(np.asarray(given[condition]), kind="stable")
    columns = (given[condition], given[knob], wanted[knob], problem.evaluate(points), best.values)
    return Answers(knob, condition, *(np.asarray(column)[order] for column in columns))
