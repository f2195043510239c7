"""A learner's state from weights that came over the network: its targets are those weights, whichever of them it keeps."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from families import A2C, DQN, ENVS, PPO, RUN

from shoal.core.blueprint import named_leaves
from shoal.experiment import resolve
from shoal.federation.child import first_leaves
from shoal.federation.courier import Exchanged
from shoal.federation.vectors import StateVectors
from shoal.launch.compose import initial_state, make_blueprint, state_shapes

REPLAY = {"batch_size": 8, "warmup": 8, "capacity": 64}


@pytest.mark.parametrize(("algo", "env"), [("dqn", "CartPole-v1"), ("td3", "Pendulum-v1"), ("sac", "Pendulum-v1")])
def test_targets_are_the_weights_that_came(algo: str, env: str) -> None:
    settings: dict[str, Any] = {"algo": {"name": algo, **REPLAY}, "net": {"hidden": (4,)}, "steps": 1000}
    like = make_blueprint(resolve(env, {**settings, "runtime": "inline", "backend": "jax"}), None, None).initial_state()
    vectors = StateVectors(like)
    state = vectors.state(np.full(vectors.layout.size, 7.0, np.float32), None, {}, 0.25)
    assert float(state.progress) == 0.25
    targets = {name: leaf for name, leaf in named_leaves(state).items() if name.startswith("extra/target/")}
    assert targets and all((np.asarray(leaf) == 7.0).all() for leaf in targets.values())


@pytest.mark.parametrize("algo", [A2C, PPO, DQN])
def test_a_child_computes_no_weights_that_its_parent_sends(algo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else of its state is as in a new run, bit for bit. The function that it compiles has no orthogonal weights."""
    plain = {name: value for name, value in RUN.items() if name != "quiet"}
    plan = resolve("CartPole-v1", {**plain, "algo": algo, "steps": 100, "actors": 1, "envs": ENVS})
    whole = named_leaves(initial_state(plan))
    vectors = StateVectors(state_shapes(plan))
    sent = np.linspace(-1, 1, vectors.layout.size, dtype=np.float32)
    programs: list[str] = []
    real = jax.jit

    def watched(function: Any, **settings: Any) -> Any:
        made = real(function, **settings)
        if function.__name__ == "missing":
            programs.append(made.lower().as_text())
        return made

    monkeypatch.setattr(jax, "jit", watched)
    began = named_leaves(make_blueprint(plan, None, vectors.leaves(sent, None, {})).initial_state())
    assert len(programs) == 1 and "qr" not in programs[0] and "geqrf" not in programs[0]
    assert began.keys() == whole.keys()
    for name, leaf in began.items():
        if name.startswith(("params/", "extra/target/", "step")):  # "step": the weights count as trained
            continue
        assert leaf.dtype == whole[name].dtype and leaf.tobytes() == whole[name].tobytes(), name
    np.testing.assert_array_equal(np.concatenate([began[f"params/{n}"].reshape(-1) for n in vectors._names]), sent)


def test_a_child_acts_at_random_only_if_nobody_has_trained_the_weights() -> None:
    algo = {"name": "td3", **REPLAY}
    plan = resolve("Pendulum-v1", {"algo": algo, "net": {"hidden": (4,)}, "steps": 1000, "runtime": "inline"})
    vectors = StateVectors(make_blueprint(plan, None, None).initial_state())
    weights = np.full(vectors.layout.size, 0.1, np.float32)
    for version, random in ((0, 1.0), (3, 0.0)):
        begun = make_blueprint(plan, None, first_leaves(vectors, Exchanged(version, weights)))
        assert float(begun.algorithm.actor_state(begun.initial_state()).explore["warmup"]) == random
    saved = begun.algorithm.actor_state(
        vectors.state(weights, None, {}, 0.0)
    )  # a parent's own: it is played with sampled actions
    assert float(saved.explore["warmup"]) == 0
