"""N + N updates are 2N updates: bit for bit where environments can be restored, without a jump elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_envs import Walk

import shoal
from shoal.core.program import Report
from shoal.core.weights import params_hash
from shoal.experiment import resolve
from shoal.launch.training import Training
from shoal.run.checkpoints import Checkpoints
from shoal.run.folder import RunFolder

N, T, B, ACTORS = 3, 8, 4, 2
PPO = {"name": "ppo", "unroll": T, "batch_size": 16, "epochs": 2, "final_rate": 0.1}
NORMALISED = {**PPO, "normalise_obs": True, "normalise_reward": True}
GRU = {"hidden": (8,), "cell": "gru", "cell_size": 8}
MLP = {"hidden": (8,)}
INLINE = {"runtime": "inline", "topology": "sync", "actors": ACTORS}
FUSED = {"runtime": "fused", "topology": "sequential", "actors": 1}
DQN = {"name": "dqn", "unroll": T, "batch_size": 16, "warmup": 40, "capacity": 150, "every": 4, "target_every": 20}
PRIORITIZED = {**DQN, "replay": "prioritized", "n_step": 3, "normalise_obs": True, "normalise_reward": True}
OFF_POLICY = {"unroll": T, "batch_size": 16, "warmup": 40, "capacity": 150, "updates_per_step": 0.25}
DDPG = {"name": "ddpg", **OFF_POLICY, "warmup": 120, "replay": "prioritized", "warmup_noise": "ar1"}
SAC = {"name": "sac", **OFF_POLICY, "normalise_obs": True, "normalise_reward": True}
TD3 = {"name": "td3", **OFF_POLICY, "warmup": 20}
CASES: dict[str, dict[str, Any]] = {
    "jax": {"env": "CartPole-v1", "backend": "jax", "algo": PPO, "net": MLP, **INLINE},
    "gymnasium": {"env": "CartPole-v1", "backend": "gymnasium", "algo": NORMALISED, "net": MLP, **INLINE},
    "gymnasium recurrent": {"env": Walk, "algo": PPO, "net": GRU, **INLINE},
    "gymnasium sequential": {"env": Walk, "algo": PPO, "net": MLP, **INLINE, "topology": "sequential"},
    "replay": {"env": "CartPole-v1", "backend": "jax", "algo": DQN, "net": MLP, **INLINE},
    "prioritized replay": {"env": Walk, "algo": PRIORITIZED, "net": MLP, **INLINE, "topology": "sequential"},
    "actor_learner in lockstep": {
        **INLINE,
        "env": "CartPole-v1",
        "backend": "jax",
        "algo": NORMALISED,
        "net": MLP,
        "topology": {"name": "actor_learner", "max_lag": 0},
    },
    "noise": {"env": "Pendulum-v1", "backend": "jax", "algo": DDPG, "net": MLP, **INLINE},
    "temperature": {"env": "Pendulum-v1", "backend": "jax", "algo": SAC, "net": MLP, **INLINE},
    "fused replay": {"env": "Pendulum-v1", "algo": TD3, "net": MLP, **FUSED},
    "sequences": {
        "env": Walk,
        "algo": {**PRIORITIZED, "sequence": 5, "burn_in": 2},
        "net": {**GRU, "cell": "lstm"},
        **INLINE,
    },
    "fused sequences": {"env": "Pendulum-v1", "algo": SAC, "net": GRU, **FUSED},
    "fused": {"env": "CartPole-v1", "algo": NORMALISED, "net": MLP, **FUSED},
    "fused recurrent": {"env": "CartPole-v1", "algo": PPO, "net": GRU, **FUSED},
}


def train(out: Path, updates: int, stop_at: int | None = None, **settings: Any) -> shoal.Run:
    env = settings.pop("env")
    return shoal.train(
        env,
        out=out,
        envs=B,
        steps=updates * T * B * int(settings["actors"]),
        callbacks=[] if stop_at is None else [lambda report: report.version >= stop_at],
        **settings,
        **QUIET,
    )


QUIET: dict[str, Any] = {"eval_episodes": 0, "sinks": ("jsonl",), "quiet": True, "report": False}


def resume(run: shoal.Run, env: Any) -> shoal.Run:
    return shoal.train(None if isinstance(env, str) else env, resume=run.path, **QUIET)


# Their parts are in other cases: JAX with noise, sequential and a replay with priorities, fused and a cell with Gymnasium.
SLOW = ("jax", "gymnasium sequential", "replay", "fused recurrent", "fused sequences")


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES])
def test_half_and_half_is_the_whole_bit_for_bit(case: str, tmp_path: Path) -> None:
    settings = CASES[case]
    whole = train(tmp_path / "whole", 2 * N, **settings)
    half = train(tmp_path / "half", 2 * N, stop_at=N - 1 if "fused" in case else N, **settings)
    before = half.params_hash
    assert 0 < half.summary["updates"] < 2 * N
    rest = resume(half, settings["env"])
    assert rest.path == half.path and rest.summary["updates"] == whole.summary["updates"] == 2 * N
    assert rest.params_hash == whole.params_hash != before
    assert rest.summary["env_steps"] == whole.summary["env_steps"]
    assert rest.summary["return_mean"] == whole.summary["return_mean"], "running episodes went on, and the window"


def test_without_schedules_the_budget_changes_no_bit(tmp_path: Path) -> None:
    settings = {**CASES["jax"], "algo": {"name": "a2c", "unroll": T, "final_rate": 1.0}}
    short = train(tmp_path / "short", 5 * N, **settings)
    long = train(tmp_path / "long", 10**9, stop_at=5 * N, **settings)
    assert long.summary["ended"] == "stopped" and short.summary["ended"] == "budget"
    assert long.params_hash == short.params_hash


def test_overlap_goes_on_from_the_same_weights(tmp_path: Path) -> None:
    """With overlap the first unroll after a resume has no lag, so the bits differ; what was learnt is all there."""
    pytest.importorskip("envpool")
    settings = {**CASES["jax"], "backend": "envpool", "runtime": "threads"}
    run = train(tmp_path / "run", 2 * N, stop_at=N, **settings)
    assert run.summary["lag_max"] == 1
    stored = {k: v for k, v in run.folder.read_config().items() if k not in ("machine", "spec")}
    plan = resolve(stored.pop("env"), stored)
    loaded = Checkpoints(run.folder.checkpoints).load("last")
    training = Training(plan, RunFolder.open(run.path), loaded=loaded, quiet=True)
    assert params_hash(training.blueprint.initial_state().params) == run.params_hash
    assert training.blueprint.start == N
    rest = resume(run, settings["env"])
    assert rest.summary["updates"] == 2 * N and rest.summary["env_steps"] == 2 * N * T * B * ACTORS


@pytest.mark.parametrize("runtime", ["threads"])
def test_no_jump_in_return(runtime: str, tmp_path: Path) -> None:
    """Stop when it has learnt something, and go on: the episodes right after are as good as those right before."""
    pytest.importorskip("envpool")
    returns: list[float] = []

    def note(report: Report) -> bool:
        returns.extend(episode.ret for episode in report.episodes)
        return len(returns) > 200 and float(np.mean(returns[-50:])) > 100

    algo = {"name": "ppo", "learning_rate": 2.5e-3, "unroll": 32, "gamma": 0.98, "lam": 0.9, "reward_scale": 0.1}
    settings = {
        "algo": algo,
        "net": {"hidden": (16,)},
        "runtime": runtime,
        "backend": "envpool",
        "actors": 2,
        "envs": 16,
    }
    run = shoal.train("CartPole-v1", out=tmp_path / "run", steps=400_000, callbacks=[note], **settings, **QUIET)
    assert run.summary["stopped"]
    before, returns[:] = float(np.mean(returns[-50:])), []

    def until_a_hundred(report: Report) -> bool:
        returns.extend(episode.ret for episode in report.episodes)
        return len(returns) >= 100

    again = shoal.train(resume=run.path, callbacks=[until_a_hundred], **QUIET)
    assert again.summary["env_steps"] > run.summary["env_steps"]
    # New environments begin with short episodes only because long ones take longer to end: so all of the first hundred.
    assert float(np.mean(returns[:100])) > 0.6 * before


def test_resume_of_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = train(tmp_path / "run", N, **CASES["gymnasium sequential"])
    before = run.params_hash
    again = resume(run, Walk)
    assert again.params_hash == before and again.summary["updates"] == N


@pytest.mark.parametrize("runtime", ["threads"])
def test_the_replay_is_there_again_where_environments_begin_anew(runtime: str, tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    rows: list[float] = []

    def note(report: Report) -> bool:
        rows.append(report.metrics["replay/rows"])
        return report.version == N

    settings = {**CASES["replay"], "backend": "envpool", "runtime": runtime}
    run = train(tmp_path / "run", 2 * N, stop_at=N, **settings)
    again = shoal.train(resume=run.path, callbacks=[note], **QUIET)
    assert again.summary["updates"] == 2 * N
    assert rows[0] == 150, "full at once: it had been full, or nearly so, when the run was stopped"
