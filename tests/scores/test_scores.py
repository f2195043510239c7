"""Scores on known environments, over several seeds. Slow; one of each kind is part of every test run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.program import Report
from shoal.envs.booster.regulator import BASELINES, regulate
from shoal.envs.booster.task import Booster

pytestmark = pytest.mark.slow


def train(env: str, out: Path, seed: int, **settings: Any) -> shoal.Run:
    return shoal.train(
        env, seed=seed, out=out / f"run-{seed}", quiet=True, report=False, **{"eval_episodes": 0, **settings}
    )


@pytest.mark.ci
def test_cartpole_is_solved_in_seconds(tmp_path: Path) -> None:
    run = train("CartPole-v1", tmp_path, 0, algo="ppo", runtime="fused", until_return=475)
    assert run.summary["solved_at_s"] is not None
    assert run.evaluate(20).mean >= 450


@pytest.mark.parametrize("algo", ["ppo", "a2c", "reinforce"])
def test_cartpole_fused(algo: str, tmp_path: Path) -> None:
    for seed in range(3):
        run = train("CartPole-v1", tmp_path, seed, algo=algo, runtime="fused", until_return=475)
        assert run.summary["solved_at_s"] is not None, (algo, seed, run.summary["return_mean"])
        assert run.evaluate(50).mean >= 450, (algo, seed)


@pytest.mark.timeout(900)
def test_lunar_lander_is_solved(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    for seed in range(3):
        run = train("LunarLander-v3", tmp_path, seed, algo="ppo")
        assert run.evaluate(100).mean >= 200, seed


def test_cartpole_by_dqn(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    for seed in range(2):
        run = train("CartPole-v1", tmp_path, seed, algo="dqn", until_return=475)
        assert run.summary["solved_at_s"] is not None, (seed, run.summary["return_mean"])
        assert run.evaluate(50).mean >= 400, seed


def test_hidden_velocities_are_remembered_by_recurrent_dqn(tmp_path: Path) -> None:
    run = train("shoal/MaskedCartPole-v0", tmp_path, 0, algo="dqn", runtime="fused", until_return=195)
    assert run.summary["solved_at_s"] is not None, run.summary["return_mean"]


@pytest.mark.timeout(900)
def test_hidden_velocities_are_remembered_by_recurrent_sac(tmp_path: Path) -> None:
    run = train("shoal/MaskedPendulum-v0", tmp_path, 0, algo="sac", runtime="fused")
    assert run.evaluate(50).mean >= -250


@pytest.mark.timeout(900)
def test_lunar_lander_is_solved_by_dqn(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    for seed in range(2):
        run = train("LunarLander-v3", tmp_path, seed, algo="dqn", until_return=200)
        assert run.summary["solved_at_s"] is not None, (seed, run.summary["return_mean"])
        assert run.evaluate(100).mean >= 200, seed


@pytest.mark.timeout(900)
@pytest.mark.parametrize("topology", ["sync", "actor_learner"])
def test_lunar_lander_by_one_learner_of_a2c(topology: str, tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    run = train("LunarLander-v3", tmp_path, 1, algo="a2c", topology=topology, until_return=200)
    assert run.summary["return_mean"] > 150, "settings of workers that learn alone end below -500 here"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("consistency", "actors"), [("hogwild", 2), ("lock", 2), ("sharded", 2), ("hogwild", 8)])
def test_lunar_lander_by_workers_on_shared_parameters(consistency: str, actors: int, tmp_path: Path) -> None:
    """A3C. Eight workers have the weights of two lags ago and more: there it is enough that they learn."""
    pytest.importorskip("envpool")
    topology = {"name": "shared_params", "consistency": consistency}
    more: dict[str, Any] = {"until_return": 200} if actors == 2 else {"steps": 800_000, "envs": 16}
    run = train("LunarLander-v3", tmp_path, 0, algo="a2c", topology=topology, actors=actors, **more)
    if actors == 2:
        assert run.summary["solved_at_s"] is not None, run.summary["return_mean"]
        assert run.evaluate(50, sample=True).mean >= 100  # the first mean of 200 flatters
    else:
        assert run.summary["return_mean"] > 0 and run.summary["lag_mean"] > 2


def test_pendulum_swings_up(tmp_path: Path) -> None:
    for seed in range(3):
        run = train("Pendulum-v1", tmp_path, seed, algo="ppo", runtime="fused")
        assert run.evaluate(30).mean > -250, seed


@pytest.mark.timeout(900)
def test_another_split_of_the_same_environments_learns_alike(tmp_path: Path) -> None:
    """1 x 8 and 2 x 4 round differently; over five seeds their curves cannot be told apart."""
    from scipy.stats import mannwhitneyu

    areas: dict[int, list[float]] = {1: [], 2: []}
    for actors, found in areas.items():
        for seed in range(5):
            returns: list[float] = []

            def note(report: Report, into: list[float] = returns) -> None:
                into.extend(episode.ret for episode in report.episodes)

            shoal.train(
                "CartPole-v1",
                algo="ppo",
                backend="gymnasium",
                runtime="inline",
                topology="sync",
                actors=actors,
                envs=8 // actors,
                steps=40_000,
                seed=seed,
                eval_episodes=0,
                callbacks=[note],
                out=tmp_path / f"{actors}-{seed}",
                quiet=True,
                report=False,
            )
            found.append(float(np.mean(returns)))
    assert mannwhitneyu(areas[1], areas[2]).pvalue > 0.05, areas


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_pendulum_swings_up_by_continuous_control(algo: str, tmp_path: Path) -> None:
    """The tuned settings and their budget: 100 greedy episodes in Gymnasium's own environment."""
    for seed in range(3):
        run = train("Pendulum-v1", tmp_path, seed, algo=algo, runtime="fused")
        assert run.summary["env_steps"] <= 21_000
        assert run.evaluate(100).mean > -170, (algo, seed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("env", "algo"), [("shoal/Booster-v0", "dqn"), ("shoal/BoosterContinuous-v0", "td3")])
def test_the_booster_is_regulated_better_than_by_the_tuned_regulator(env: str, algo: str, tmp_path: Path) -> None:
    """On the plant, from the same starts and with the same noise: a fifth less error."""
    for seed in range(2):
        pi = regulate(Booster(plant=True), BASELINES["pi-tuned"], 300, seed).returns.mean()
        run = train(env, tmp_path, seed, algo=algo, runtime="fused")
        assert run.evaluate(300).mean > 0.8 * pi, (algo, seed, pi)
