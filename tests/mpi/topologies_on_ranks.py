"""Run by `mpiexec -n 4` on every rank: a training of each topology, one after another. Prints a line of JSON each, from rank 0."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "contracts"))

from driven_env import Alternating, Levers

import shoal
from shoal.core.program import Report
from shoal.core.weights import to_vector

A2C: dict[str, Any] = {"name": "a2c", "unroll": 8}
PPO: dict[str, Any] = {"name": "ppo", "unroll": 8, "batch_size": 16}
DYNA: dict[str, Any] = {"name": "dyna_q", "unroll": 8, "batch_size": 16, "warmup": 20, "capacity": 100, "starts": 8}


def back(report: Report) -> shoal.Reply:
    """A driver that hands back what was reported, which changes nothing."""
    return shoal.Reply(weights=to_vector(report.state.params))


HANDING = Alternating()  # its notes are rank 0's, where the driver is called
STILL = {"learning_rate": 1e-30}  # gradients move nothing: weights change by the driver's hand alone
# What crosses nodes, then what needs one; with so many roles that four ranks carry them.
ACROSS: dict[str, dict[str, Any]] = {
    "sync": {"algo": PPO, "topology": "sync"},
    "sync, driven": {"algo": PPO, "topology": "sync", "driver": back},
    "learners, driven": {"algo": A2C, "topology": "actor_learner", "learners": 2, "driver": back},
    "sync, other weights": {
        "env": Levers,
        "algo": {**A2C, **STILL},
        "topology": {"name": "sync", "overlap": False},
        "driver": HANDING,
    },
    **{
        f"actor_learner {stream}": {
            "algo": A2C,
            "learners": 2,
            "topology": {"name": "actor_learner", "stream": stream},
        }
        for stream in ("queue", "stack", "window")
    },
}
TOGETHER: dict[str, dict[str, Any]] = {
    "shared_params": {"algo": A2C, "topology": "shared_params"},
    "seed": {"algo": A2C, "topology": "seed", "actors": 2},
    "ga3c": {
        "algo": A2C,
        "topology": {"name": "ga3c", "predictors": 1, "trainers": 1, "adjust": False},
        "actors": 1,
    },
    "dyna": {"algo": {**DYNA, "horizon": 3, "model_hidden": (8,)}, "topology": "dyna"},
}

if __name__ == "__main__":
    windows = sys.argv[1]
    for number, (case, settings) in enumerate((ACROSS | (TOGETHER if windows == "shared" else {})).items()):
        run = shoal.train(
            settings.pop("env", "CartPole-v1"),
            runtime={"name": "mpi", "windows": windows},
            net={"hidden": (8,)},
            envs=2,
            steps=400,
            eval_episodes=0,
            report=False,
            quiet=True,
            sinks=("jsonl",),
            out=f"run-{number}",
            **settings,
        )
        returns = {version: sorted(found) for version, found in HANDING.returns.items()}
        print(json.dumps({"case": case, **run.summary, "returns_by_version": returns}), flush=True)
