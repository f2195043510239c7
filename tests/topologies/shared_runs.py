"""Small runs of workers on shared parameters, for the tests beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tiny_envs import Walk

import shoal

T, B, N = 8, 4, 6
A2C = {"name": "a2c", "unroll": T}
PPO = {"name": "ppo", "unroll": T, "batch_size": 16, "epochs": 2, "final_rate": 0.1}
DQN = {"name": "dqn", "unroll": T, "batch_size": 16, "warmup": 40, "capacity": 300, "every": 8, "target_every": 5}
CASES: dict[str, dict[str, Any]] = {
    "rmsprop": {"algo": {**A2C, "final_rate": 0.1}},
    "adam": {"algo": {**A2C, "optimiser": "adam"}},
    "momentum": {"algo": {**A2C, "optimiser": "momentum"}},
    "normalised": {"algo": {**A2C, "normalise_obs": True, "normalise_reward": True}},
    "ppo": {"algo": PPO},
    "dqn": {"algo": DQN},
    "prioritized": {"algo": {**DQN, "replay": "prioritized", "n_step": 3}},
    "recurrent": {"env": Walk, "algo": A2C, "net": {"hidden": (8,), "cell": "gru", "cell_size": 8}},
}


def train(
    out: Path,
    topology: Any = "shared_params",
    *,
    case: str = "rmsprop",
    actors: int = 1,
    updates: int = N,
    runtime: Any = "inline",
    **more: Any,
) -> shoal.Run:
    settings: dict[str, Any] = {
        "env": "CartPole-v1",
        "backend": "auto" if CASES[case].get("env") else "gymnasium",
        "net": {"hidden": (8,)},
        **CASES[case],
        **more,
    }
    return shoal.train(
        settings.pop("env"),
        topology=topology,
        runtime=runtime,
        actors=actors,
        envs=B,
        steps=updates * T * B,
        eval_episodes=0,
        sinks=("jsonl",),
        out=out,
        quiet=True,
        report=False,
        **settings,
    )


def shared(consistency: str = "hogwild", **options: Any) -> dict[str, Any]:
    return {"name": "shared_params", "consistency": consistency, **options}


def vector(run: shoal.Run, part: str = "params") -> np.ndarray:
    """The weights of the last checkpoint, or another part of the state, in one vector."""
    arrays = run._loaded().arrays
    chosen = [a.ravel() for n, a in sorted(arrays.items()) if n.startswith(f"state/{part}")]
    return np.concatenate(chosen)


def metrics(run: shoal.Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
