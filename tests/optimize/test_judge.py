"""Which law is kept and on what it is judged: conditions that trained it, chose it and report it have nothing in common."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from shoal.optimize import Problem
from shoal.optimize.functions import make
from shoal.optimize.judge import (
    CHOOSING,
    Chooser,
    Watch,
    choosing_conditions,
    choosing_evaluations,
    reporting_conditions,
    spread,
)
from shoal.optimize.mdp import cube_of
from shoal.optimize.samplers import SAMPLERS


def bowl(x: float, c: float) -> float:
    return (x - c) ** 2


def problem(f: Any = bowl) -> Problem:
    return Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="python", name="bowl")


class Fixed:
    """A law that answers x everywhere."""

    def __init__(self, x: float) -> None:
        self.x = x

    def answers(self, conditions: np.ndarray) -> np.ndarray:
        return np.column_stack([np.full(len(conditions), self.x), conditions])


@pytest.mark.parametrize("sides", [1, 2, 5])
def test_the_sequence_is_even_and_never_repeats(sides: int) -> None:
    points = spread(sides, 1, 512)
    assert points.shape == (512, sides) and np.abs(points).max() < 1
    assert len({tuple(point) for point in points}) == 512
    np.testing.assert_array_equal(spread(sides, 33, 10), points[32:42])
    for column in points.T:
        counts, _ = np.histogram(column[:64], bins=8, range=(-1, 1))
        assert counts.min() >= 5, counts


@pytest.mark.parametrize("sampler", ["random", "latin_hypercube", "latin_scipy", "grid"])
def test_training_choosing_reporting_and_scoring_conditions_are_disjoint(sampler: str) -> None:
    ackley = make("ackley")
    starts = SAMPLERS[sampler](cube_of(ackley), None, 0, 1)
    state = starts.init(jax.random.key(0))
    drawn: list[np.ndarray] = []
    for turn in range(20):
        points, state = starts.sample(state, None, jax.random.key(turn), 441)  # type: ignore[arg-type]
        drawn.append(np.asarray(points)[:, 1])
    sets = {
        "training": {float(c) for c in np.concatenate(drawn)},
        "choosing": {float(c) for c in choosing_conditions(ackley)[:, 0]},
        "reporting": {float(c) for c in reporting_conditions(ackley)[:, 0]},
    }
    assert len(sets["choosing"]) == CHOOSING
    scoring = {float(c) for c in ackley.condition_grid()[:, 0]}
    assert not scoring & (sets["choosing"] | sets["reporting"])
    assert sum(len(s) for s in sets.values()) == len(set().union(*sets.values()))


def test_the_lowest_mean_of_f_is_kept() -> None:
    chooser = Chooser(problem())
    for step, x in ((10, 0.5), (20, 0.1), (30, 0.0), (40, 0.3)):
        chooser.judge(step, Fixed(x))  # type: ignore[arg-type]
    law, step = chooser.kept()
    assert step == 30 and law.x == 0.0  # type: ignore[attr-defined]
    assert chooser.evaluations == 4 * CHOOSING == choosing_evaluations(problem(), 40)


def test_a_single_law_costs_nothing() -> None:
    bowl_problem = problem()
    chooser = Chooser(bowl_problem)
    chooser.judge(7, Fixed(0.5))  # type: ignore[arg-type]
    assert chooser.kept()[1] == 7 and chooser.evaluations == bowl_problem.evaluations == 0
    assert choosing_evaluations(bowl_problem, 7) == 0


def test_a_law_where_f_fails_is_worse_than_one_where_it_does_not() -> None:
    def holes(x: float, c: float) -> float:
        if x == 0.0:
            raise ValueError("no convergence")
        return bowl(x, c)

    chooser = Chooser(problem(holes))
    for step, x in ((10, 0.9), (20, 0.0)):
        chooser.judge(step, Fixed(x))  # type: ignore[arg-type]
    assert chooser.kept()[1] == 10


def test_without_conditions_there_is_a_single_empty_one() -> None:
    plain = make("sphere", dims=2, free=2)
    assert choosing_conditions(plain).shape == reporting_conditions(plain).shape == (1, 0)


def test_the_law_is_shown_every_ten_updates() -> None:
    seen: list[int] = []
    judge: Any = SimpleNamespace(judge=lambda step, law: seen.append(step))
    watch = Watch(lambda state: state, judge)
    for report in ({"looks": [(10, 0), (20, 0)]}, {"version": 25}, {"version": 31}, {"version": 38}, {"version": 40}):
        watch(SimpleNamespace(**{"looks": (), "state": 0, **report}))  # type: ignore[arg-type]
    assert seen == [10, 20, 31, 40] and watch.seen == 40
