"""`fused` compiles the same loop into one function: it may round differently, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.launch.saved import under

T, B = 8, 4


def params_after(updates: int, runtime: str, out: Path, **settings: Any) -> np.ndarray:
    run = shoal.train(
        "CartPole-v1",
        backend="jax",
        topology="sequential",
        runtime=runtime,
        actors=1,
        envs=B,
        steps=T * B * updates,
        seed=3,
        eval_episodes=0,
        sinks=("jsonl",),
        out=out / runtime,
        quiet=True,
        report=False,
        **settings,
    )
    assert run.summary["updates"] == updates
    params = under(run._loaded().arrays, "state/params/")
    return np.concatenate([params[name].ravel() for name in sorted(params)])


KINDS = ("ppo", "a2c normalised", "gru")
AFTER_THREE = [  # what goes from one update to the next is most where observations and rewards are normalised
    pytest.param(kind, 3, marks=() if kind == "a2c normalised" else pytest.mark.slow) for kind in KINDS
]


@pytest.mark.parametrize(("kind", "updates"), [*((kind, 1) for kind in KINDS), *AFTER_THREE])
def test_fused_equals_inline_but_for_rounding(kind: str, updates: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"net": {"hidden": (8,)}, "algo": {"name": "ppo", "unroll": T, "batch_size": 16}}
    if kind == "a2c normalised":
        settings["algo"] = {"name": "a2c", "unroll": T, "normalise_obs": True, "normalise_reward": True}
    if kind == "gru":
        settings["net"] = {"hidden": (8,), "cell": "gru", "cell_size": 8}
    fused, inline = (params_after(updates, runtime, tmp_path, **settings) for runtime in ("fused", "inline"))
    np.testing.assert_allclose(fused, inline, atol=1e-5 if updates == 1 else 1e-3)
    other = {**settings, "algo": {**settings["algo"], "gamma": 0.5}}
    if updates == 1:
        assert np.abs(params_after(1, "inline", tmp_path / "other", **other) - inline).max() > 1e-3
