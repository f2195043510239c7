"""Federations as lanes of one compiled function: equal to a run alone where the rule changes nothing, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal import launch
from shoal.core.errors import BadInput
from shoal.core.weights import to_vector
from shoal.experiment import resolve
from shoal.federation import experiments
from shoal.federation.child import first_leaves
from shoal.federation.courier import Exchanged
from shoal.federation.lanes import Home, Lanes
from shoal.federation.rules.alpha_beta import AlphaBeta
from shoal.federation.settings import seed_of

SMALL = {"algo": {"name": "a2c", "unroll": 8}, "envs": 4}
STEPS = 4 * 8 * 6  # six updates of one child


def made(children: int, seeds: int = 2, steps: int = STEPS) -> Lanes:
    return Lanes("CartPole-v1", SMALL, steps=steps, children=children, seeds=range(seeds), episodes=3)


def ended(lanes: Lanes, rule: AlphaBeta, monkeypatch: pytest.MonkeyPatch, every: int = 1) -> list[np.ndarray]:
    """The parents' last weights, one vector for each seed."""
    homes: list[Home] = []
    begin = Home.__init__

    def seen(self: Home, *given: object) -> None:
        begin(self, *given)  # type: ignore[arg-type]
        homes.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(Home, "__init__", seen)
        scores = lanes.compare(rule, every=every, points=2)
    assert scores.shape == (2, 2) and (scores >= 1.0).all()
    return [home.state.weights for home in homes]


def test_one_child_that_replaces_the_parent_is_a_run_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lanes = made(1)
    found = ended(lanes, AlphaBeta(alpha=1.0, beta=1.0), monkeypatch)
    for seed, weights in enumerate(found):
        own = {"runtime": "fused", "steps": STEPS, "seed": seed_of(seed, "child-0")}
        first = first_leaves(lanes._vectors, Exchanged(0, lanes._first[seed]))
        alone = launch.run(
            resolve("CartPole-v1", {**SMALL, **own}), out=tmp_path / str(seed), weights=first, quiet=True
        )
        # Not the same bits: a lane is computed in batches of lanes.
        np.testing.assert_allclose(weights, to_vector(alone.state.params), rtol=0, atol=1e-5)
        assert np.abs(weights - lanes._first[seed]).max() > 1e-3


def test_the_result_depends_on_the_seeds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, rule = made(2), AlphaBeta(alpha=0.5, beta=0.5)
    first, again = ended(lanes, rule, monkeypatch), ended(lanes, rule, monkeypatch)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    other = ended(lanes, AlphaBeta(alpha=0.9, beta=0.0), monkeypatch)
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_parent_that_does_not_move_keeps_its_first_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = made(2)
    for weights, first in zip(ended(lanes, AlphaBeta(alpha=0.0, beta=0.0), monkeypatch), lanes._first, strict=True):
        np.testing.assert_array_equal(weights, first)


def test_normalised_observations_are_refused() -> None:
    with pytest.raises(BadInput, match=r"normalises observations on shoal/Booster-v0.*normalise-obs false"):
        Lanes("shoal/Booster-v0", {"algo": "a2c"}, steps=512, children=2, seeds=range(1), episodes=1)


def test_a_grid_keeps_the_scores_of_finished_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = {
        "envs": {"CartPole-v1": STEPS},
        "alphas": [0.5],
        "betas": [0.0, 0.5],
        "settings": {"*": SMALL},
        "points": 2,
        "eval_episodes": 3,
        "seeds": 2,
    }
    told: list[str] = []
    found = experiments.grid(size, tmp_path, lambda done, of, what: told.append(what))
    assert [row["keys"]["way"] for row in found["rows"]] == ["alpha 0.5 beta 0", "alpha 0.5 beta 0.5"] and len(
        told
    ) == 2
    for row in found["rows"]:
        assert len(row["values"]["along"]) == 2 and row["values"]["worst"] == [min(row["values"]["end"])]
    monkeypatch.setattr(Lanes, "__init__", lambda *given, **named: pytest.fail("trained again"))
    assert experiments.grid(size, tmp_path, lambda *given: None)["rows"] == found["rows"]
