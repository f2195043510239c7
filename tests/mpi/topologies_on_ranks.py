"""Run by `mpiexec -n 4` on every rank: a training of each topology, one after another. Prints a line of JSON each, from rank 0."""

from __future__ import annotations

import json
import sys
from typing import Any

import shoal
from shoal.core.program import Report
from shoal.core.weights import to_vector

A2C: dict[str, Any] = {"name": "a2c", "unroll": 8}
PPO: dict[str, Any] = {"name": "ppo", "unroll": 8, "batch_size": 16}
DYNA: dict[str, Any] = {"name": "dyna_q", "unroll": 8, "batch_size": 16, "warmup": 20, "capacity": 100, "starts": 8}


def back(report: Report) -> shoal.Reply:
    """A driver that hands back what was reported, which changes nothing."""
    return shoal.Reply(weights=to_vector(report.state.params))


# What crosses nodes, then what needs one; with so many roles that four ranks carry them.
ACROSS: dict[str, dict[str, Any]] = {
    "sync": {"algo": PPO, "topology": "sync"},
    "sync, driven": {"algo": PPO, "topology": "sync", "driver": back},
    "learners, driven": {"algo": A2C, "topology": "actor_learner", "learners": 2, "driver": back},
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
            "CartPole-v1",
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
        print(json.dumps({"case": case, **run.summary}), flush=True)
