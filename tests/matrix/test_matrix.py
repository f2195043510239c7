"""Every topology on every runtime, every algorithm sequentially; what does not fit is refused with its reason."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.algos import ALGOS
from shoal.core.errors import BadInput
from shoal.runtimes import RUNTIMES
from shoal.topologies import TOPOLOGIES

UPDATES, T, B = 3, 8, 4
UNSUPPORTED = {
    ("actor_learner", "fused"): r"needs the port Board, Stream, which runtime 'fused' does not provide",
    (
        "dyna",
        "fused",
    ): r"--actors is 1: topology 'dyna', for dyna_q, needs at least 2, one that acts and one that plans",
    ("ga3c", "fused"): r"needs the port Board, Call, Stream, which runtime 'fused' does not provide",
    ("seed", "fused"): r"needs the port Board, Call, Stream, which runtime 'fused' does not provide",
    ("shared_params", "fused"): r"needs the port Roster, Stream, Table, which runtime 'fused' does not provide",
    ("sync", "fused"): r"needs the port Board, Stream, which runtime 'fused' does not provide",
}
APART = {  # {topology: the largest lag that can be}
    "actor_learner": 2,
    "ga3c": UPDATES,
    "seed": 2,
    "shared_params": 2 * UPDATES,
}
CARRIES = {"dyna": "dyna_q", "ga3c": "a2c"}  # {topology: an algorithm that it takes}, where that is not ppo
CONTINUOUS = ("ddpg", "sac", "td3")
ONE_GRADIENT = ("a2c", "reinforce")  # a batch: what ga3c takes
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"batch_size": 16, "epochs": 2},
    "dqn": {"batch_size": 16, "warmup": 20, "capacity": 100, "replay": "prioritized", "n_step": 3},
    **{
        name: {"batch_size": 16, "warmup": 20, "capacity": 200, "updates_per_step": 0.25}
        for name in ("ddpg", "sac", "td3")
    },
    "dyna_q": {"batch_size": 16, "warmup": 20, "capacity": 100, "starts": 8, "horizon": 3, "model_hidden": (8,)},
}
CELLS = list(product(TOPOLOGIES, [name for name in RUNTIMES if name != "mpi"]))  # under mpiexec: tests/mpi


def fits(algo: str, topology: str) -> bool:
    return topology in (ALGOS[algo].topologies or TOPOLOGIES) and (topology != "dyna" or algo == "dyna_q")


def train(out: Path, topology: str, runtime: str, algo: str = "ppo", **settings: Any) -> shoal.Run:
    actors = 1 if runtime == "fused" else 2
    own: dict[str, Any] = settings.pop("own", OWN.get(algo, {}))
    return shoal.train(
        "Pendulum-v1" if algo in CONTINUOUS else "CartPole-v1",
        algo={"name": algo, "unroll": T, **own},
        net=settings.pop("net", {"hidden": (8,)}),
        topology={
            "name": topology,
            **({"predictors": 1, "trainers": 1, "adjust": False} if topology == "ga3c" else {}),
        },
        runtime=runtime,
        actors=actors,
        envs=B,
        steps=UPDATES * T * B * actors,
        eval_episodes=0,
        sinks=("jsonl",),
        out=out / "run",
        quiet=True,
        report=False,
        **settings,
    )


def check(run: shoal.Run) -> None:
    summary = run.summary
    # Where every worker updates by itself, or one actor alone makes the steps of all.
    each = summary["actors"] if summary["topology"] in ("dyna", "shared_params") else 1
    assert summary["updates"] == UPDATES * each
    assert summary["env_steps"] == UPDATES * T * B * summary["actors"]
    overlapped = summary["topology"] in ("dyna", "sync") and RUNTIMES[summary["runtime"]].overlaps
    if summary["topology"] in APART:  # what acts is not in step with what learns
        assert 0 <= summary["lag_mean"] <= summary["lag_max"] <= APART[summary["topology"]]
    else:
        assert summary["lag_max"] == (1 if overlapped else 0)
    assert summary["faults"] == 0 and summary["wall_s"] > 0
    params = [a for n, a in run._loaded().arrays.items() if n.startswith("state/params/")]
    assert params and all(np.isfinite(a).all() for a in params)
    assert not run.summary["stopped"]


@pytest.mark.parametrize(("topology", "runtime"), [cell for cell in CELLS if cell not in UNSUPPORTED])
def test_topology_on_runtime(topology: str, runtime: str, tmp_path: Path) -> None:
    if runtime != "fused":
        pytest.importorskip("envpool")
    check(train(tmp_path, topology, runtime, CARRIES.get(topology, "ppo")))


@pytest.mark.parametrize(("topology", "runtime"), UNSUPPORTED)
def test_what_does_not_fit_is_refused_before_anything_starts(topology: str, runtime: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=UNSUPPORTED[topology, runtime]):
        train(tmp_path, topology, runtime, CARRIES.get(topology, "ppo"))
    assert not (tmp_path / "run").exists(), "the same folder can be named again"


@pytest.mark.parametrize("algo", [algo for algo in ALGOS if fits(algo, "sequential")])
def test_algorithm_sequentially(algo: str, tmp_path: Path) -> None:
    check(train(tmp_path, "sequential", "inline", algo, backend="jax"))


MEMORY = {"hidden": (8,), "cell": "lstm", "cell_size": 8}


@pytest.mark.parametrize(
    ("topology", "runtime", "algo"),
    [
        ("seed", "inline", "dqn"),
        pytest.param("actor_learner", "threads", "td3", marks=pytest.mark.slow),
        pytest.param("shared_params", "processes", "sac", marks=pytest.mark.slow),
        pytest.param("sequential", "fused", "ddpg", marks=pytest.mark.slow),
    ],
)
def test_sequences_travel_as_rows(topology: str, runtime: str, algo: str, tmp_path: Path) -> None:
    """Sequences begin inside of the unroll too, so that the memory of each step travels with it."""
    own = {**OWN[algo], "sequence": 5, "burn_in": 2, **({"replay": "uniform"} if runtime == "fused" else {})}
    check(train(tmp_path, topology, runtime, algo, backend="jax", own=own, net=MEMORY))


@pytest.mark.parametrize(
    ("topology", "runtime"),
    [
        ("sync", "threads"),
        pytest.param("sync", "processes", marks=pytest.mark.slow),  # its bits are compared in tests/determinism
        ("actor_learner", "threads"),
    ],
)
def test_a_replay_behind_actors_that_run_at_the_same_time(topology: str, runtime: str, tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    check(train(tmp_path, topology, runtime, "dqn"))


@pytest.mark.parametrize(
    ("algo", "topology", "told"),
    [
        ("dyna_q", "sync", "algorithm 'dyna_q' does not fit topology 'sync'; it fits dyna"),
        ("dqn", "dyna", "topology 'dyna' plans with a world model, which only dyna_q has"),
    ],
)
def test_an_algorithm_that_does_not_fit_a_topology(algo: str, topology: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=told):
        train(tmp_path, topology, "inline", algo, backend="jax")
    assert not (tmp_path / "run").exists()


def test_fused_draws_uniformly(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--runtime fused draws uniformly"):
        train(tmp_path, "sequential", "fused", "dqn")
    assert not (tmp_path / "run").exists()


def test_fused_learns_from_a_replay(tmp_path: Path) -> None:
    run = train(tmp_path, "sequential", "fused", "td3")
    check(run)
    assert int(run._loaded().arrays["state/step"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "topology", "runtime"),
    [
        (algo, *cell)
        for algo, cell in product(ALGOS, CELLS)
        if cell not in UNSUPPORTED
        and fits(algo, cell[0])
        and (cell[0] != "ga3c" or algo in ONE_GRADIENT)
        and (algo, cell[1]) != ("dqn", "fused")
    ],
)
def test_the_whole_product(algo: str, topology: str, runtime: str, tmp_path: Path) -> None:
    check(train(tmp_path, topology, runtime, algo))
