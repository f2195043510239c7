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
    ("seed", "fused"): r"needs the port Board, Call, Stream, which runtime 'fused' does not provide",
    ("sync", "fused"): r"needs the port Board, Stream, which runtime 'fused' does not provide",
}
APART = {"seed": 2}  # {topology: the largest lag that can be}
CELLS = list(product(TOPOLOGIES, RUNTIMES))


def train(out: Path, topology: str, runtime: str, algo: str = "ppo", **settings: Any) -> shoal.Run:
    actors = 1 if runtime == "fused" else 2
    own = {"batch_size": 16, "epochs": 2} if algo == "ppo" else {}
    return shoal.train(
        "CartPole-v1",
        algo={"name": algo, "unroll": T, **own},
        net={"hidden": (16,)},
        topology=topology,
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
    assert summary["updates"] == UPDATES
    assert summary["env_steps"] == UPDATES * T * B * summary["actors"]
    overlapped = summary["topology"] == "sync" and RUNTIMES[summary["runtime"]].overlaps
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
    check(train(tmp_path, topology, runtime))


@pytest.mark.parametrize(("topology", "runtime"), UNSUPPORTED)
def test_what_does_not_fit_is_refused_before_anything_starts(topology: str, runtime: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=UNSUPPORTED[topology, runtime]):
        train(tmp_path, topology, runtime)
    assert not (tmp_path / "run").exists(), "the same folder can be named again"


@pytest.mark.parametrize("algo", ALGOS)
def test_algorithm_sequentially(algo: str, tmp_path: Path) -> None:
    check(train(tmp_path, "sequential", "inline", algo, backend="jax"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "topology", "runtime"), [(algo, *cell) for algo in ALGOS for cell in CELLS if cell not in UNSUPPORTED]
)
def test_the_whole_product(algo: str, topology: str, runtime: str, tmp_path: Path) -> None:
    check(train(tmp_path, topology, runtime, algo))
