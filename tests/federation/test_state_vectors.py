"""A learner's state from weights that came over the network: its targets are those weights, whichever of them it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.core.blueprint import named_leaves
from shoal.experiment import resolve
from shoal.federation.vectors import StateVectors
from shoal.launch.compose import make_blueprint

REPLAY = {"batch_size": 8, "warmup": 8, "capacity": 64}


@pytest.mark.parametrize(("algo", "env"), [("dqn", "CartPole-v1"), ("td3", "Pendulum-v1"), ("sac", "Pendulum-v1")])
def test_targets_are_the_weights_that_came(algo: str, env: str) -> None:
    settings: dict[str, Any] = {"algo": {"name": algo, **REPLAY}, "net": {"hidden": (4,)}, "steps": 1000}
    like = make_blueprint(resolve(env, {**settings, "runtime": "inline", "backend": "jax"}), None, None).initial_state()
    vectors = StateVectors(like)
    state = vectors.state(np.full(vectors.layout.size, 7.0, np.float32), None, {})
    targets = {name: leaf for name, leaf in named_leaves(state).items() if name.startswith("extra/target/")}
    assert targets and all((np.asarray(leaf) == 7.0).all() for leaf in targets.values())
