"""Laws from few evaluations: within the budget, whatever f does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bowls import Counted, bowl, frugal, off

from shoal.core.errors import BadInput
from shoal.optimize import Law, Problem, choice, load
from shoal.optimize.choice import choose
from shoal.optimize.distil import META, distil
from shoal.optimize.explorer import Explorer
from shoal.optimize.functions import make
from shoal.optimize.judge import CHOOSING, spread
from shoal.optimize.search import even_points


def test_a_law_from_forty_evaluations_and_not_one_more(tmp_path: Path) -> None:
    f = Counted()
    learnt = frugal(bowl(f), tmp_path / "run")
    assert f.calls == learnt.evaluations == 40
    law = learnt.law
    assert off(law) < 0.01 and off(law, polish=False) < 0.05
    told = law.explain(c=0.2)
    assert f.calls == 40 and law.explain({"c": 0.2}) == told
    assert told.knobs == law(c=0.2) and told.predicted == pytest.approx(0.0, abs=0.01)
    assert 0 <= told.spread < 0.05 and told.distance < 0.3 and told.evaluations == 40
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert len(lines) == 40 and json.loads(lines[0]).keys() == {"x", "c", "value"}

    again = load(tmp_path / "run" / "law.safetensors")
    c = np.linspace(-1, 1, 9)
    for polish in (True, False):
        np.testing.assert_allclose(again(c=c, polish=polish)["x"], law(c=c, polish=polish)["x"], atol=1e-6)
    assert again.explain(c=0.2).spread == pytest.approx(told.spread, abs=1e-6)
    scope: dict[str, Any] = {}
    exec(law.export(tmp_path / "device.py").read_text(), scope)
    assert scope["law"](c=0.2)["x"] == pytest.approx(law(c=0.2, polish=False)["x"], abs=1e-6)


def test_the_same_seed_gives_the_same_law(tmp_path: Path) -> None:
    laws = [frugal(bowl(Counted()), tmp_path / str(i), budget=24, seed=i // 2).law for i in range(3)]
    first, again, other = (law(c=0.1234)["x"] for law in laws)
    assert first == again != other


def test_an_f_that_raises_on_arrays_stays_within_the_budget(tmp_path: Path) -> None:
    calls = 0

    def f(x: Any, c: Any) -> Any:
        nonlocal calls
        calls += np.size(x)
        if np.size(x) > 1 and calls > 30:
            raise ValueError("one at a time")
        return (x - c) ** 2

    problem = Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="numpy")
    frugal(problem, tmp_path / "run", budget=50)
    assert calls <= 50


def test_failures_are_avoided(tmp_path: Path) -> None:
    f = Counted(fails=lambda x, c: x > 0.4)
    learnt = frugal(bowl(f), tmp_path / "run", budget=50)
    assert 0 < learnt.dropped < 40 and f.calls == 50
    assert learnt.law(c=0.9)["x"] < 0.6  # without failures it would be 0.75
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert values.count(None) == learnt.dropped


def test_an_f_that_always_fails_is_refused(tmp_path: Path) -> None:
    f = Counted(fails=lambda x, c: True)
    with pytest.raises(BadInput, match=r"all of 64 evaluations failed: ZeroDivisionError: no such device"):
        frugal(bowl(f), tmp_path / "run", budget=500)
    assert f.calls == 64 and not (tmp_path / "run").exists()
    with pytest.raises(BadInput, match="all of 5 evaluations failed"):
        frugal(bowl(Counted(fails=lambda x, c: True)), tmp_path / "run", budget=5)


@pytest.mark.parametrize("budget", [0, -3])
def test_no_budget_is_refused(tmp_path: Path, budget: int) -> None:
    with pytest.raises(BadInput, match=f"budget is {budget}: at least 1"):
        frugal(bowl(Counted()), tmp_path / "run", budget=budget)


def test_one_evaluation_is_enough_for_an_answer(tmp_path: Path) -> None:
    f = Counted()
    assert -1 <= frugal(bowl(f), tmp_path / "run", budget=1).law(c=0.0)["x"] <= 1
    assert f.calls == 1


def test_noise_is_averaged_out(tmp_path: Path) -> None:
    learnt = frugal(bowl(Counted(noise=0.05), noisy=True), tmp_path / "run", budget=60)
    assert off(learnt.law) < 0.3
    assert 0.02 < learnt.summary["noise"] < 0.1


def test_a_finite_problem_ends_when_all_is_tried(tmp_path: Path) -> None:
    tried = []

    def f(n: int, mode: str) -> float:
        tried.append((n, mode))
        return (n - 3) ** 2 + (mode != "b")

    problem = Problem(f, knobs={"n": range(1, 6), "mode": ["a", "b"]}, kind="python")
    learnt = frugal(problem, tmp_path / "run", budget=30)
    assert len(tried) == len(set(tried)) <= 10
    assert learnt.law() == {"n": 3, "mode": "b"} == learnt.law(polish=False)


def test_mixed_knobs(tmp_path: Path) -> None:
    def f(x: float, mode: str, n: int, c: float) -> float:
        return (x - 0.5 * c) ** 2 + {"a": c, "b": -c, "c": 0.5}[mode] + 0.1 * (n - 3) ** 2

    knobs = {"x": (-1, 1), "mode": ["a", "b", "c"], "n": range(1, 6)}
    problem = Problem(f, knobs=knobs, conditions={"c": (-1, 1)}, kind="python")
    law = frugal(problem, tmp_path / "run", budget=90).law
    for c, mode in ((-0.6, "a"), (0.6, "b")):
        found = law(c=c)
        assert (found["mode"], found["n"]) == (mode, 3) and found["x"] == pytest.approx(0.5 * c, abs=0.1)


def test_refining_uses_f_and_no_more_of_it_than_told(tmp_path: Path) -> None:
    class Wavy(Counted):
        def __call__(self, x: float, c: float) -> float:
            return super().__call__(x, c) + 0.05 * np.sin(25.0 * x)

    law = frugal(bowl(Wavy()), tmp_path / "run", budget=16).law
    f = law.problem.devices[0]
    line = np.linspace(-1, 1, 4001)
    won = []
    for c in (-0.7, 0.1, 0.6):
        best = min((x - 0.5 * c - 0.3) ** 2 + 0.05 * np.sin(25.0 * x) for x in line)
        answer, f.calls = f(c=c, **law(c=c)), 0
        found = law.refine({"c": c}, evaluations=20)
        assert f.calls == 20
        value = f(c=c, **found)
        assert best - 1e-6 <= value <= answer
        won.append((value - best) / (answer - best))
    assert np.median(won) < 0.05  # at -0.7 it stays in the valley beside the best one
    f.calls = 0
    assert law.refine(c=0.1, evaluations=1) == law(c=0.1) and f.calls == 1
    with pytest.raises(BadInput, match="evaluations is 0: at least 1"):
        law.refine(c=0.1, evaluations=0)
    raw = Law(law.problem, law.weights, 1, META)
    f.calls = 0
    raw.refine(c=0.1, evaluations=7)
    assert f.calls == 7


def test_refining_a_finite_knob_tries_each_of_its_values_once(tmp_path: Path) -> None:
    wanted = {n: (n * 5 + 3) % 8 for n in range(8)}  # no order that a surrogate could guess
    tried: list[tuple[int, float]] = []

    def f(n: int, c: float) -> float:
        tried.append((n, c))
        return wanted[n] + c

    problem = Problem(f, knobs={"n": range(8)}, conditions={"c": (-1, 1)}, kind="python")
    law = frugal(problem, tmp_path / "run", budget=10).law
    tried.clear()
    assert law.refine(c=0.1, evaluations=20) == {"n": 1}
    assert len(tried) == len(set(tried)) == 8 and all(c == pytest.approx(0.1) for _, c in tried)


BEST = {"sphere": 0.2 * 5.12, "rastrigin": 0.2 * 5.12, "levy": 1.0 + 0.2 * 10.0}  # of the knob, whatever the condition


@pytest.mark.slow
def test_ahead_of_policy_gradients_at_300_evaluations(tmp_path: Path) -> None:
    from shoal.optimize import learn_to_optimize

    c = np.linspace(-0.95, 0.95, 17)[:, None]
    for name, x in BEST.items():
        free = make(name, shift=0.2)
        bounds = {axis.name: (axis.low, axis.high) for axis in free.axes}
        knobs, conditions = {"x1": bounds["x1"]}, {"x2": bounds["x2"]}
        problem = Problem(free.devices[0], knobs=knobs, conditions=conditions, kind="numpy", name=name)
        best = problem.evaluate(problem.join(problem.normalise(x1=x, x2=0.0)[:1], c))
        random = problem.evaluate(problem.sample(np.random.default_rng(0), 2000)).mean() - best.mean()
        regret = {}
        for algo in ("surrogate", "reinforce"):
            how: dict[str, Any] = {} if algo == "surrogate" else {"runtime": "inline", "drivers": 1}
            law = learn_to_optimize(problem, algo=algo, budget=300, out=tmp_path / f"{name}-{algo}", **how)
            regret[algo] = float(np.mean(problem.evaluate(law.answers(c)) - best)) / random
        assert regret["surrogate"] < 0.01 and 5 * regret["surrogate"] < regret["reinforce"], (name, regret)


def test_auto_chooses_by_budget_and_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = make("sphere")
    assert choose(traced, 300)[:2] == ("surrogate", 300)
    both = 2000 + CHOOSING  # for the law by surrogate, and for comparing it
    assert choose(traced, 200_000)[:2] == ("ppo", 200_000 - both) and choose(traced, None)[:2] == ("ppo", None)
    assert choose(traced, None).first == 2000 and choose(traced, 300).first == 0
    f = Counted()
    cheap = choice.CHEAP
    monkeypatch.setattr(choice, "CHEAP", 1e9)
    assert choose(bowl(f), 50_000)[:2] == ("ppo", 49_999 - both) and f.calls == 1  # to see what it costs
    monkeypatch.setattr(choice, "CHEAP", 0.0)
    dear = choose(bowl(Counted()), 50_000)
    assert dear[:2] == ("surrogate", 20_000) and dear.why.startswith(
        "auto: surrogate with 20,000 evaluations, because f takes"
    )
    assert choose(bowl(Counted()), None)[:2] == ("surrogate", 2000)
    assert choose(bowl(Counted()), 20_001)[:2] == ("surrogate", 20_000 - choice.TRIES + 1)
    given = choose(traced, None, data=True)
    assert given[:2] == ("surrogate", 2000) and "earlier evaluations" in given.why
    asked = choose(traced, 300, gradients=["sampler"])
    assert asked[:3] == ("ppo", 300, "auto: ppo, because sampler is for policy gradients")
    with pytest.raises(BadInput, match="sampler is for policy gradients, and data for surrogate"):
        choose(traced, 300, data=True, gradients=["sampler"])
    monkeypatch.setattr(choice, "CHEAP", cheap)
    problem = Problem(drop_wave, knobs={"x": (-2, 2), "y": (-2, 2)}, conditions={"a": (-1, 1), "b": (-1, 1)})
    probes = problem.evaluations
    assert problem.kind == "python" and choose(problem, 50_000)[:2] == ("ppo", 50_000 - both)
    assert problem.evaluations == probes, "the probes have told what f costs"


def test_laws_without_a_surrogate_cannot_explain() -> None:
    problem = bowl(Counted())
    law = Law(problem, distil(problem, even_points(problem, 8, np.random.default_rng(0))), 1, META)
    with pytest.raises(BadInput, match="has no surrogate"):
        law.explain(c=0.1)
    assert law(c=0.1) == law(c=0.1, polish=False)


def test_penalties_count_as_failures() -> None:
    problem = Problem(lambda x: 0.0, knobs={"x": (-1, 1)}, kind="python")
    explorer = Explorer(problem)
    x = np.linspace(-1, 1, 41)[:, None]
    explorer.tell(x, np.where(x[:, 0] > 0.525, 1e9, -x[:, 0]))
    explorer.refresh()
    assert explorer.surrogate.values.max() <= 1.0 and len(explorer.surrogate.failed) == 10


def test_values_above_a_plateau_at_the_minimum_are_no_failures() -> None:
    problem = Problem(lambda x: 0.0, knobs={"x": (-1, 1)}, kind="python")
    for values in ([0.0] * 6 + [1.0, 2.0, 3.0, 4.0], [0.0] * 8 + [1.0, 2.0]):
        explorer = Explorer(problem)
        explorer.tell(np.linspace(-1, 1, 10)[:, None], np.array(values))
        explorer.refresh()
        assert explorer.surrogate.values.tolist() == values and not len(explorer.surrogate.failed)
    explorer = Explorer(problem)
    explorer.tell(np.linspace(-1, 1, 10)[:, None], np.array([0.0] * 6 + [1.0, 2.0, 3.0, 1e9]))
    explorer.refresh()
    assert len(explorer.surrogate.failed) == 1, "a penalty is one all the same"


def test_conditions_for_which_any_knob_will_do_blind_no_other(tmp_path: Path) -> None:
    def f(x: float, c: float) -> float:
        return 0.0 if c < 0.2 else (x - c) ** 2

    problem = Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="python")
    learnt = frugal(problem, tmp_path / "run", budget=60)
    assert learnt.law(c=0.7)["x"] == pytest.approx(0.7, abs=0.1)


def test_weights_of_objectives_are_conditions(tmp_path: Path) -> None:
    """Two bowls, weighted by a condition: the law answers for every trade-off."""
    problem = Problem(
        lambda x, w: w * (x - 0.5) ** 2 + (1.0 - w) * (x + 0.5) ** 2,
        knobs={"x": (-1, 1)},
        conditions={"w": (0, 1)},
        kind="python",
    )
    w = np.linspace(0, 1, 7)
    np.testing.assert_allclose(frugal(problem, tmp_path / "run", budget=30).law(w=w)["x"], w - 0.5, atol=0.02)


def drop_wave(x: float, y: float, a: float, b: float) -> float:
    """Rings around a centre that moves; 0 there, and .06 on the first ring."""
    square = (x - a) ** 2 + (y - b) ** 2
    return 1.0 - (1.0 + math.cos(12.0 * math.sqrt(square))) / (0.5 * square + 2.0)


def rings_regret(out: Path, **how: Any) -> float:
    """The mean regret of the law that `learn_to_optimize` finds by default, whose optima are 0; random knobs have .70."""
    from shoal.optimize import learn_to_optimize

    knobs, conditions = {"x": (-2, 2), "y": (-2, 2)}, {"a": (-1, 1), "b": (-1, 1)}
    problem = Problem(drop_wave, knobs=knobs, conditions=conditions)
    law = learn_to_optimize(problem, out=out, **how)
    return float(problem.evaluate(law.answers(spread(2, 1000, 128))).mean())


def test_rings_around_a_moving_centre(tmp_path: Path) -> None:
    assert rings_regret(tmp_path / "run", budget=1000) < 0.4


def test_where_f_is_free_the_better_of_two_laws_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.optimize import learn

    monkeypatch.setattr(choice, "BUDGET", 60)
    monkeypatch.setattr(choice, "FEW", 1000)
    box = {"knobs": {"x": (-1, 1)}, "conditions": {"c": (-1, 1)}}
    problem = Problem(lambda x, c: (x - 0.5 * c - 0.3) ** 2, kind="jax", **box)
    learnt = learn(problem, budget=2000, score=False, out=tmp_path / "run")
    told = learnt.summary["evaluations_of"]
    assert told["surrogate"] == 60 and told["training"] > 1000 and sum(told.values()) <= 2000
    assert learnt.summary["kept"] == "surrogate" and learnt.law.surrogate is not None
    # A regret below 1e-5, where f reaches 3.2: the last digits of a search over 60 evaluations differ between processors.
    assert learnt.law(c=0.4)["x"] == pytest.approx(0.5, abs=3e-3)
    assert load(tmp_path / "run" / "law.safetensors").explain(c=0.4).evaluations == 60


@pytest.mark.slow
def test_rings_around_a_moving_centre_with_all_defaults(tmp_path: Path) -> None:
    assert rings_regret(tmp_path / "run") < 0.15
