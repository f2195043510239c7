"""`fused`: what one call keeps for reports is bounded, and changes nothing that is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from shoal import launch
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.runtimes import fused

T, B = 8, 4
SETTINGS: dict[str, Any] = {
    "algo": {"name": "a2c", "unroll": T},
    "runtime": "fused",
    "envs": B,
    "net": {"hidden": (8,)},
}


def plan(updates: int, every: int) -> Any:
    return resolve("CartPole-v1", {**SETTINGS, "steps": updates * T * B, "report_every": every, "sinks": ["jsonl"]})


def learners_kept(every: int, driven: bool) -> int:
    """Learners that the compiled call has room for."""
    session = fused.FusedSession(make_blueprint(plan(10_000, every), None, None, driven=driven), lambda: False)
    keys, progress = np.zeros((session._capacity, 3, 2), np.uint32), np.zeros(session._capacity, np.float32)
    _, found = jax.eval_shape(session._call, session.loop, keys, progress, np.int32(0), np.int32(0))
    return int(jax.tree.leaves(found.learners)[0].shape[0])


def test_a_call_has_room_for_few_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learners_kept(every=1, driven=False) == fused.MOST_UPDATES + 2, "small ones: all of them"
    assert learners_kept(every=1, driven=True) == 3, "a driven run ends its call at each report"
    monkeypatch.setattr(fused, "LOOK_BYTES", 1)
    assert learners_kept(every=4, driven=False) == 3


def test_a_loop_goes_on_with_another_kind_of_noise_and_back() -> None:
    parts: dict[str, Any] = {}
    for noise, carry in (("gaussian", set[str]()), ("ou", {"noise"}), ("gaussian", set[str]())):
        algo = {"name": "ddpg", "unroll": T, "batch_size": 16, "warmup": 40, "capacity": 300, "noise": noise}
        settings = {**SETTINGS, "algo": algo, "steps": 10 * T * B}
        blueprint = replace(make_blueprint(resolve("Pendulum-v1", settings), None, None), snapshots=parts)
        session = fused.FusedSession(blueprint, lambda: False)
        assert session.loop.carry.keys() == carry and bool(session.loop.first.all()) == (not parts), (
            "the rest is restored"
        )
        parts = {name: dict(part.arrays) for name, part in session.snapshots().items()}
        parts["loop"]["first"] = np.zeros(B, bool)


def test_shorter_calls_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name, room in (("all", fused.LOOK_BYTES), ("one", 1)):
        monkeypatch.setattr(fused, "LOOK_BYTES", room)
        result = launch.run(plan(12, 2), out=tmp_path / name, quiet=True)
        found.append(result.summary["params_sha256"])
    assert found[0] == found[1]
