"""The arrays of the pictures are in the user's units, and the pictures can be drawn from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.text import Text

from shoal.core.errors import BadInput
from shoal.observe import landscape
from shoal.observe.plots import render
from shoal.optimize.baselines import break_even
from shoal.optimize.functions import FUNCTIONS, make
from shoal.optimize.pictures import answers, surface
from shoal.optimize.problem import Problem


def test_a_surface_is_f_on_a_grid() -> None:
    told = surface(make("rosenbrock", dims=3, free=1), side=11, x3=1.0)
    assert told.names == ("x1", "x2") and told.values.shape == (11, 11)
    x = np.array([told.x[2], told.y[7], 1.0])
    assert told.values[7, 2] == pytest.approx(float(FUNCTIONS["rosenbrock"](x)), rel=1e-6)
    assert surface(make("sphere", free=2), side=5).names == ("x1", "x2")
    assert surface(make("sphere", dims=3, free=1), x="x3", y="x1", side=5).names == ("x3", "x1")
    with pytest.raises(BadInput, match="has no real axis 'x9'"):
        surface(make("sphere"), x="x9")
    with pytest.raises(BadInput, match="a surface needs two"):
        surface(Problem(lambda x: x, knobs={"x": (0, 1)}))


def test_answers_beside_the_best() -> None:
    problem = make("sphere", shift=0.3)
    law = problem.join(np.array([0.5]), problem.condition_grid()[::-1])
    told = answers(problem, law)
    assert (told.knob, told.condition) == ("x1", "x2")
    assert (np.diff(told.at) > 0).all() and told.at[0] == -5.12
    np.testing.assert_allclose(told.law, 2.56)
    np.testing.assert_allclose(told.best, 0.3 * 5.12, atol=1e-3)
    np.testing.assert_allclose(told.law_values - told.best_values, (0.2 * 5.12) ** 2, rtol=1e-4)
    with pytest.raises(BadInput, match="no conditions"):
        answers(make("sphere", free=2), np.zeros((1, 2)))


@pytest.mark.parametrize("name", ["rosenbrock", "ackley", "styblinski_tang"])
def test_landscapes_are_drawn(name: str) -> None:
    told = surface(make(name), side=15)
    told.values[3, 3] = math.nan  # a failure leaves a hole
    line = np.linspace(told.x[0], told.x[-1], 5), np.linspace(told.y[0], told.y[-1], 5)
    for figure in (
        landscape.surface_3d(told.x, told.y, told.values, told.names),
        landscape.contour(told.x, told.y, told.values, told.names, best=line, law=line),
    ):
        assert render(figure, "png").startswith(b"\x89PNG")
        assert "x1" in {text.get_text() for text in figure.findobj(Text)}


def test_curves_are_drawn() -> None:
    at = np.linspace(0, 1, 9)
    figure = landscape.answers(at, at, at + 0.1, at, at, ("bias", "temp"))
    assert b"bias" in render(figure) and b"temp" in render(figure)
    told = break_even(
        law_evaluations=1000, law_seconds_per_query=0.5, baseline_evaluations=50, seconds_per_evaluation=0.1
    )
    drawn = render(landscape.break_even(told.queries, told.at, told.law, {"CMA-ES": told.baseline}))
    assert b"CMA-ES" in drawn and b"23 queries" in drawn
    never = landscape.break_even(math.inf, told.at, told.law, {"a": told.baseline})
    assert len(never.axes[0].lines) == 2
