"""Learners: what is reported of an update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.core.blueprint import named_leaves
from shoal.core.program import Context
from shoal.core.trajectory import as_trajectory
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.roles.learner import Trainer

T, B = 6, 2


@pytest.fixture(scope="module")
def blueprint() -> Any:
    settings = {
        "backend": "jax",
        "actors": 1,
        "envs": B,
        "algo": {"name": "a2c", "unroll": T},
        "net": {"hidden": (8,), "cell": "gru", "cell_size": 4},
        "runtime": "inline",
        "topology": "sequential",
        "steps": 10 * T * B,
    }
    return make_blueprint(resolve("CartPole-v1", settings), None, None)


def test_a_report_says_what_was_learnt_and_measures_the_lag(blueprint: Any) -> None:
    trainer = Trainer(blueprint, Context(name="learner", fault=lambda fault: pytest.fail(fault.detail)))
    before = named_leaves(trainer.state.params)
    slot = blueprint.record.empty()
    slot["valid"][...], slot["discount"][...], slot["reward"][...] = True, 1.0, 1.0
    slot["boundary"][2, 0], slot["discount"][2, 0] = True, 0.0
    slot["version"][...] = -2
    slot["obs"][...] = np.random.default_rng(0).normal(size=slot["obs"].shape)
    report = trainer.learn([slot], trainer.actor, 0.5)
    assert (report.version, report.env_steps) == (1, T * B)
    assert [(e.ret, e.length) for e in report.episodes] == [(3.0, 3)]
    assert report.metrics["lag/versions"] == report.metrics["lag/max"] == 2 and report.metrics["time/wait"] == 0.5
    assert any(not np.array_equal(a, before[n]) for n, a in named_leaves(report.state.params).items())
    assert as_trajectory(slot).reward.base is not None
