"""Which points the explorer proposes: where the law is unsure, where something may be gained, and for every value of a knob."""

from __future__ import annotations

import numpy as np
import pytest
from bowls import Counted, bowl

from shoal.optimize import Problem, explorer
from shoal.optimize.explorer import Explorer
from shoal.optimize.search import even_conditions, even_points
from shoal.optimize.surrogate import Surrogate, kernel_of

TWO = Problem(lambda x, c, d: 0.0, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1), "d": (-1, 1)}, kind="python")


@pytest.mark.parametrize("drawn", [even_conditions, lambda *how: even_points(*how)[:, 1:]])
def test_conditions_reach_the_sides_and_every_corner(drawn: object) -> None:
    found = drawn(TWO, 256, np.random.default_rng(0))  # type: ignore[operator]
    assert np.abs(found).max() == 1.0
    assert np.mean(np.abs(found[:, 0]) == 1.0) == pytest.approx(0.2, abs=0.03)
    assert {tuple(c) for c in found} >= {(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)}


def known_for(conditions: np.ndarray) -> Explorer:
    """An explorer that knows f(x, c) = (x - c)^2 at even knobs for these conditions alone, with lengths of 0.5."""
    problem = bowl(Counted())
    x, c = np.meshgrid(np.linspace(-1, 1, 6), conditions)
    points = np.stack([x.ravel(), c.ravel()], 1)
    gp = Surrogate(kernel_of(problem, ripples=False))
    gp.given(points, (points[:, 0] - points[:, 1]) ** 2)
    return Explorer.knowing(problem, gp, ())


@pytest.mark.parametrize("kappa", [0.0, 2.0])
def test_conditions_that_are_known_least_come_first(monkeypatch: pytest.MonkeyPatch, kappa: float) -> None:
    monkeypatch.setattr(explorer, "KAPPAS", (kappa,))
    shares = []
    for rivals in ({}, explorer.RIVALS):
        monkeypatch.setattr(explorer, "RIVALS", rivals)
        asked = known_for(np.linspace(-1, -0.2, 5)).ask(8)[:, 1]
        assert len(set(asked)) == 8, "rivals on the same side are not all taken"
        shares.append(np.mean(asked[:4] > 0.0))
    assert shares[1] == 1.0 > shares[0]


def test_a_value_that_was_never_tried_is_proposed() -> None:
    """fingers=2 has no row: neither the lowest means nor the latest rows would bring it into the comparison."""
    problem = Problem(
        lambda x, fingers, c: 0.0,
        knobs={"x": (-1, 1), "fingers": range(1, 4)},
        conditions={"c": (-1, 1)},
        kind="python",
    )
    made = Explorer(problem)
    points = even_points(problem, 64, np.random.default_rng(0))
    points = points[points[:, 1] != 0.0]
    made.tell(points, np.where(points[:, 1] > 0.0, 3.0, (points[:, 0] - points[:, 2]) ** 2))
    masks = list(made._values_of(points))
    assert [int(mask.sum()) for mask in masks] == [(points[:, 1] < 0).sum(), 0, (points[:, 1] > 0).sum()]
    assert (made.ask(32)[:, 1] == 0.0).any()


def test_the_regret_is_estimated_from_the_spread() -> None:
    few, many = (known_for(np.linspace(-1, 1, n)) for n in (2, 9))
    for one in (few, many):
        one.refresh()
    assert 0.0 <= many.regret() < few.regret()
    before = many._rng.bit_generator.state
    many.regret()
    assert many._rng.bit_generator.state == before, "a run that prints its progress has the same law"


def test_spreads_from_some_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = bowl(Counted())
    rows = even_points(problem, 40, np.random.default_rng(0))
    gp = Surrogate(kernel_of(problem))
    gp.given(rows, 7.0 * rows[:, 0])
    assert explorer._unsure(gp) is gp
    monkeypatch.setattr(explorer, "SPREADING", 10)
    some = explorer._unsure(gp)
    assert len(some.rows) == 10 and np.array_equal(some.rows[-5:], rows[-5:])
    exact, more = (one.both(rows)[1] for one in (gp, some))
    assert (more >= exact - 1e-9).all(), "fewer rows know less, in the same units"


def test_far_from_the_rows_that_are_kept_f_is_what_it_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the rows that are kept are low; their own mean would promise minima wherever none is kept."""
    monkeypatch.setattr("shoal.optimize.explorer.ROWS", 32)
    problem = Problem(lambda x, c: 0.0, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="python")
    explorer, rng = Explorer(problem), np.random.default_rng(0)
    for _ in range(2):  # the second time, the rows are many
        points = rng.uniform(-1, 1, (100, 2))
        explorer.tell(points, (points[:, 0] - points[:, 1]) ** 2)
        explorer.refresh()
    assert len(explorer.surrogate.rows) == 32
    assert explorer.surrogate.centre == pytest.approx(explorer.values.mean())
