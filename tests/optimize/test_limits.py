"""Constraints: against known constrained minima, counted where they are violated, refused where nothing satisfies them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.optimize import Problem, learn_to_optimize, limits, load
from shoal.optimize.frugal import learn_frugally
from shoal.optimize.judge import reporting_conditions
from shoal.optimize.learn import learn
from shoal.optimize.truth import optimum


def f(x: Any, y: Any, c: Any) -> Any:
    """The nearest point of a disc to (2, 1 + c): the minimum lies outside the disc, for every c."""
    return (x - 2.0) ** 2 + (y - 1.0 - c) ** 2


def disc(x: Any, y: Any, c: Any) -> Any:
    return x * x + y * y - 1.0


def half(x: Any, y: Any, c: Any) -> Any:
    return x - 2.0 + 0.0 * c  # always satisfied in the box


def never(x: Any, y: Any, c: Any) -> Any:
    return 3.0 + x + 0.0 * c


def problem(*subject_to: Any, kind: str = "python") -> Problem:
    box = {"x": (-1.5, 1.5), "y": (-1.5, 1.5)}
    return Problem(f, knobs=box, conditions={"c": (-1.0, 1.0)}, kind=kind, subject_to=list(subject_to))


def nearest(c: np.ndarray) -> np.ndarray:
    """[C, 2]: the projection of (2, 1 + c) onto the unit circle."""
    away = np.stack([np.full_like(c, 2.0), 1.0 + c], -1)
    return np.asarray(away / np.linalg.norm(away, axis=-1, keepdims=True))


C = np.linspace(-0.9, 0.9, 13)


def test_the_law_of_a_surrogate_stays_inside_and_is_the_projection(tmp_path: Path) -> None:
    calls = {"f": 0, "g": 0}

    def counted(x: float, y: float, c: float) -> float:
        calls["f"] += 1
        return float(f(x, y, c))

    def edge(x: float, y: float, c: float) -> float:
        calls["g"] += 1
        return float(disc(x, y, c))

    box = {"x": (-1.5, 1.5), "y": (-1.5, 1.5)}
    asked = Problem(counted, knobs=box, conditions={"c": (-1.0, 1.0)}, kind="python", subject_to=edge)
    law = learn_frugally(asked, budget=120, score=False, out=tmp_path / "run").law
    assert calls == {"f": 120, "g": 120}, "one evaluation is f and g at one point"
    found = law(c=C)
    answers = np.stack([found["x"], found["y"]], -1)
    assert law.violations(C[:, None]) == 0
    np.testing.assert_allclose(answers, nearest(C), atol=0.05)
    assert (np.linalg.norm(answers, axis=1) > 0.95).all(), "the answer is at the edge, not deep inside"
    told = law.explain(c=0.5)
    assert -0.1 < told.limits["edge"] <= 0.0
    again = load(tmp_path / "run" / "law.safetensors", asked)
    np.testing.assert_allclose(again(c=C)["x"], found["x"], atol=1e-6)
    row = json.loads((tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()[0])
    assert row.keys() == {"x", "y", "c", "edge", "value"}
    assert row["edge"] == pytest.approx(disc(row["x"], row["y"], row["c"]))


@pytest.mark.parametrize("kind", ["jax", "numpy", "python"])
def test_a_violation_has_no_value_and_a_penalty_one(kind: str) -> None:
    asked = problem(disc, half, kind=kind)
    points = asked.normalise(x=np.array([0.0, 1.2, -1.4]), y=np.array([0.5, 0.0, 1.4]), c=0.3)
    own = asked.denormalise(points)
    values, found = asked.measure(points)
    np.testing.assert_allclose(values, f(**own), atol=1e-6)
    np.testing.assert_allclose(found, [disc(**own), half(**own)], atol=1e-6)
    np.testing.assert_array_equal(np.isnan(asked.evaluate(points)), [False, True, True])
    costly = asked.with_penalty(((2.0, 10.0), (5.0, 5.0)))
    expected = f(**own) + np.where(disc(**own) > 0, 2.0 + 10.0 * disc(**own), 0.0)
    np.testing.assert_allclose(costly.evaluate(points), expected, atol=1e-5)
    if kind == "jax":
        np.testing.assert_allclose(costly.evaluate_jax(jnp.asarray(points, jnp.float32)), expected, atol=1e-4)
    assert costly != asked == problem(disc, half, kind=kind) != problem(disc, kind=kind)


def test_searched_optima_obey_constraints() -> None:
    asked = problem(disc, kind="jax")
    found = optimum(asked, C[:, None])
    best = nearest(C)
    expected = f(best[:, 0], best[:, 1], C)
    np.testing.assert_allclose(found.values, expected, rtol=2e-3)
    assert (asked.measure(found.points)[1] <= 0.0).all()


@pytest.mark.slow
def test_policy_gradients_learn_to_stay_inside(tmp_path: Path) -> None:
    asked = problem(disc, kind="jax")
    learnt = learn(asked, algo="ppo", steps=200, out=tmp_path / "run")
    violated = learnt.summary["violations"]
    assert violated == learnt.law.violations(reporting_conditions(asked)) <= 4
    regret = learnt.summary["regret"]
    assert regret["n"] == 32 - violated and regret["mean"] < 0.5


def test_violations_are_counted_where_they_are() -> None:
    from shoal.optimize import Law
    from shoal.optimize.distil import META, distil

    asked = problem(disc)
    outside = asked.normalise(x=np.where(C > 0, 1.3, 0.2), y=np.zeros_like(C), c=C)
    law = Law(asked, distil(asked, outside), 1, META)
    answers = asked.denormalise(law.answers(C[:, None]))
    assert law.violations(C[:, None]) == int((disc(**answers) > 0).sum()) > 3


def test_a_constraint_that_nothing_satisfies_is_refused(tmp_path: Path) -> None:
    said = r"f: never <= 0 holds at none of 64 points that were tried: the lowest value was 1\.\d+; 64 evaluations are kept"
    with pytest.raises(BadInput, match=said):
        learn_frugally(problem(half, never), budget=200, score=False, out=tmp_path / "run")
    assert len((tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()) == 64
    with pytest.raises(BadInput, match=r"holds at none of 10\d points .* 10\d evaluations are kept"):
        learn_frugally(
            problem(half, never), budget=400, score=False, resume=tmp_path / "run"
        )  # it tries a quarter of 400
    with pytest.raises(BadInput, match="never <= 0 holds at none of 20 points"):
        learn_frugally(problem(never), budget=20, score=False, out=tmp_path / "few")
    with pytest.raises(BadInput, match="never <= 0 holds at none of 1,024 points"):
        learn(problem(never, kind="jax"), algo="reinforce", steps=5, out=tmp_path / "policy")
    assert not (tmp_path / "policy").exists()

    def left(x: float, y: float, c: float) -> float:
        return x + 0.5

    def right(x: float, y: float, c: float) -> float:
        return 0.5 - x

    with pytest.raises(BadInput, match="no point of 20 that were tried satisfies all 2 constraints together"):
        learn_frugally(problem(left, right), budget=20, score=False, out=tmp_path / "both")


def test_penalties_are_paid_from_the_budget(tmp_path: Path) -> None:
    calls = 0

    def counted(x: Any, y: Any, c: Any) -> Any:
        nonlocal calls
        calls += np.size(x)
        return f(x, y, c)

    box = {"x": (-1.5, 1.5), "y": (-1.5, 1.5)}
    asked = Problem(counted, knobs=box, conditions={"c": (-1.0, 1.0)}, kind="python", subject_to=disc)
    how: dict[str, Any] = {"algo": "reinforce", "runtime": "inline", "drivers": 1, "sampler": "random"}
    learn_to_optimize(asked, budget=1000, out=tmp_path / "run", **how)
    assert 800 < calls <= 1000


def test_penalties_of_an_f_that_raises_on_arrays_are_paid_from_the_budget(tmp_path: Path) -> None:
    calls = 0

    def counted(x: Any, y: Any, c: Any) -> Any:
        nonlocal calls
        calls += np.size(x)
        if np.size(x) > 64:  # more than an update has: the penalties' batch alone
            raise ValueError("too many")
        return f(x, y, c)

    box = {"x": (-1.5, 1.5), "y": (-1.5, 1.5)}
    asked = Problem(counted, knobs=box, conditions={"c": (-1.0, 1.0)}, kind="numpy", subject_to=disc)
    how: dict[str, Any] = {"algo": "reinforce", "runtime": "inline", "drivers": 1, "sampler": "random"}
    learn_to_optimize(asked, budget=1300, out=tmp_path / "run", **how)
    assert 1000 < calls <= 1300


def test_a_law_saved_without_its_problem_keeps_its_constraints(tmp_path: Path) -> None:
    asked = problem(disc, half)
    first, second = tmp_path / "run" / "law.safetensors", tmp_path / "again.safetensors"
    law = learn_frugally(asked, budget=60, score=False, out=tmp_path / "run").law
    load(first).save(second)
    for again in (load(second), load(second, asked)):
        np.testing.assert_allclose(again(c=C)["x"], law(c=C)["x"], atol=1e-6)
        assert again.explain(c=0.5).limits.keys() == {"disc", "half"} and again.told == asked.describe()
    assert load(second, asked).violations(C[:, None]) == law.violations(C[:, None])


def test_a_run_whose_constraint_failed_somewhere_is_resumed(tmp_path: Path) -> None:
    def shaky(x: float, y: float, c: float) -> float:
        if x > 0.0:
            raise ZeroDivisionError("no such device")
        return float(disc(x, y, c))

    learn_frugally(problem(shaky), budget=14, score=False, out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert any(row["shaky"] is None for row in rows)
    learnt = learn_frugally(problem(shaky), budget=30, score=False, resume=tmp_path / "run")
    assert learnt.summary["evaluations_of"]["checking"] == 8


@pytest.mark.parametrize("kind", ["python", "numpy"])
def test_a_constraint_too_tight_to_search_optima_costs_the_regret_and_not_the_law(tmp_path: Path, kind: str) -> None:
    def total(x: Any, y: Any, z: Any, c: Any) -> Any:
        return x + y + z + c

    def tight(x: Any, y: Any, z: Any, c: Any) -> Any:
        return (x - 0.3) ** 2 + (y + 0.2) ** 2 + (z - 0.1) ** 2 - 1e-4 + 0.0 * c

    known = np.random.default_rng(0).uniform(-1, 1, (80, 4))
    known[:5, :3] = 0.3, -0.2, 0.1  # the middle of what is allowed
    rows = [[*row, tight(*row), total(*row)] for row in known.tolist()]
    old = tmp_path / "old.csv"
    old.write_text("\n".join(["x,y,z,c,tight,value", *(",".join(map(repr, row)) for row in rows)]))
    box = dict.fromkeys("xyz", (-1.0, 1.0))
    asked = Problem(total, knobs=box, conditions={"c": (-1.0, 1.0)}, kind=kind, subject_to=tight)
    learnt = learn_frugally(asked, budget=8, data=old, out=tmp_path / "run")
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["violations"] < told["conditions"]["reporting"], "the law stays inside"
    why = "total: a search for its optima found no point that satisfies the constraints"
    assert told["regret"] is None and told["left_out"]["regret"] == why
    assert told["left_out"].get("curve") == (why if kind == "numpy" else None) and not learnt.mse.steps
    assert told["evaluations"] <= 8 and load(tmp_path / "run" / "law.safetensors", asked)(c=0.0) == learnt.law(c=0.0)


def test_bad_constraints() -> None:
    with pytest.raises(BadInput, match="subject_to=3: it must be a function or a list of functions"):
        Problem(f, knobs={"x": (0, 1), "y": (0, 1)}, conditions={"c": (0, 1)}, subject_to=3)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="few takes no parameter 'y'"):
        problem(few)
    assert problem(lambda **k: -1.0, lambda **k: -1.0).limit_names == ("limit1", "limit2")
    assert limits.satisfied(np.array([[-1.0, 1.0, np.nan], [0.0, -1.0, -1.0]])).tolist() == [True, False, False]


def few(x: float, c: float) -> float:
    return x
