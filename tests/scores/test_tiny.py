"""Tiny problems, learnt in seconds by each algorithm, for each kind of action space, and with memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tiny_envs import PARTS, SPACES, Bandit, Chain, Identity, Mirror, Picture, Recall

import shoal
from shoal.algos import ALGOS

# One schedule for all: what differs between the algorithms is how many gradients they make of a batch.
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"learning_rate": 5e-3, "batch_size": 256, "epochs": 4},
    "a2c": {"learning_rate": 3e-2, "max_grad_norm": 1.0},
    "reinforce": {"learning_rate": 2e-2},
    "dqn": {
        "learning_rate": 3e-3,
        "batch_size": 64,
        "every": 8,
        "capacity": 20_000,
        "explore": 0.3,
        "reward_scale": 1.0,
    },
}
CONTINUOUS = {"ddpg", "sac", "td3"}  # they have a bandit of their own: tests/algos/test_continuous.py
assert set(SETTINGS) | CONTINUOUS == {name for name, entry in ALGOS.items() if not entry.topologies}
RUNTIME = {"dqn": "inline"}  # where its settings were chosen


def learn(
    env: Any, out: Path, algo: str, steps: int, runtime: str = "", net: dict[str, Any] | None = None, **own: Any
) -> float:
    """The mean return of the last 100 training episodes, actions sampled. `own` are settings of the algorithm."""
    plain = {"unroll": 16, "final_rate": 0.1, "normalise_obs": False, "normalise_reward": False}
    run = shoal.train(
        env,
        algo={"name": algo, **plain, **SETTINGS[algo], **own},
        net={"hidden": (16,), **(net or {})},
        runtime=runtime or RUNTIME.get(algo, "fused"),
        backend="jax" if algo in RUNTIME else "auto",
        topology="sequential",
        actors=1,
        envs=32,
        steps=steps,
        seed=0,
        eval_episodes=0,
        sinks=("jsonl",),
        out=out / "run",
        quiet=True,
        report=False,
    )
    mean = run.summary["return_mean"]
    assert mean is not None
    return float(mean)


def identities() -> Iterator[Any]:
    """Every algorithm on every kind of space that it can have; `make test` runs the plainest for each, and two more for PPO: with
    it they share everything but the loss."""
    for kind, algo in product(PARTS, SETTINGS):
        if algo != "dqn" or kind == "Discrete":  # action values need one Discrete space
            quick = kind in (("Discrete", "Box", "mixed") if algo == "ppo" else ("Discrete",))
            yield pytest.param(kind, algo, marks=() if quick else pytest.mark.slow)


def mostly_slow(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """All cases, of which `make test` runs these: each compiles a training of its own, which takes longer than to train."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(("kind", "algo"), list(identities()))
def test_identity(kind: str, algo: str, tmp_path: Path) -> None:
    steps = {"ppo": 60_000, "a2c": 120_000, "reinforce": 120_000, "dqn": 20_000}[algo]
    assert learn(Identity(kind), tmp_path, algo, steps, gamma=0.0) > 8 * 0.85


@pytest.mark.parametrize("algo", mostly_slow(SETTINGS, "ppo"))
def test_bandit(algo: str, tmp_path: Path) -> None:
    assert learn(Bandit(), tmp_path, algo, 60_000) > 0.85


@pytest.mark.parametrize("algo", mostly_slow(SETTINGS, "ppo", "dqn"))
def test_chain_needs_to_look_ahead(algo: str, tmp_path: Path) -> None:
    assert learn(Chain(), tmp_path, algo, 60_000, gamma=0.98) > 4.5


@pytest.mark.parametrize(
    "own",
    [
        pytest.param({"n_step": 3}, marks=pytest.mark.slow),  # these two are part of the last
        pytest.param({"replay": "prioritized"}, marks=pytest.mark.slow),
        {"double": False, "loss": "mse"},
        {"target_every": 1, "tau": 0.01},
        {"replay": "prioritized", "n_step": 3, "replacement": False, "normalise_obs": True, "normalise_reward": True},
    ],
    ids=lambda own: "-".join(own),
)
def test_chain_by_every_kind_of_dqn(own: dict[str, Any], tmp_path: Path) -> None:
    net = {"dueling": "replay" in own}
    assert learn(Chain(), tmp_path, "dqn", 20_000, net=net, gamma=0.98, **own) > 4.5


def test_chain_without_looking_ahead_takes_what_is_near(tmp_path: Path) -> None:
    assert learn(Chain(), tmp_path, "ppo", 60_000, gamma=0.0) < 2


@pytest.mark.parametrize("cell", mostly_slow(["lstm", "gru"], "lstm"))
def test_a_cell_remembers(cell: str, tmp_path: Path) -> None:
    assert learn(Recall(), tmp_path, "ppo", 150_000, net={"cell": cell, "cell_size": 16}) > 0.9


@pytest.mark.slow
def test_without_a_cell_nothing_is_remembered(tmp_path: Path) -> None:
    assert learn(Recall(), tmp_path, "ppo", 100_000) < 0.6


def test_pictures(tmp_path: Path) -> None:
    net = {"conv": ("8x4/4",)}
    assert learn(Picture(), tmp_path / "ppo", "ppo", 40_000, net=net, gamma=0.0) > 8 * 0.9
    assert learn(Picture(), tmp_path / "dqn", "dqn", 15_000, net=net, gamma=0.0) > 8 * 0.9


@pytest.mark.parametrize("kind", mostly_slow(SPACES, "Dict"))
def test_gymnasium_spaces(kind: str, tmp_path: Path) -> None:
    env = partial(Mirror, kind)
    assert learn(env, tmp_path, "ppo", 40_000, "inline", gamma=0.0, normalise_obs=True) > 8 * 0.8
