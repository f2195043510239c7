"""Settings that nobody gave."""

from __future__ import annotations

import pytest

from shoal import experiment
from shoal.experiment import even_actors, resolve
from shoal.topologies import TOPOLOGIES
from shoal.tuned import TUNED


@pytest.mark.parametrize("cores", [1, 2, 3, 6, 12, 40])
@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
def test_the_batch_does_not_depend_on_the_cores(env: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "cores", lambda: cores)
    plan = resolve(env, {"runtime": "threads"})
    entry = TUNED.get((env, "ppo"), TUNED["*", "ppo"])
    assert plan.actors <= cores and plan.actors * plan.envs == entry["total_envs"]


@pytest.mark.parametrize(
    ("cores", "learners", "envs", "actors"),
    [
        (2, 1, 16, 2),
        (3, 1, 16, 2),
        (6, 1, 64, 4),
        (40, 1, 16, 16),
        (2, 2, 16, 2),
        (6, 3, 12, 6),
        (1, 2, 16, 2),
        (8, 3, 16, 8),
    ],
)
def test_actors_share_environments_and_learners_out_evenly(cores: int, learners: int, envs: int, actors: int) -> None:
    assert even_actors(cores, learners, envs) == actors


@pytest.mark.parametrize(("env", "algo"), [("shoal/Booster-v0", "a2c"), ("Pendulum-v1", "td3"), ("CartPole-v1", "a2c")])
@pytest.mark.parametrize("learners", [1, 2, 3])
def test_there_is_an_actor_for_each_learner(env: str, algo: str, learners: int) -> None:
    """A refusal would name --actors, which the user did not give."""
    plan = resolve(env, {"algo": algo, "topology": "actor_learner", "learners": learners})
    assert plan.actors >= learners and plan.actors % learners == 0


@pytest.mark.parametrize(
    ("algo", "topology", "actors", "runtime"),
    [
        ("dqn", "shared_params", 2, "processes"),
        ("dqn", "shared_params", 1, "threads"),
        ("dqn", "sync", 2, "threads"),
        ("a2c", "shared_params", 2, "threads"),
    ],
)
def test_workers_that_learn_from_replays_are_processes(algo: str, topology: str, actors: int, runtime: str) -> None:
    """Their many short calls would wait for each other in one interpreter."""
    plan = resolve("CartPole-v1", {"algo": algo, "topology": topology, "actors": actors})
    assert plan.settings.runtime == runtime
    assert (
        resolve("CartPole-v1", {"algo": algo, "topology": topology, "runtime": "inline"}).settings.runtime == "inline"
    )


@pytest.mark.parametrize(
    ("algo", "topology", "envs"), [("dqn", "shared_params", 1), ("dqn", "sync", 2), ("a2c", "shared_params", 2)]
)
def test_each_of_several_workers_with_a_replay_has_all_environments(algo: str, topology: str, envs: int) -> None:
    plan = resolve("CartPole-v1", {"algo": algo, "topology": topology, "actors": 2})
    assert plan.envs == TUNED["CartPole-v1", algo]["total_envs"] // envs
    assert resolve("CartPole-v1", {"algo": algo, "topology": topology, "actors": 2, "envs": 3}).envs == 3


@pytest.mark.parametrize(
    ("topology", "actors", "envs"), [("shared_params", 1, 16), ("shared_params", 4, 8), ("sync", 1, 32)]
)
def test_a_worker_that_learns_alone_makes_few_gradients_from_an_unroll(topology: str, actors: int, envs: int) -> None:
    plan = resolve("LunarLander-v3", {"algo": "a2c", "topology": topology, "actors": actors})
    alone = topology == "shared_params"
    assert plan.envs == envs and bool(plan.algo.batch_size) == alone, (
        "one learner for all makes one gradient from an unroll"
    )
    entry = TUNED["LunarLander-v3", "a2c"]
    assert plan.settings.steps == (entry["steps_on"][topology] if alone else entry["steps"])


@pytest.mark.parametrize(("runtime", "parallel"), [("inline", False), ("threads", True)])
def test_what_pays_where_roles_run_at_the_same_time_is_on_there(runtime: str, parallel: bool) -> None:
    found: dict[str, list[str]] = {}
    for name, topology in TOPOLOGIES.items():
        algo = "dyna_q" if name == "dyna" else "a2c"
        plan = resolve("CartPole-v1", {"backend": "jax", "topology": name, "runtime": runtime, "algo": algo})
        for setting in topology.if_parallel:
            assert getattr(plan.topology, setting) is parallel
            found.setdefault(setting, []).append(name)
            said = {"backend": "jax", "topology": name, f"topology.{setting}": not parallel, "runtime": runtime}
            assert getattr(resolve("CartPole-v1", {**said, "algo": algo}).topology, setting) is not parallel
    assert found == {"overlap": ["dyna", "sync"], "adjust": ["ga3c"]}
