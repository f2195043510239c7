"""A resumed run explores by keys that it has not drawn before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.acting import collector, inference

T, B = 8, 4
QUIET: dict[str, Any] = {"eval_episodes": 0, "sinks": ("jsonl",), "quiet": True, "report": False}
A2C = {"name": "a2c", "unroll": T}
GA3C = {"name": "ga3c", "predictors": 1, "trainers": 1, "adjust": False}
WINDOW = {"name": "actor_learner", "stream": "window", "batch_unrolls": 1}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The key of each call of the policy."""
    keys: list[bytes] = []
    call, key_data = inference.Batcher._call, collector.key_data

    def called(self: Any, *rest: Any) -> Any:
        keys.append(np.asarray(self._key).tobytes() + bytes(str(self.calls), "ascii"))
        return call(self, *rest)

    def made(*path: int) -> np.ndarray:
        key = key_data(*path)
        if len(path) > 1 and path[1] == collector.ACTING:
            keys.append(key.tobytes())
        return key

    monkeypatch.setattr(inference.Batcher, "_call", called)
    monkeypatch.setattr(collector, "key_data", made)
    return keys


@pytest.mark.parametrize(
    ("topology", "runtime", "algo", "changes"),
    [
        ("seed", "inline", A2C, {}),
        (GA3C, "inline", A2C, {}),
        (WINDOW, "inline", A2C, {}),
        ({"name": "shared_params", "consistency": "lock"}, "threads", A2C, {}),
        ({"name": "shared_params", "consistency": "lock"}, "inline", A2C, {"actors": 4}),
        ("sync", "inline", A2C, {"envs": 1}),
    ],
)
def test_keys_go_on(
    topology: Any, runtime: str, algo: Any, changes: dict[str, Any], tmp_path: Path, drawn: list[bytes]
) -> None:
    common = {"backend": "jax", "actors": 2, "envs": B, "net": {"hidden": (8,)}, "runtime": runtime, "algo": algo}
    common["report_every"] = 1  # so that the stop comes soon
    stop = [lambda report: report.env_steps >= 20 * T * B]
    run = shoal.train(
        "CartPole-v1", out=tmp_path / "run", steps=120 * T * B, callbacks=stop, topology=topology, **common, **QUIET
    )
    before = set(drawn)
    drawn.clear()
    shoal.train(resume=run.path, **changes, **QUIET)
    # Batches warm up by a key that no action is taken by: that of a fresh run's first call.
    fresh = [key for key in drawn if key not in before]
    again = [key for key in drawn if key in before]
    assert len(fresh) > 10 and len(set(again)) <= 1, (len(fresh), len(again))
