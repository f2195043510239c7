"""Gradients one at a time: what a worker says of them, and the unroll that it takes none from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import shoal
from shoal.core.program import Context, Fault, Report
from shoal.core.trajectory import as_trajectory
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.gradient_steps import CycleMetrics, Gradient, UnrollGradients
from shoal.learning.soundness import BAD_UPDATE, Watch

T, B = 8, 4


def gradient(policy: float, moved: bool | None) -> Gradient:
    groups = None if moved is None else np.array([True, moved])
    return Gradient(np.zeros(1), {"loss/policy": policy, "seen/max": policy}, False, groups)


def test_metrics_are_shown_for_whole_cycles() -> None:
    metrics = CycleMetrics()
    metrics.add(gradient(0.0, moved=False))
    assert metrics.take() == {}
    metrics.add(gradient(4.0, moved=True))
    metrics.add(gradient(0.0, moved=False))
    assert metrics.take() == {"loss/policy": 2.0, "seen/max": 4.0}
    assert metrics.take() == {"loss/policy": 2.0, "seen/max": 4.0}
    metrics.add(gradient(6.0, moved=True))
    assert metrics.take() == {"loss/policy": 3.0, "seen/max": 6.0}
    for policy in (1.0, 3.0):
        metrics.add(gradient(policy, moved=None))
    assert metrics.take() == {"loss/policy": 2.0, "seen/max": 3.0}


def test_a_delayed_policys_loss_does_not_alternate_with_nothing(tmp_path: Path) -> None:
    """Servers of slices, one gradient for each unroll: every second one leaves the policy out."""
    shown: list[float] = []

    def note(report: Report) -> None:
        if "loss/policy" in report.metrics:
            shown.append(report.metrics["loss/policy"])

    algo = {"name": "td3", "unroll": T, "batch_size": 16, "warmup": T * B, "updates_per_step": 1 / (T * B)}
    shoal.train(
        "Pendulum-v1",
        out=tmp_path / "run",
        backend="jax",
        algo=algo,
        net={"hidden": (8,)},
        topology={"name": "shared_params", "consistency": "sharded"},
        runtime="inline",
        actors=1,
        envs=B,
        steps=12 * T * B,
        report_every=1,
        eval_episodes=0,
        sinks=("jsonl",),
        callbacks=[note],
        quiet=True,
        report=False,
    )
    assert len(shown) > 5
    assert all(loss != 0 for loss in shown)


def test_an_unroll_that_overflows_the_statistics_is_dropped() -> None:
    algo = {"name": "a2c", "unroll": T, "normalise_obs": True}
    settings = {"algo": algo, "actors": 1, "envs": B, "net": {"hidden": (8,)}, "backend": "jax"}
    blueprint = make_blueprint(resolve("CartPole-v1", {**settings, "topology": "shared_params"}), None, None)
    faults: list[Fault] = []
    steps = UnrollGradients(blueprint, Watch(Context(name="worker-0", fault=faults.append)))
    state, slot = blueprint.initial_state(), blueprint.record.empty()
    slot["valid"][...], slot["discount"][...] = True, 1.0
    slot["obs"][3, 1, 2] = 1e20
    acted = blueprint.algorithm.actor_state(state)
    after, due = steps.take(state, acted, as_trajectory(slot), 0, 0.0)
    assert after is state and due == 0
    assert [fault.kind for fault in faults] == [BAD_UPDATE] and "observations up to 1e+20" in faults[0].detail
    slot["obs"][3, 1, 2] = 1.0
    after, due = steps.take(state, acted, as_trajectory(slot), 1, 0.0)
    assert due == 1 and float(after.obs.count) == T * B and len(faults) == 1
