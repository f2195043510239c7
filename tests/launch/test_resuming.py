"""Resumed with other numbers of actors and environments: the budget is counted in environment steps, whatever an update is."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_envs import Walk

import shoal
from shoal.core.errors import BadInput
from shoal.core.program import Report
from shoal.envs.gymnasium import GymnasiumBatch
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.run.checkpoints import Checkpoints
from shoal.run.folder import RunFolder

T, B, ACTORS = 8, 4, 2
STEPS = 12 * T * B * ACTORS
PPO = {"name": "ppo", "unroll": T, "batch_size": 16, "epochs": 2, "final_rate": 0.1}
NORMALISED = {**PPO, "normalise_obs": True, "normalise_reward": True}
A2C = {"name": "a2c", "unroll": T, "final_rate": 0.1}
DQN = {"name": "dqn", "unroll": T, "batch_size": 16, "warmup": 40, "capacity": 300, "every": 16}
DYNA = {"warmup": 20, "starts": 8, "horizon": 3, "model_hidden": (8,), "model_gradients": 2, "model_batch": 16}
DDPG = {"name": "ddpg", "unroll": T, "batch_size": 16, "warmup": 40, "capacity": 300, "noise": "gaussian"}
GA3C = {"name": "ga3c", "predictors": 1, "trainers": 1, "adjust": False}
SHARED = {"name": "shared_params", "consistency": "lock"}
QUIET: dict[str, Any] = {"eval_episodes": 0, "sinks": ("jsonl",), "quiet": True, "report": False}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # {case: (settings, those that change)}
    "sync": ({"topology": "sync", "algo": NORMALISED}, {"envs": 8}),
    "sync, more actors": ({"topology": "sync", "algo": NORMALISED}, {"actors": 4}),
    "sequential": ({"topology": "sequential", "algo": NORMALISED}, {"envs": 2, "actors": 3}),
    "fused": ({"topology": "sequential", "runtime": "fused", "actors": 1, "algo": NORMALISED}, {"envs": 16}),
    "actor_learner": ({"topology": "actor_learner", "runtime": "threads", "algo": NORMALISED}, {"envs": 2}),
    "lockstep": ({"topology": {"name": "actor_learner", "max_lag": 0}, "algo": PPO}, {"envs": 8, "actors": 1}),
    "two learners": ({"topology": "actor_learner", "learners": 2, "algo": NORMALISED}, {"actors": 4}),
    "one learner after two": ({"topology": "actor_learner", "learners": 2, "algo": PPO}, {"learners": 1}),
    "seed": ({"topology": "seed", "runtime": "threads", "algo": PPO}, {"envs": 2, "actors": 3}),
    "ga3c": ({"topology": GA3C, "runtime": "threads", "algo": A2C}, {"envs": 2}),
    "shared_params": ({"topology": SHARED, "runtime": "processes", "algo": A2C}, {"envs": 8, "actors": 1}),
    "dyna": ({"topology": "dyna", "runtime": "threads", "algo": {**DQN, **DYNA, "name": "dyna_q"}}, {"envs": 8}),
    "another consistency": (
        {"topology": SHARED, "algo": A2C, "report_every": 1},
        {"topology": {"consistency": "gossip"}},
    ),
    "fewer pushes": (
        {"topology": {**SHARED, "push_every": 1}, "algo": DQN, "report_every": 1},
        {"topology": {"push_every": 4}},
    ),
    "one replay for all": (
        {"topology": {**SHARED, "replay": "local"}, "algo": DQN, "report_every": 1},
        {"topology": {"replay": "global"}},
    ),
    "a replay each": (
        {"topology": {**SHARED, "replay": "global"}, "algo": DQN, "report_every": 1},
        {"topology": {"replay": "local"}},
    ),
    "one learner for all": (
        {"topology": SHARED, "algo": DQN, "actors": 1, "report_every": 1},
        {"topology": "sync"},
    ),
    "another topology": ({"topology": "sync", "algo": DQN}, {"topology": SHARED, "actors": 3}),
}


def train(out: Path, **settings: Any) -> shoal.Run:
    common: dict[str, Any] = {"backend": "jax", "runtime": "inline", "actors": ACTORS, "envs": B, "steps": STEPS}
    return shoal.train("CartPole-v1", out=out, **{**common, "net": {"hidden": (8,)}, **settings, **QUIET})


def steps_an_update(run: shoal.Run) -> int:
    blueprint = make_blueprint(run.plan, None, None)
    return blueprint.steps_per_update


def stopped(out: Path, **settings: Any) -> shoal.Run:
    """About half of the budget."""
    run = train(out, **settings, callbacks=[lambda report: report.env_steps >= STEPS / 2])
    spent = run.summary["env_steps"]
    assert STEPS / 2 <= spent <= STEPS
    # Elsewhere the roles may have made all of the few updates before the main one hears of the stop.
    if settings.get("runtime", "inline") == "inline":
        assert spent < STEPS and run.summary["stopped"]
    return run


# What they change is changed in another case too, on the same learner.
SLOW = (
    "sync, more actors",
    "sequential",
    "fewer pushes",
    "lockstep",
    "two learners",
    "one learner after two",
    "one learner for all",
    "seed",
    "ga3c",
    "a replay each",
)


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES])
def test_a_run_goes_on_by_the_steps_that_it_has_made(case: str, tmp_path: Path) -> None:
    settings, changes = CASES[case]
    half = stopped(tmp_path / "run", **settings)
    spent, versions = half.summary["env_steps"], half.summary["updates"]
    reports: list[Report] = []
    total = 2 * STEPS
    rest = shoal.train(resume=half.path, steps=total, callbacks=[reports.append], **changes, **QUIET)
    size = steps_an_update(rest)
    left = math.ceil((total - spent) / size)
    assert rest.summary["updates"] == versions + left and not rest.summary["stopped"]
    assert total <= rest.summary["env_steps"] < total + 4 * size
    told = [report.version for report in reports]
    assert told == sorted(told) and told[0] > versions, "versions only rise"
    progress = [float(report.state.progress) for report in reports]
    assert progress == sorted(progress) and 0 < progress[0] < 1
    # The newest update began when one update's steps were missing; out of step, a few more are counted.
    assert progress[-1] == pytest.approx(1 - size / (spent + left * size), abs=4 * size / total)


def test_the_schedule_goes_on_where_it_stood(tmp_path: Path) -> None:
    half = stopped(tmp_path / "run", topology="sync", algo=PPO)
    rates: list[float] = []
    note = [lambda report: rates.append(float(report.state.progress))]
    shoal.train(resume=half.path, envs=B // 2, callbacks=note, **QUIET)
    size = T * B // 2 * ACTORS
    assert rates == pytest.approx([(half.summary["env_steps"] + i * size) / STEPS for i in range(len(rates))])
    assert len(rates) == (STEPS - half.summary["env_steps"]) // size


def test_lags_are_those_of_the_whole_run(tmp_path: Path) -> None:
    """The first weights after a resume are new again: its reports alone would hide the lag before it."""
    lagged, before = {"name": "actor_learner", "delay": 5}, 10
    half = train(tmp_path / "run", topology=lagged, algo=A2C, callbacks=[lambda report: report.version >= before])
    reports: list[Report] = []
    rest = shoal.train(resume=half.path, callbacks=[reports.append], **QUIET).summary
    means = [report.metrics["lag/versions"] for report in reports]
    assert len(reports) == 2 and max(report.metrics["lag/max"] for report in reports) < half.summary["lag_max"]
    assert rest["lag_max"] >= max(int(lag) for lag in rest["lags"]) >= 5
    assert rest["lag_mean"] == pytest.approx((before * half.summary["lag_mean"] + sum(means)) / (before + len(means)))


def test_statistics_of_another_shape_begin_again_and_that_is_said(tmp_path: Path, capsys: Any) -> None:
    half = stopped(tmp_path / "run", topology="sync", algo=NORMALISED)
    before = Checkpoints(half.folder.checkpoints).load("last").arrays
    capsys.readouterr()
    plan = resolve("CartPole-v1", _loose(half, envs=8))
    said: list[str] = []
    blueprint = make_blueprint(plan, Checkpoints(half.folder.checkpoints).load("last"), None, said.append)
    state = blueprint.initial_state()
    assert state.reward is not None and state.reward.returns.shape == (8 * ACTORS,) and not state.reward.returns.any()
    assert float(state.reward.moments.count) == before["state/reward/moments/count"] > 0, "what they add up to stays"
    assert said == [
        "the reward scale's running returns start over: the batch had 8 environments and has 16 now",
        "resumed with --envs 8 instead of 4: environments and running episodes start over",
    ]
    assert not blueprint.snapshots


def _loose(run: shoal.Run, **changes: Any) -> dict[str, Any]:
    stored = {k: v for k, v in run.folder.read_config().items() if k not in ("machine", "spec", "env")}
    return {**stored, **changes}


class Stroll(Walk):
    """Another environment with the same spaces."""


@pytest.mark.parametrize(
    ("env", "changes", "told"),
    [
        (Walk, {"seed": 1}, "resumed with --seed 1 instead of 0: environments and running episodes start over\n"),
        (Stroll, {}, r"resumed with environment .*Stroll instead of tiny_envs:Walk: environments and running episodes"),
    ],
    ids=["seed", "environment"],
)
def test_no_episode_continues_with_another_seed_or_in_another_environment(
    env: Any, changes: Any, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Its actions would be replayed in an episode that they do not belong to."""
    common = {"runtime": "inline", "topology": "sequential", "actors": 1, "envs": B, "net": {"hidden": (8,)}}
    stop = [lambda report: report.version == 2]
    half = shoal.train(Walk, out=tmp_path / "run", steps=4 * T * B, algo=A2C, callbacks=stop, **common, **QUIET)
    assert "actor-0" in {name.split("/")[1] for name in half._loaded().arrays if name.startswith("part/")}
    monkeypatch.setattr(GymnasiumBatch, "restore", lambda self, arrays: pytest.fail("an episode was replayed"))
    rest = shoal.train(env, resume=half.path, **changes, **QUIET)
    assert rest.summary["updates"] == 4 and re.search(told, capsys.readouterr().err)


def test_the_kind_of_noise_may_change_and_change_back(tmp_path: Path) -> None:
    """Correlated noise has a state for each environment, independent noise has none."""
    common = {"backend": "jax", "runtime": "inline", "topology": "sequential", "actors": 1, "envs": B}
    common |= {"net": {"hidden": (8,)}, "algo": DDPG, "steps": 8 * T * B}
    once: dict[str, Any] = {"callbacks": [lambda report: True], **QUIET}
    run = shoal.train("Pendulum-v1", out=tmp_path / "run", **common, **once)
    kinds: tuple[dict[str, str], ...] = (
        {"noise": "ou", "warmup_noise": "ar1"},
        {"noise": "gaussian", "warmup_noise": "uniform"},
    )
    for kind, names in zip(kinds, ({"noise", "warmup"}, set[str]()), strict=True):
        before = run.summary["updates"]
        run = shoal.train(resume=run.path, algo=kind, **once)
        assert run.summary["updates"] == before + 1
        assert {name.split("/carry/")[1] for name in run._loaded().arrays if "/carry/" in name} == names


def test_the_same_sizes_say_nothing_and_keep_everything(tmp_path: Path) -> None:
    half = stopped(tmp_path / "run", topology="sync", algo=NORMALISED)
    said: list[str] = []
    loaded = Checkpoints(half.folder.checkpoints).load("last")
    blueprint = make_blueprint(resolve("CartPole-v1", _loose(half)), loaded, None, said.append)
    assert not said and {"actor-0", "actor-1", "episodes-0"} <= blueprint.snapshots.keys()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"net": {"hidden": (16,)}}, r"'params/.*' \(weights\) has shape .* --net.hidden was \[8\] and is \[16\]"),
        ({"algo": {"normalise_obs": False}}, r"'obs/.*does not use: --algo.normalise-obs was True and is False"),
        (
            {"algo": {"name": "a2c", "unroll": T}},
            r"--algo is 'a2c': this run was trained by 'ppo', .*--from .*run begins",
        ),
    ],
)
def test_what_cannot_fit_is_refused_in_one_line(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    half = stopped(tmp_path / "run", topology="sync", algo=NORMALISED)
    config = RunFolder.open(half.path).config_path.read_bytes()
    with pytest.raises(BadInput, match=told) as refused:
        shoal.train(resume=half.path, **changes, **QUIET)
    assert "\n" not in str(refused.value) and refused.value.exit_code == 2
    assert RunFolder.open(half.path).config_path.read_bytes() == config, "the run stays what it was"


def test_the_reward_scale_may_come_and_go(tmp_path: Path, capsys: Any) -> None:
    half = stopped(tmp_path / "run", topology="sync", algo=NORMALISED)
    less = shoal.train(resume=half.path, steps=2 * STEPS, algo={"normalise_reward": False}, **QUIET)
    assert "the reward scale is left out: --algo.normalise-reward was True and is False" in capsys.readouterr().err
    assert less.summary["env_steps"] == 2 * STEPS
    shoal.train(resume=half.path, steps=3 * STEPS, algo={"normalise_reward": True}, **QUIET)
    assert "the reward scale starts over: --algo.normalise-reward was False and is True" in capsys.readouterr().err


def test_a_checkpoint_without_settings_still_goes_on(tmp_path: Path) -> None:
    """As earlier versions wrote them: sizes are taken to be the same, and a misfit still has one line."""
    half = stopped(tmp_path / "run", topology="sync", algo=NORMALISED)
    loaded = Checkpoints(half.folder.checkpoints).load("last")
    old = loaded._replace(meta={k: v for k, v in loaded.meta.items() if k not in ("config", "lasting")})
    blueprint = make_blueprint(resolve("CartPole-v1", _loose(half)), old, None)
    assert "actor-0" in blueprint.snapshots and blueprint.spent == half.summary["env_steps"]
    other = resolve("CartPole-v1", _loose(half, net={"name": "actor_critic", "hidden": (16,)}))
    with pytest.raises(BadInput, match="leave the settings of --net and --algo as they were"):
        make_blueprint(other, old, None)


@pytest.mark.parametrize("algo", [A2C, {**DQN, "replay": "prioritized"}])
def test_workers_of_another_size_begin_again_and_that_is_said(algo: dict[str, Any], tmp_path: Path) -> None:
    """As earlier versions wrote them, which may have chosen other defaults or noted no settings."""
    kind = {**SHARED, "replay": "local"}
    half = stopped(tmp_path / "run", topology=kind, algo=algo, report_every=1)
    loaded = Checkpoints(half.folder.checkpoints).load("last")
    old = loaded._replace(meta={k: v for k, v in loaded.meta.items() if k != "config"})
    stored = half.folder.read_config()["topology"]
    other = {"replay": "global"} if algo["name"] == "dqn" else {"consistency": "gossip"}
    for topology, lines in ((stored, 0), ({**stored, **other}, 1)):
        plan = resolve("CartPole-v1", _loose(half, topology=topology))
        blueprint = make_blueprint(plan, old, None)
        assert "worker-1" in blueprint.snapshots
        program = plan.topology_class(plan.topology).program(blueprint)
        assert len(program.notes) == lines and all("begin again" in note for note in program.notes)
        built = next(role.build for role in program.roles if role.name == "worker-1")
        assert isinstance(built, partial) and ("worker-1" in built.args[2].snapshots) == (not lines)


def test_a_budget_that_is_spent_asks_for_no_update(tmp_path: Path) -> None:
    run = train(tmp_path / "run", topology="sync", algo=NORMALISED)
    again = shoal.train(
        resume=run.path, envs=16, **QUIET
    )  # its settings are the new ones, its checkpoint is the old one
    assert again.summary["updates"] == run.summary["updates"] and again.params_hash == run.params_hash
    assert np.isclose(again.summary["env_steps"], STEPS)


def test_a_run_with_nothing_left_to_do_keeps_its_weights(tmp_path: Path) -> None:
    """As after a kill between the last checkpoint and the files that follow it."""
    run = train(tmp_path / "run", algo=A2C)
    run.folder.policy_path.unlink()
    run.folder.summary_path.unlink()
    again = shoal.train(resume=tmp_path / "run", **QUIET)
    assert again.summary["ended"] == "budget" and again.summary["updates"] == run.summary["updates"]
    assert again.summary["params_sha256"] == run.summary["params_sha256"] == again.params_hash
    assert run.folder.policy_path.exists()
