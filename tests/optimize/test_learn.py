"""Laws are learnt: the same on every runtime, whatever f is, and within the budget."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.core.errors import BadInput, RunFailed
from shoal.core.weights import params_hash
from shoal.launch.compose import initial_state
from shoal.launch.outcome import Outcome
from shoal.optimize import Problem
from shoal.optimize.functions import make
from shoal.optimize.learn import Learnt, learn

learning = importlib.import_module("shoal.optimize.learn")  # the package's name `learn` is the function


def lowest(c: Any) -> Any:
    return 0.5 * c + 0.3


def bowl(x: Any, c: Any) -> Any:
    return (x - lowest(c)) ** 2


def line(kind: str = "python", f: Any = bowl, **more: Any) -> Problem:
    return Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind=kind, name="bowl", **more)


def quick(problem: Problem, out: Path, **how: Any) -> Learnt:
    """Three drivers with ten episodes each: tests that share sizes share compilations."""
    usual = {
        "algo": "reinforce",
        "steps": 12,
        "drivers": 3,
        "episodes": 30,
        "score": False,
        "settings": {"algo.learning_rate": 1e-3},
    }
    return learn(problem, **{**usual, "out": out, **how})


def gap(learnt: Learnt, best: Any, n: int = 33) -> float:
    """How far the first knob is from where it should be: the root of the mean square."""
    conditions = np.linspace(-0.9, 0.9, n)[:, None]
    points = learnt.law.answers(conditions)
    return float(np.sqrt(np.mean((points[:, 0] - best(conditions[:, 0])) ** 2)))


def burn(x: float, c: float) -> float:
    """Work that no compiler sees through."""
    total = sum(math.sin(i * x) for i in range(300))
    return float(bowl(x, c) + 0.0 * total)


def test_every_runtime_learns_the_same_law(tmp_path: Path) -> None:
    """Bit for bit: what the drivers see and how they start belong to no runtime."""
    laws = {}
    for runtime in ("inline", "threads", "processes"):
        learnt = quick(line("python", burn), tmp_path / runtime, runtime=runtime, sampler="heterogeneous", steps=8)
        laws[runtime] = params_hash([learnt.law.weights.layers, learnt.law.weights.head])
        assert learnt.summary["time"].keys() == {"collect", "learn", "broadcast"}
        assert learnt.evaluations == 8 * 30 * 3
    assert len(set(laws.values())) == 1, laws
    other = quick(line("python", burn), tmp_path / "other", runtime="inline", sampler="grid", steps=8)
    assert params_hash([other.law.weights.layers, other.law.weights.head]) not in laws.values()


def test_fused_and_inline_agree_but_for_rounding(tmp_path: Path) -> None:
    """One driver, the same keys: the compiled loop makes the updates that the plain one makes."""
    answers, scores = [], []
    for runtime in ("fused", "inline"):
        learnt = quick(
            line("jax"), tmp_path / runtime, runtime=runtime, drivers=1, sampler="uncertainty", steps=30, score=True
        )
        answers.append(learnt.law.answers(np.linspace(-1, 1, 9)[:, None]))
        assert learnt.mse.steps == [0, 10, 20, 30]
        scores.append(learnt.mse.values)  # of the looks on the way
    np.testing.assert_allclose(*answers, atol=2e-3)
    np.testing.assert_allclose(*scores, rtol=1e-2, atol=1e-4)
    assert len(set(scores[0])) == 4
    assert np.abs(answers[0][:, 0]).max() > 0.01  # thirty updates moved it


def test_a_shifted_sphere_is_learnt_in_seconds(tmp_path: Path) -> None:
    how: dict[str, Any] = {"algo": "reinforce", "sampler": "latin_hypercube", "drivers": 3, "steps": 1500}
    learnt = learn(make("sphere", shift=0.3), out=tmp_path / "run", **how)
    assert learnt.summary["start_mse"] > 1.0
    assert learnt.mse.values[-1] < 0.01
    assert learnt.summary["runtime"] == "fused" and learnt.summary["time"] is None
    assert learnt.mse.steps == list(range(0, 1501, 10))
    assert gap(learnt, lambda c: 0.3) < 0.05
    again = shoal.optimize.load(tmp_path / "run" / "law.safetensors", make("sphere", shift=0.3))
    assert again(x2=0.3) == learnt.law(x2=0.3)
    assert (tmp_path / "run" / "summary.json").exists() and (tmp_path / "run" / "config.json").exists()


@pytest.mark.slow
def test_a_python_function_under_threads(tmp_path: Path) -> None:
    learnt = quick(line(), tmp_path / "run", runtime="threads", steps=600)
    assert gap(learnt, lowest) < 0.15
    assert learnt.dropped == 0 and learnt.summary["dropped"] == 0


@pytest.mark.slow
def test_ppo_learns_too(tmp_path: Path) -> None:
    learnt = quick(line("jax"), tmp_path / "run", algo="ppo", steps=300)
    assert gap(learnt, lowest) < 0.15


@pytest.mark.slow
def test_mixed_knobs_find_the_right_category(tmp_path: Path) -> None:
    def f(x: Any, mode: Any, n: Any, c: Any) -> Any:
        return (x - 0.4) ** 2 + jnp.where(mode == jnp.where(c > 0, 7, 5), 0.0, 1.0) + 0.1 * (n - 3) ** 2

    problem = Problem(
        f,
        knobs={"x": (-1, 1), "mode": [5, 6, 7], "n": range(1, 9)},
        conditions={"c": (-1, 1)},
        kind="jax",
        name="mixed",
    )
    law = quick(problem, tmp_path / "run", sampler="heterogeneous", steps=1200).law
    answers = law(c=np.array([-0.8, -0.4, 0.4, 0.8]))
    assert answers["mode"].tolist() == [5, 5, 7, 7]
    assert answers["n"].tolist() == [3, 3, 3, 3]
    assert answers["x"] == pytest.approx(0.4, abs=0.15)


@pytest.mark.slow
def test_no_conditions_is_plain_optimisation(tmp_path: Path) -> None:
    problem = make("sphere", dims=2, free=2, shift=0.4)
    learnt = learn(problem, algo="reinforce", steps=1500, out=tmp_path / "run")
    answer = learnt.law()
    assert [answer["x1"], answer["x2"]] == pytest.approx([0.4 * 5.12] * 2, abs=0.5)
    assert learnt.law() == answer and learnt.mse.values[-1] < learnt.mse.values[0] / 50


@pytest.mark.slow
def test_several_devices_give_one_robust_law(tmp_path: Path) -> None:
    """Minima at -0.2 (steep) and 0.6 (flat): the mean is smallest near the steep one, the worst case between them."""
    devices = [lambda x, c: 4.0 * (x + 0.2) ** 2, lambda x, c: (x - 0.6) ** 2]
    knobs: Any = {"x": (-1, 1)}
    found = {}
    for robust in ("mean", "worst"):
        problem = Problem(devices, knobs=knobs, conditions={"c": (0, 1)}, kind="jax", robust=robust, name="two")
        found[robust] = quick(problem, tmp_path / robust, steps=900).law(c=0.5)["x"]
    assert found["mean"] == pytest.approx(-0.04, abs=0.09)
    assert found["worst"] > found["mean"]
    assert found["worst"] == pytest.approx(0.2 / 3, abs=0.09)  # 2 (x + 0.2) = 0.6 - x


@pytest.mark.slow
def test_a_noisy_function_is_learnt_through_its_noise(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def noisy(x: float, c: float) -> float:
        return bowl(x, c) + rng.normal(0, 0.05)

    problem = line("auto", noisy, noisy=True)
    assert problem.kind == "python"
    learnt = quick(problem, tmp_path / "run", runtime="inline", steps=600)
    assert gap(learnt, lowest) < 0.15


@pytest.mark.slow
def test_a_function_that_sometimes_fails_is_learnt_and_its_drops_are_counted(tmp_path: Path) -> None:
    """One point in ten fails, wherever it lies."""

    def shaky(x: float, c: float) -> float:
        unlucky = int(abs(x) * 1e5 + 7) % 20
        if unlucky == 0:
            raise ValueError("no convergence")
        return math.nan if unlucky == 1 else bowl(x, c)

    learnt = quick(line("python", shaky), tmp_path / "inline", runtime="inline", steps=600)
    assert 0.1 < learnt.dropped / (600 * 30) < 0.5 and learnt.summary["dropped"] == learnt.dropped
    assert gap(learnt, lowest) < 0.15
    log = (tmp_path / "inline" / "faults.log").read_text()
    assert "f_failed" in log and "ValueError: no convergence" in log and len(log.splitlines()) < 200

    def traced(x: Any, c: Any) -> Any:
        return jnp.where((jnp.abs(x) * 1e4 + 5).astype(int) % 10 == 0, jnp.nan, bowl(x, c))

    learnt = quick(line("jax", traced), tmp_path / "fused", steps=600)
    assert 0.1 < learnt.dropped / (600 * 30) < 0.5
    assert gap(learnt, lowest) < 0.15


def test_a_function_that_always_fails_is_refused_before_anything_starts(tmp_path: Path) -> None:
    def never(x: float, c: float) -> float:
        raise ZeroDivisionError("no such device")

    for kind, f, why in (
        ("python", never, "ZeroDivisionError: no such device"),
        ("numpy", lambda x, c: x * np.nan, "not finite"),
        ("jax", lambda x, c: x * jnp.nan, "not finite"),
    ):
        with pytest.raises(BadInput, match=f"bowl: all of 64 evaluations failed.*{why}"):
            quick(line(kind, f), tmp_path / kind)
        assert not (tmp_path / kind).exists()


def test_a_function_that_fails_on_its_drivers_alone_ends_the_run(tmp_path: Path) -> None:
    calls = []

    def tired(x: float, c: float) -> float:
        calls.append(x)
        if len(calls) > 1:
            raise OSError("out of licences")
        return bowl(x, c)

    with pytest.raises(RunFailed, match="bowl failed in all of 300 episodes: OSError: out of licences"):
        quick(line("python", tired), tmp_path / "run", runtime="inline", steps=100_000)
    assert len(calls) < 100_000, "not by the end of the budget"


def counted(f: Any = bowl) -> tuple[Any, list[int]]:
    """f, and how many points each of its calls had."""
    calls: list[int] = []

    def counting(x: Any, c: Any) -> Any:
        calls.append(int(np.size(x)))
        return f(x, c)

    return counting, calls


@pytest.mark.parametrize("budget", [99, 100, 190, 999, 1000, 1100])
def test_no_call_of_f_exceeds_the_budget(tmp_path: Path, budget: int) -> None:
    """f itself counts, from before the problem is made: seven points tell that it takes neither tracers nor arrays."""
    f, calls = counted(lambda x, c: bowl(x, c) if x < 2 else 0.0)
    problem = line("auto", f)
    assert problem.kind == "python" and problem.probes == sum(calls)
    law = shoal.learn_to_optimize(problem, drivers=3, budget=budget, runtime="inline", out=tmp_path / "run")
    assert sum(calls) <= budget and isinstance(law, shoal.optimize.Law)
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["evaluations_of"]
    assert sum(told.values()) == sum(calls) and told["scoring"] == told["reporting"] == 0
    assert told["training"] % 90 == 0 and told["choosing"] == 64 * (told["training"] > 900)


def test_failures_do_not_exceed_the_budget(tmp_path: Path) -> None:
    """One point in four fails, and arrays that hold one raise as a whole."""

    def shaky(x: Any, c: Any) -> Any:
        if np.any(np.abs(x * 1e4).astype(int) % 4 == 0):
            raise ValueError("no convergence")
        return bowl(x, c)

    for kind in ("python", "numpy"):
        f, calls = counted(shaky)
        problem = line(kind, f)
        shoal.learn_to_optimize(problem, drivers=3, budget=1300, runtime="inline", out=tmp_path / kind)
        assert 800 < sum(calls) <= 1300, kind


def test_too_small_a_budget_is_refused_without_a_call(tmp_path: Path) -> None:
    f, calls = counted()
    problem = line("python", f)
    how: dict[str, Any] = {"algo": "reinforce"}
    with pytest.raises(BadInput, match="budget is 10: one update takes 90 evaluations"):
        shoal.learn_to_optimize(problem, drivers=3, budget=10, **how)
    with pytest.raises(BadInput, match="budget is 91: one update takes 90 evaluations, and 2 are set aside"):
        shoal.learn_to_optimize(problem, drivers=3, budget=91, runtime="inline", out=tmp_path / "run", **how)
    with pytest.raises(BadInput, match="one update takes 96 evaluations"):  # episodes that eight drivers can share
        shoal.learn_to_optimize(problem, drivers=8, budget=10, **how)
    with pytest.raises(BadInput, match="one update takes 90 evaluations"):  # fused has one actor
        shoal.learn_to_optimize(line("jax"), drivers=8, budget=10, **how)
    assert not calls and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_law_is_steadier_than_the_weights_that_it_averages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate that does not fall, what the noise of an update moves is averaged away."""
    steady = {"algo.learning_rate": 3e-3, "algo.final_rate": 1.0}
    scores = {}
    for memory in (learning.MEMORY, 0.0):
        monkeypatch.setattr(learning, "MEMORY", memory)
        out = tmp_path / f"{memory}"
        scores[memory] = quick(make("ackley", shift=0.3), out, steps=600, score=True, settings=steady).mse.values
    averaged, plain = (np.mean(values[30:]) for values in scores.values())
    assert averaged < 0.8 * plain


def test_the_saved_law_is_the_best_on_held_out_conditions(tmp_path: Path) -> None:
    """A rate that is too high to settle: laws come and go, and the last is not the best."""
    wild = {"algo.learning_rate": 0.05, "algo.final_rate": 1.0}
    laws = {}
    for keep in ("best", "last"):
        laws[keep] = quick(line("jax"), tmp_path / keep, steps=95, score=True, keep=keep, settings=wild)
    best, last = laws["best"], laws["last"]
    assert last.summary["kept_step"] == 95 and last.summary["regret"] == last.summary["regret_of_last"]
    assert best.summary["regret_of_last"] == last.summary["regret"]  # the training is the same
    assert best.summary["kept"] == "best" and best.summary["kept_step"] < 95
    assert best.summary["regret"]["mean"] < last.summary["regret"]["mean"]
    saved = shoal.optimize.load(tmp_path / "best" / "law.safetensors", line("jax"))
    assert saved(c=0.3) == best.law(c=0.3) != last.law(c=0.3)
    assert saved.meta["step"] == best.summary["kept_step"]
    conditions = best.summary["conditions"]
    assert conditions == {"training": "drawn by random", "choosing": 32, "scoring": 21, "reporting": 32}
    assert best.summary["evaluations_of"]["choosing"] == 10 * 32
    assert last.summary["evaluations_of"]["choosing"] == last.summary["conditions"]["choosing"] == 0


def test_a_law_whose_optima_were_not_found_is_kept_without_a_regret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> Any:
        raise RunFailed("no optimum")

    monkeypatch.setattr("shoal.optimize.truth._search", none)
    learnt = quick(line("jax", lambda x, c: bowl(x, c)), tmp_path / "run", score=True)
    assert learnt.summary["regret"] is None and not learnt.mse.steps
    assert learnt.summary["left_out"] == {"curve": "no optimum", "regret": "no optimum"}
    assert (tmp_path / "run" / "law.safetensors").exists() and (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"drivers": 0}, "drivers is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"episodes": 7, "drivers": 2, "runtime": "inline"}, "episodes is 7.*multiple of the 2 drivers"),
        ({"keep": "first"}, "'first'.*best, last"),
        ({"algo": "dqn"}, "'dqn'.*reinforce, ppo"),
        ({"sampler": "lattice"}, "'lattice'"),
        ({"runtime": "fuzed"}, "'fuzed'"),
        ({"settings": {"algo.lerning_rate": 1}}, "algo.lerning-rate"),
        ({"settings": {"net.cell": "gru"}}, "no memory"),
        ({"settings": {"algo.unroll": 5}}, "algo.unroll"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(tmp_path: Path, how: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        quick(line("jax"), tmp_path / "run", **how)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_fused_needs_a_traceable_function(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="JAX"):
        quick(line("python"), tmp_path / "run", runtime="fused")
    assert not (tmp_path / "run").exists()


def test_stopped_before_the_first_update_there_is_no_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are then those that it began with."""

    def stopped(plan: Any, **how: Any) -> Any:
        return SimpleNamespace(outcome=Outcome(state=initial_state(plan), ended="stopped"))

    monkeypatch.setattr("shoal.launch.run", stopped)
    with pytest.raises(RunFailed, match="stopped before the first update"):
        quick(line("jax"), tmp_path / "run")
    assert not (tmp_path / "run" / "law.safetensors").exists()
