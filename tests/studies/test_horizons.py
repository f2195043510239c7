"""n-step returns against returns to the end, and the experiments on t_max and gamma at a tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.observe.comparison import write_comparison
from shoal.studies import horizons
from shoal.studies.estimators import Played, compare_returns, n_step


def slow_n_step(r: list[float], v: list[float], terminated: bool, gamma: float, n: int) -> float:
    """G = r_0 + gamma r_1 + ... + gamma^(n-1) r_(n-1) + gamma^n V(s_n), term by term."""
    total = 0.0
    for k in range(n):
        if k == len(r):
            return total + (0.0 if terminated else gamma**k * v[k])
        total += gamma**k * r[k]
    return total + (0.0 if terminated and n == len(r) else gamma**n * v[n])


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("n", [1, 2, 4, 5, 9])
def test_n_step_returns_by_the_definition(terminated: bool, n: int) -> None:
    rng = np.random.default_rng(n)
    r, v = rng.normal(size=5), rng.normal(size=6)
    expected = slow_n_step(r.tolist(), v.tolist(), terminated, 0.9, n)
    assert n_step(r, v, terminated, 0.9, n) == pytest.approx(expected)


def test_short_returns_lean_on_the_values_and_long_ones_on_chance() -> None:
    """Values that are 3 too high, and rewards that are noise: the bias fades with n, the spread grows."""
    rng = np.random.default_rng(0)
    played = Played([rng.normal(size=50) for _ in range(400)], [np.full(51, 3.0)] * 400, [True] * 400, 20)
    found = compare_returns(played, 0.95, [1, 10, 50])
    assert found[1].bias > found[10].bias > found[50].bias == pytest.approx(0.0, abs=1e-9)
    assert found[1].spread < found[10].spread < found[50].spread


def test_what_states_differ_in_is_no_spread_of_an_estimator() -> None:
    """Two first states, one worth 10 and one worth 0, whose values are right and whose rewards are none."""
    played = Played([np.zeros(3)] * 8, [np.full(4, worth) for worth in (10.0, 0.0) for _ in range(4)], [False] * 8, 4)
    assert compare_returns(played, 1.0, [1])[1] == (0.0, 0.0)


TINY: dict[str, Any] = {
    "env": "CartPole-v1",
    "actors": 2,
    "envs": 2,
    "steps": 400,
    "seeds": 1,
    "settings": {"net.hidden": "8", "topology.trainers": 1, "topology.predictors": 1, "backend": "jax"},
}


def document(found: dict[str, Any]) -> dict[str, Any]:
    columns = {name: name for row in found["rows"] for name in row["values"]}
    table = {"title": "t", "key": next(iter(found["rows"][0]["keys"])), "columns": columns}
    fixed = {"title": "T", "source": "S", "size": "quick", "seeds": 1, "took_s": 1.0, "deviations": [], "reference": {}}
    return {**fixed, "machine": {"cores": 2, "cpu": "x"}, "tables": [table], "goals": [], **found}


@pytest.mark.slow
def test_the_experiment_on_t_max(tmp_path: Path) -> None:
    size = {**TINY, "t_max": [2, 5], "judged": 5, "states": 2, "each": 2}
    found = horizons.tmax(size, tmp_path / "runs", lambda done, total, what: None)
    assert [row["keys"]["t_max"] for row in found["rows"]] == ["2", "5"]
    many, few = (row["values"]["gradients_per_kstep"][0] for row in found["rows"])
    assert many == pytest.approx(2.5 * few, rel=0.1), "a short window costs more gradients"
    page = write_comparison(tmp_path, document(found)).read_text()
    assert "Bias and variance" in page and (tmp_path / "estimators.png").is_file()
    again: list[str] = []
    horizons.tmax(size, tmp_path / "runs", lambda done, total, what: again.append(what))
    assert len(again) == 2, "finished runs are found and not run again"


@pytest.mark.slow
def test_the_experiment_on_gamma_has_clips(tmp_path: Path) -> None:
    size = {**TINY, "gammas": [0.5, 0.99], "eval_episodes": 1, "clip_steps": 5}
    found = horizons.gamma(size, tmp_path / "runs", lambda done, total, what: None)
    assert [row["values"]["horizon"] for row in found["rows"]] == [[2.0], [pytest.approx(100)]]
    assert ["short-sighted" in found["clips"][0]["hint"], "far-sighted" in found["clips"][1]["hint"]] == [True, True]
    page = write_comparison(tmp_path, document(found)).read_text()
    assert page.count("data:video/mp4;base64,") == 2


def test_what_is_judged_must_be_trained(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="judged is 3: it must be one of t_max, 2, 5"):
        horizons.tmax({**TINY, "t_max": [2, 5], "judged": 3}, tmp_path, lambda done, total, what: None)
