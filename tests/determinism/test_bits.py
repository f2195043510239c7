"""One (algorithm, topology, actors, environments, seed): the same bits on every runtime."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import pytest
from tiny_envs import Walk

import shoal
from shoal.acting.compiled_act import compiled_act
from shoal.core.keys import key_data
from shoal.core.weights import to_vector
from shoal.experiment import resolve
from shoal.launch.compose import make_algorithm
from shoal.runtimes import RUNTIMES

N, T, B, ACTORS = 6, 8, 4, 2
PPO = {"name": "ppo", "unroll": T, "batch_size": 16, "epochs": 2, "final_rate": 0.1}
DQN = {"name": "dqn", "unroll": T, "batch_size": 16, "warmup": 40, "capacity": 300, "every": 4, "target_every": 20}
OFF_POLICY = {"unroll": T, "batch_size": 16, "warmup": 40, "capacity": 300, "updates_per_step": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "envpool": {"env": "CartPole-v1", "backend": "envpool", "algo": PPO},
    "normalised": {
        "env": "CartPole-v1",
        "backend": "envpool",
        "algo": {**PPO, "normalise_obs": True, "normalise_reward": True},
    },
    "python": {"env": Walk, "algo": {**PPO, "normalise_obs": True}},
    "recurrent": {"env": Walk, "algo": PPO, "net": {"hidden": (8,), "cell": "gru", "cell_size": 8}},
    "a2c": {"env": "CartPole-v1", "backend": "gymnasium", "algo": {"name": "a2c", "unroll": T}},
    "dqn": {"env": "CartPole-v1", "backend": "envpool", "algo": DQN},
    "sac": {"env": "Pendulum-v1", "backend": "jax", "algo": {"name": "sac", **OFF_POLICY, "normalise_obs": True}},
    "td3": {"env": "Pendulum-v1", "backend": "jax", "algo": {"name": "td3", **OFF_POLICY, "noise": "ou"}},
    "prioritized": {
        "env": Walk,
        "algo": {**DQN, "replay": "prioritized", "n_step": 3, "normalise_obs": True, "normalise_reward": True},
        "net": {"hidden": (8,), "dueling": True},
    },
    "sequences": {
        "env": Walk,
        "algo": {**DQN, "sequence": 5, "burn_in": 2, "replay": "prioritized", "n_step": 3, "normalise_obs": True},
        "net": {"hidden": (8,), "cell": "lstm", "cell_size": 8},
    },
    "critics with a memory": {
        "env": "Pendulum-v1",
        "backend": "jax",
        "algo": {"name": "td3", **OFF_POLICY},
        "net": {"hidden": (8,), "cell": "gru", "cell_size": 8},
    },
}


@cache
def hash_of(
    case: str, runtime: str, overlap: bool | None, topology: str = "sync", seed: int = 0, again: int = 0
) -> str:
    """The parameter hash after N updates. `again` makes another run of the same."""
    settings = dict(CASES[case])
    with TemporaryDirectory() as folder:
        run = shoal.train(
            settings.pop("env"),
            runtime=runtime,
            topology={"name": topology, **({} if overlap is None else {"overlap": overlap})},
            actors=ACTORS,
            envs=B,
            steps=N * T * B * ACTORS,
            seed=seed,
            eval_episodes=0,
            sinks=("jsonl",),
            out=Path(folder) / "run",
            quiet=True,
            report=False,
            **{"net": {"hidden": (8,)}, **settings},
        )
        assert run.summary["updates"] == N
        assert run.summary["lag_max"] == (1 if overlap else 0)
        assert run.params_hash == run.summary["params_sha256"]
        return run.params_hash


@pytest.fixture(autouse=True)
def _native(request: pytest.FixtureRequest) -> None:
    if any(CASES.get(str(v), {}).get("backend") == "envpool" for v in request.node.callspec.params.values()):
        pytest.importorskip("envpool")


SHORT = [  # each case (td3 with a memory), and each runtime with overlap and without
    ("envpool", "threads", True),
    ("envpool", "processes", True),
    ("normalised", "processes", False),
    ("python", "processes", True),
    ("recurrent", "threads", True),
    ("a2c", "threads", True),
    ("dqn", "threads", True),
    ("dqn", "processes", False),
    ("sac", "threads", True),
    ("prioritized", "threads", False),
    ("sequences", "threads", True),
    ("critics with a memory", "processes", False),
]
LONG = [
    (case, runtime, overlap)
    for case in CASES
    for runtime in RUNTIMES
    for overlap in (True, False)
    if runtime not in ("inline", "fused", "mpi") and (case, runtime, overlap) not in SHORT
]


@pytest.mark.parametrize(("case", "runtime", "overlap"), SHORT)
def test_every_runtime_computes_the_same_bits(case: str, runtime: str, overlap: bool) -> None:
    assert hash_of(case, runtime, overlap) == hash_of(case, "inline", overlap)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "runtime", "overlap"), LONG)
def test_every_runtime_computes_the_same_bits_in_every_case(case: str, runtime: str, overlap: bool) -> None:
    assert hash_of(case, runtime, overlap) == hash_of(case, "inline", overlap)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in ("normalised", "recurrent", "prioritized") else pytest.mark.slow)
        for case in CASES
    ],
)
def test_sequential_is_sync_without_overlap(case: str) -> None:
    """The same actors, one after another in one loop: what travels is all that acting needs."""
    assert hash_of(case, "inline", None, "sequential") == hash_of(case, "inline", False)


@pytest.mark.parametrize("case", ["envpool", "normalised"])
def test_overlap_is_another_schedule(case: str) -> None:
    assert hash_of(case, "inline", True) != hash_of(case, "inline", False)


@pytest.mark.parametrize(("case", "runtime"), [("envpool", "threads"), ("python", "inline")])
def test_the_same_seed_twice_is_the_same_run_and_another_is_not(case: str, runtime: str) -> None:
    first = hash_of(case, runtime, True)
    assert hash_of(case, runtime, True, again=1) == first
    assert hash_of(case, runtime, True, seed=1) != first


@pytest.mark.parametrize("cell", ["none", "lstm"])
def test_another_split_of_the_same_observations_acts_alike(cell: str) -> None:
    """Four at a time or eight at a time round differently, and by no more than that."""
    net = {"hidden": (64, 64), "cell": cell, "cell_size": 16}
    plan = resolve("CartPole-v1", {"backend": "jax", "actors": 1, "envs": 8, "net": net})
    algorithm = make_algorithm(plan)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    obs, first = rng.normal(size=(8, 4)).astype(np.float32), np.zeros(8, bool)
    carry = {n: np.asarray(rng.normal(size=a.shape), np.float32) for n, a in algorithm.initial_carry(8).items()}

    def outputs(at: slice) -> Any:
        part = {n: a[at] for n, a in carry.items()}
        return algorithm.net.policy(state.params, obs[at], part, first[at])

    whole, low, high = (jax.jit(partial(outputs, at))() for at in (slice(0, 8), slice(0, 4), slice(4, 8)))
    joined = jax.tree.map(lambda a, b: np.concatenate([a, b]), low, high)
    np.testing.assert_allclose(to_vector(whole), to_vector(joined), atol=1e-5)
    greedy = [
        np.asarray(
            compiled_act(algorithm)(
                algorithm.actor_state(state),
                obs[at],
                {n: a[at] for n, a in carry.items()},
                first[at],
                key_data(0),
                np.int32(0),
                np.zeros(len(obs[at]), np.float32),
            )[0]
        )
        for at in (slice(0, 8), slice(0, 4), slice(4, 8))
    ]
    np.testing.assert_array_equal(greedy[0], np.concatenate(greedy[1:]))
