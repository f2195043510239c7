"""A real one, at small size: the bias cell of the examples, simulated by ngspice and tuned over processes."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ngspice_bias"


@pytest.fixture(autouse=True)
def _ngspice(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ngspice") is None:
        message = "ngspice is not on the PATH: make system, or apt-get install ngspice"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    """The example's module has a name that others may have."""
    sys.modules.pop("bias", None)


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


def test_it_is_tuned_over_processes(tmp_path: Path) -> None:
    """A few updates: the law moves to cheaper answers than the middle of the box, and simulates on both drivers."""
    from bias import problem

    from shoal.optimize import learn, load

    bias = problem()
    learnt = learn(
        bias,
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
