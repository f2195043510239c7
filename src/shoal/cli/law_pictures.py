"""The figures that `shoal optimize` writes to its run folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from shoal.core.errors import RunFailed
from shoal.observe import landscape
from shoal.observe.drawing import render
from shoal.optimize import pictures
from shoal.optimize.axes import Real
from shoal.optimize.judge import reporting_conditions
from shoal.optimize.learnt import Learnt

SIDE = 101  # points per side of the surface's grid
SIDE_CALLED = 21  # the same if f is called from Python
ALONG = 16  # conditions along a line, if there are several


def draw(learnt: Learnt, folder: Path) -> list[Path]:
    """Write curve.png, contour.png and an answers-KNOB.png for each knob, as far as the problem has such axes. Returns the paths.

    Evaluates f: for the surface, and with several conditions for the optima along the first of them.
    """
    problem, law = learnt.law.problem, learnt.law
    figures = {}
    if learnt.mse.steps:
        figures["curve"] = landscape.curve(np.array(learnt.mse.steps), np.array(learnt.mse.values), "MSE")
    conditions = reporting_conditions(problem)
    if problem.n_conditions > 1:
        conditions = _along(problem.n_conditions, ALONG)
    if problem.n_conditions:
        # At exactly these conditions, whose optima are known.
        points = problem.join(law.answers(conditions)[:, : problem.knob_width], conditions)
        with contextlib.suppress(RunFailed):  # no optimum was found along this line: there is nothing to draw beside
            for axis in problem.knobs:
                found = pictures.answers(problem, points, axis.name)
                columns = (found.at, found.law, found.best, found.law_values, found.best_values)
                figures[f"answers-{axis.name}"] = landscape.answers(*columns, names=(found.knob, found.condition))
    real = [axis for axis in problem.axes if isinstance(axis, Real)]
    if len(real) > 1:
        seen = pictures.surface(problem, side=SIDE if problem.traceable else SIDE_CALLED)
        line = None
        if seen.names[1] in [axis.name for axis in problem.conditions]:
            answers = problem.denormalise(law.answers(_along(problem.n_conditions, 101)))
            line = np.asarray(answers[seen.names[0]]), np.asarray(answers[seen.names[1]])
        figures["contour"] = landscape.contour(seen.x, seen.y, seen.values, seen.names, law=line)
    made = []
    for name, figure in figures.items():
        made.append(folder / f"{name}.png")
        made[-1].write_bytes(render(figure, "png"))
    return made


def _along(sides: int, count: int) -> np.ndarray:
    """Conditions [count, sides] from one end of the first to the other, the others in the middle."""
    line = np.zeros((count, sides))
    line[:, 0] = np.linspace(-1.0, 1.0, count)
    return line
