"""Real ones, at small size: the bias cell and the amplifier of the examples, simulated by ngspice."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from in_c import ask

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _ngspice(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ngspice") is None:
        message = "ngspice is not on the PATH: make system, or apt-get install ngspice"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    for name in ("ngspice_bias", "ngspice_amplifier"):
        monkeypatch.syspath_prepend(str(EXAMPLES / name))


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    """The examples' modules have names that others may have."""
    for name in ("bias", "few", "amplifier"):
        sys.modules.pop(name, None)


def test_the_cell_behaves_as_a_mirror() -> None:
    from bias import simulate

    load, reference = simulate(0.4, np.array([1, 2, 4]), 27.0, 1.8)
    np.testing.assert_allclose(load / load[0], [1, 2, 4], rtol=1e-4)  # a current for each finger
    assert np.ptp(reference) < 1e-3 * reference[0] and abs(load[0] / reference[0] - 1) < 0.1
    ohms, threshold = 24e3 * 3**0.4, 0.45
    drop = 1.8 - reference[0] * 1e-6 * ohms  # what is left for the transistor: above its threshold, and not by much
    assert threshold < drop < threshold + 0.3
    hot, _ = simulate(0.4, 3, 125.0, 1.8)
    weak, _ = simulate(0.4, 3, 27.0, 1.6)
    trimmed, _ = simulate(0.9, 3, 27.0, 1.8)
    usual, _ = simulate(0.4, 3, 27.0, 1.8)
    assert hot < usual and weak < usual and trimmed < usual


def test_points_together_are_points_alone() -> None:
    from bias import cost, problem

    values = problem().denormalise(problem().sample(np.random.default_rng(0), 5))
    together = cost(**values)
    alone = [cost(*(values[n][i] for n in ("trim", "fingers", "temp", "vdd"))) for i in range(5)]
    np.testing.assert_allclose(together, alone, rtol=1e-4)


def test_what_ngspice_cannot_solve_is_told() -> None:
    from bias import problem, simulate

    with pytest.raises(RuntimeError, match="ngspice gave no operating point"):
        simulate(0.0, 1, "warm", 1.8)
    assert problem().kind == "numpy"


@pytest.mark.slow
def test_it_is_tuned_over_processes(tmp_path: Path) -> None:
    """A few updates: the law moves to cheaper answers than the middle of the box, and simulates on both drivers."""
    from bias import problem

    from shoal.optimize import learn, load

    bias = problem()
    learnt = learn(
        bias,
        algo="reinforce",
        sampler="latin_hypercube",
        drivers=2,
        runtime="processes",
        steps=40,
        episodes=32,
        time_steps=1,
        score=False,
        out=tmp_path / "run",
        settings={"algo.learning_rate": 0.02},
    )
    assert learnt.dropped == 0 and learnt.evaluations == 40 * 32 * 2
    conditions = bias.sample_conditions(np.random.default_rng(1), 64)
    before = bias.evaluate(bias.join(bias.mid(), conditions)).mean()
    after = bias.evaluate(learnt.law.answers(conditions)).mean()
    assert after < 0.5 * before
    answer = load(tmp_path / "run" / "law.safetensors")(temp=25.0, vdd=1.8)
    assert -1 <= answer["trim"] <= 1 and answer["fingers"] in range(1, 9)


@pytest.mark.slow
def test_three_hundred_simulations_are_enough() -> None:
    """On average for every seed, and for all corners in most: a valley that no simulation hit leaves one condition behind."""
    from bias import problem
    from few import BUDGET, regret, searched

    from shoal.optimize import learn

    best, found = searched(3, 3), []
    for seed in (100, 101, 102):
        learnt = learn(problem(), algo="surrogate", budget=BUDGET, seed=seed, score=False)
        assert learnt.evaluations <= BUDGET
        found.append(regret(learnt.law, best))
    assert np.mean(found, axis=1).max() < 0.02
    assert np.median(np.max(found, axis=1)) < 0.02


def test_the_amplifier_behaves_as_one() -> None:
    from amplifier import cost, simulate, unstable

    usual = {"bias": 0.5, "miller": 0.0, "zero": 3.5, "fingers": 4, "temp": 27.0, "vdd": 1.8, "load": 4.0}
    supply, bandwidth, margin = (float(one[0]) for one in simulate(**usual))
    branches = 1 + 2 + 4  # the bias, the tail of twice its width, a finger for each of the second stage
    assert supply == pytest.approx(branches * 10**0.5, rel=0.1)

    def other(**changes: float) -> tuple[float, ...]:
        return tuple(float(one[0]) for one in simulate(**{**usual, **changes}))

    assert other(bias=1.0)[:2] > (2.5 * supply, 1.2 * bandwidth)  # faster, for more current
    assert other(miller=0.5)[1] < bandwidth and other(load=10.0)[2] < margin
    assert cost(**usual) == pytest.approx(np.log10(supply) + 5 * max(0, np.log10(20 / bandwidth)), rel=1e-6)
    assert unstable(**usual) == pytest.approx(1 - margin / 60, rel=1e-6)


@pytest.mark.slow
def test_an_amplifier_is_tuned_under_its_constraint_and_runs_in_c(tmp_path: Path) -> None:
    """From 240 simulations: most answers are stable, and cheaper than the cheapest stable design for all conditions."""
    from amplifier import problem

    from shoal.optimize import learn

    amplifier = problem()
    learnt = learn(amplifier, algo="surrogate", budget=240, score=False, out=tmp_path / "run")
    assert learnt.evaluations <= 240
    conditions = amplifier.sample_conditions(np.random.default_rng(1), 40)
    values, (missing,) = amplifier.measure(learnt.law.answers(conditions))
    assert (missing <= 1 / 60).mean() >= 0.75  # a degree
    tried = amplifier.sample(np.random.default_rng(2), 40)
    random, (lost,) = amplifier.measure(tried)
    assert np.mean(values) < np.quantile(random[lost <= 0], 0.1)
    units = amplifier.denormalise(amplifier.join(amplifier.mid(), conditions))
    rows = list(zip(*(units[axis.name].tolist() for axis in amplifier.conditions), strict=True))
    for row, words in zip(rows, ask(learnt.law.export(tmp_path / "law.h"), amplifier, rows), strict=True):
        ours = learnt.law(**dict(zip(("temp", "vdd", "load"), row, strict=True)), polish=False)
        assert int(words[3]) == ours["fingers"]
        for axis, word in zip(amplifier.knobs[:3], words, strict=False):
            assert float(word) == pytest.approx(ours[axis.name], abs=1e-6 * (axis.high - axis.low))
