"""A learner's state from weights that came over the network: its targets are those weights, whichever of them it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.core.blueprint import named_leaves
from shoal.experiment import resolve
from shoal.federation.child import first_leaves
from shoal.federation.courier import Exchanged
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


def test_a_child_acts_at_random_only_if_nobody_has_trained_the_weights() -> None:
    algo = {"name": "td3", **REPLAY}
    plan = resolve("Pendulum-v1", {"algo": algo, "net": {"hidden": (4,)}, "steps": 1000, "runtime": "inline"})
    vectors = StateVectors(make_blueprint(plan, None, None).initial_state())
    weights = np.full(vectors.layout.size, 0.1, np.float32)
    for version, random in ((0, 1.0), (3, 0.0)):
        begun = make_blueprint(plan, None, first_leaves(vectors, Exchanged(version, weights)))
        assert float(begun.algorithm.actor_state(begun.initial_state()).explore["warmup"]) == random
    saved = begun.algorithm.actor_state(
        vectors.state(weights, None, {})
    )  # a parent's own: it is played with sampled actions
    assert float(saved.explore["warmup"]) == 0
