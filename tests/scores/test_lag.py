"""V-trace earns its place: at a lag of twenty versions it learns where uncorrected returns do not."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1])
def test_cartpole_under_a_lag_of_twenty_versions(seed: int, tmp_path: Path) -> None:
    def train(returns: str) -> shoal.Run:
        return shoal.train(
            "CartPole-v1",
            algo={"name": "a2c", "returns": returns, "learning_rate": 2e-2},
            topology={"name": "actor_learner", "delay": 20},
            runtime="inline",
            backend="jax",
            actors=1,
            until_return=475,
            seed=seed,
            eval_episodes=0,
            sinks=("jsonl",),
            out=tmp_path / returns,
            quiet=True,
            report=False,
        )

    corrected, plain = train("vtrace").summary, train("gae").summary
    assert corrected["solved_at_s"] is not None and corrected["lag_mean"] > 19
    assert plain["solved_at_s"] is None and plain["return_mean"] < 400
