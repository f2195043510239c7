"""`seed`: what comes out is a run like any other; how it batches is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.errors import BadInput
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.roles.seed import Lane, question_record
from shoal.topologies.seed import SeedConfig, SeedTopology

T, B, ACTORS = 8, 4, 4


def train(out: Path, runtime: str, updates: int = 6, **settings: Any) -> shoal.Run:
    return shoal.train(
        "CartPole-v1",
        **{
            "algo": {"name": "ppo", "unroll": T, "batch_size": 32, "epochs": 2},
            "net": {"hidden": (16,)},
            "topology": "seed",
            "runtime": runtime,
            "actors": ACTORS,
            "envs": B,
            "steps": updates * T * B * ACTORS,
            "eval_episodes": 0,
            "sinks": ("jsonl",),
            "out": out,
            "quiet": True,
            "report": False,
            **settings,
        },
    )


def metrics(run: shoal.Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()]


def test_inline_computes_the_same_bits_twice(tmp_path: Path) -> None:
    one, other = (train(tmp_path / name, "inline", backend="jax").summary for name in "ab")
    assert one["params_sha256"] == other["params_sha256"] and one["lag_max"] <= 2


def test_a_recurrent_policy_learns_from_what_the_inference_remembers(tmp_path: Path) -> None:
    """The log-probabilities that acting sent are those that the learner finds from the carry in the unroll."""
    net = {"hidden": (8,), "cell": "gru", "cell_size": 4}
    run = train(
        tmp_path / "run", "inline", backend="jax", algo={"name": "a2c", "unroll": T, "learning_rate": 1e-9}, net=net
    )
    ratios = [row["ratio/max"] for row in metrics(run) if "ratio/max" in row]
    assert ratios and np.allclose(ratios, 1.0, atol=1e-4), "the weights hardly moved: any other ratio is a wrong carry"


def test_an_inference_that_comes_anew_in_the_middle_of_episodes_counts_their_rest_alone() -> None:
    """Or the learner would add it to the part that it knows of an episode before."""
    settings = {"algo": {"name": "ppo", "unroll": T}, "topology": "seed", "actors": 1, "envs": B, "backend": "jax"}
    blueprint = make_blueprint(resolve("CartPole-v1", settings), None, None)
    lane, question = Lane(blueprint), question_record(blueprint).empty()
    question["run"][...] = 7
    for expected in (True, False):
        lane.begin(slot := blueprint.record.empty())
        lane.take_in(question) if expected else None
        lane.open(question)
        assert (slot["first"][0] == expected).all()


@pytest.mark.parametrize("limit", [0, 3])
def test_what_a_call_acts_for_is_limited(tmp_path: Path, limit: int) -> None:
    topology = {"name": "seed", "inference_batch": limit}
    run = train(tmp_path / "run", "threads", updates=60, topology=topology, backend="jax")
    batches = [row["inference/batch"] for row in metrics(run) if "inference/batch" in row]
    assert batches and all(row.get("speed/predictions", 1) > 0 for row in metrics(run))
    if limit:
        assert max(batches) <= limit
    else:
        assert np.mean(batches) >= ACTORS * B / 2, "half of the environments, under load"


def test_episodes_cannot_begin_where_a_policy_says() -> None:
    settings = {"algo": "a2c", "topology": "seed", "runtime": "inline", "backend": "jax", "actors": 1, "envs": 2}
    blueprint = make_blueprint(resolve("CartPole-v1", {**settings, "steps": 1000}), None, None)
    fresh = blueprint.algorithm.task._replace(fresh=True)
    algorithm = type(blueprint.algorithm)(blueprint.algorithm.config, fresh, blueprint.algorithm.net)
    with pytest.raises(BadInput, match="'seed' has actors without a policy"):
        SeedTopology(SeedConfig()).program(type(blueprint)(**{**vars(blueprint), "algorithm": algorithm}))
