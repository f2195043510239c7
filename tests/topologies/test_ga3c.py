"""`ga3c`: its gradient is the algorithm's own, its numbers adjust, what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import shoal
from shoal.acting.collector import Collector
from shoal.core.errors import BadInput
from shoal.core.keys import key_data
from shoal.core.program import Context
from shoal.core.trajectory import as_trajectory
from shoal.core.weights import to_vector
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.compiled_update import compiled_update
from shoal.learning.remote_gradients import SEEN, Known, RemoteGradients
from shoal.tuned import TUNED

T, B, ACTORS = 5, 4, 3


def settings(**more: Any) -> dict[str, Any]:
    return {
        "backend": "jax",
        "algo": {"name": "a2c", "unroll": T},
        "net": {"hidden": (16,)},
        "topology": {"name": "ga3c", "predictors": 1, "trainers": 2},
        "runtime": "inline",
        "actors": ACTORS,
        "envs": B,
        "steps": 20 * T * B * ACTORS,
        **more,
    }


def train(out: Path, **more: Any) -> shoal.Run:
    rest = {"eval_episodes": 0, "sinks": ("jsonl",), "out": out, "quiet": True, "report": False}
    return shoal.train("CartPole-v1", **settings(**{**rest, **more}))


def blueprint_of(**more: Any) -> Any:
    return make_blueprint(resolve("CartPole-v1", settings(**more)), None, None)


def unrolls(blueprint: Any) -> list[dict[str, np.ndarray]]:
    actor = jax.device_put(blueprint.algorithm.actor_state(blueprint.initial_state()))
    slots = []
    for i in range(blueprint.actors):
        slots.append(blueprint.record.empty())
        Collector(blueprint, i, Context(name="actor", fault=lambda fault: None)).collect(actor, 0, 0, slots[-1])
    return slots


@pytest.mark.parametrize("normalise", [False, True])
def test_a_gradient_and_its_application_are_one_update(normalise: bool) -> None:
    """By two compiled functions and a vector between, what `update` does in one."""
    blueprint = blueprint_of(algo={"name": "a2c", "unroll": T, "normalise_obs": normalise})
    trajectories = [as_trajectory(slot) for slot in unrolls(blueprint)]
    state, progress = blueprint.initial_state(), np.float32(0.25)
    expected, actor, _ = compiled_update(blueprint.algorithm)(state, None, trajectories, key_data(1), progress)
    gradients = RemoteGradients(blueprint, 0.0)
    vector, metrics = gradients.compute()(Known(state.params, state.obs), trajectories, key_data(2), progress)
    assert vector.shape == (gradients.size,) and {*metrics, *SEEN} == set(gradients.news.metrics)
    after, known, acts, verdict = gradients.applied()(state, vector, progress)
    assert verdict
    for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(acts, to_vector(actor), rtol=1e-5, atol=1e-6)
    assert gradients.layout.tree(np.asarray(known)).params.keys() == state.params.keys()


def test_rewards_are_clipped_for_learning_and_whole_in_reports(tmp_path: Path) -> None:
    blueprint = blueprint_of()
    trajectories = [as_trajectory(slot) for slot in unrolls(blueprint)]
    large = [t._replace(reward=t.reward * 7) for t in trajectories]
    known = Known(blueprint.initial_state().params, None)

    def vector(clip: float, given: list[Any]) -> np.ndarray:
        return np.asarray(RemoteGradients(blueprint, clip).compute()(known, given, key_data(0), np.float32(0))[0])

    np.testing.assert_array_equal(vector(1.0, large), vector(1.0, trajectories))
    np.testing.assert_array_equal(vector(0.0, trajectories), vector(1.0, trajectories))
    assert np.abs(vector(0.0, large) - vector(0.0, trajectories)).max() > 0
    clipped = train(tmp_path / "run", topology={"name": "ga3c", "reward_clip": 0.5})
    assert clipped.summary["return_mean"] > 8, "CartPole gives 1 a step, whatever is learnt from"


def test_inline_computes_the_same_bits_twice(tmp_path: Path) -> None:
    one, other = (train(tmp_path / name).summary for name in "ab")
    assert one["params_sha256"] == other["params_sha256"]
    assert one["env_steps"] == 20 * T * B * ACTORS and one["updates"] == 20


@pytest.mark.slow
def test_the_numbers_adjust_and_the_panel_can_say_so(tmp_path: Path) -> None:
    topology = {"name": "ga3c", "adjust": True, "adjust_after": 0.2, "adjust_every": 0.2, "most": 2}
    run = train(tmp_path / "run", runtime="threads", topology=topology, steps=2000 * T * B, seed=3)
    rows = [json.loads(line) for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()]
    numbers = {(row["status/trainers"], row["status/predictors"], row["status/agents"]) for row in rows}
    assert len(numbers) > 1, "other numbers were tried"
    assert all(1 <= t <= 2 and 1 <= p <= 2 and 1 <= a <= ACTORS for t, p, a in numbers)
    said = {name for row in rows for name in row if name.startswith("status/")}
    wanted = {"score", "predictions_per_s", "training_per_s", "trainers", "predictors", "agents", "cores"}
    assert said == {f"status/{name}" for name in wanted}


def test_it_has_its_own_usual_settings_and_a_users_word_stands() -> None:
    usual = resolve("CartPole-v1", settings(algo="a2c")).algo
    assert (usual.unroll, usual.log_epsilon, usual.normalise_reward) == (5, 1e-6, False)
    lander = resolve("LunarLander-v3", settings(algo="a2c", backend="auto")).algo
    workers = TUNED["LunarLander-v3", "a2c"]["algo_on"]["shared_params"]
    assert lander.batch_size == 0 and workers["batch_size"], "one gradient per batch"
    assert lander.learning_rate != workers["learning_rate"], "the settings of workers that learn alone are not its own"
    assert resolve("CartPole-v1", settings(algo={"name": "a2c", "unroll": 9})).algo.unroll == 9
    assert resolve("CartPole-v1", settings(algo="a2c", topology="sync")).algo.unroll != 5
    assert resolve("CartPole-v1", settings()).topology.adjust is False
    assert resolve("CartPole-v1", settings(runtime="threads")).topology.adjust is True


@pytest.mark.parametrize(
    ("algo", "match"),
    [
        ({"name": "ppo"}, "one gradient per batch.*a2c and reinforce fit"),
        ({"name": "a2c", "batch_size": 16}, "1 epochs of"),
        ({"name": "a2c", "normalise_reward": True}, "normalise-reward does not fit"),
        ({"name": "dqn"}, "takes no replay"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(tmp_path: Path, algo: dict[str, Any], match: str) -> None:
    net = {} if algo["name"] == "dqn" else {"net": {"hidden": (8,)}}
    with pytest.raises(BadInput, match=match):
        train(tmp_path / "run", algo=algo, **net)
