"""An own algorithm and an own net, by class and by import path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_envs import Walk

import shoal
from shoal.core.errors import BadInput
from shoal.experiment import DECLARED, resolve
from shoal.nets.actor_critic import NetConfig

MODULE = '''
from dataclasses import dataclass
import jax.numpy as jnp
from shoal.algos.on_policy import OnPolicy, OnPolicyConfig, adam, never
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.net import NetConfig


@dataclass(frozen=True, kw_only=True)
class MineConfig(OnPolicyConfig):
    unroll: int = 8
    pull: float = 0.0
    """how strongly values are pulled to zero"""


class Mine(OnPolicy[MineConfig]):
    Config = MineConfig
    about = "pulls its values to zero"
    epochs = 1

    @property
    def optimiser(self):
        return adam(1e-8)

    def loss(self, params, state, batch):
        _, entropy, value = self.evaluate(params, batch)
        size = jnp.square(value).mean()
        return self.config.pull * size - entropy.mean(), {"policy": size, "value": size, "entropy": entropy.mean()}

    def should_stop(self, metrics):
        return never(metrics)


@dataclass(frozen=True, kw_only=True)
class WideConfig:
    width: int = 5
    """of its only layer"""


@dataclass(frozen=True)
class Wide:
    """A net of one's own: here it wraps Shoal's."""

    config: WideConfig
    spec: object
    Config = WideConfig

    @property
    def inner(self):
        return ActorCritic(NetConfig(hidden=(self.config.width,)), self.spec)

    recurrent = False

    def init(self, key):
        return self.inner.init(key)

    def initial_carry(self, envs):
        return {}

    def policy(self, *args):
        return self.inner.policy(*args)

    def forward(self, *args):
        return self.inner.forward(*args)

    def value(self, *args):
        return self.inner.value(*args)


class NoConfig:
    pass


class Undeclared:
    Config = WideConfig
    about = "an algorithm that says neither its net nor its topologies"
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module in the working folder, as a user's own is."""
    (tmp_path / "own_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield None
    sys.modules.pop("own_parts", None)


def train(out: Path, **settings: Any) -> shoal.Run:
    quiet = {"eval_episodes": 0, "sinks": ("jsonl",), "quiet": True, "report": False}
    shape = {"runtime": "inline", "topology": "sequential", "actors": 1, "envs": 4, "steps": 96}
    return shoal.train(Walk, out=out, **{**shape, **quiet, **settings})


def test_an_own_algorithm(module: None, tmp_path: Path) -> None:
    by_path = train(tmp_path / "path", algo={"name": "own_parts:Mine", "pull": 0.5}, net={"hidden": (8,)})
    import own_parts  # type: ignore[import-not-found]

    by_class = train(tmp_path / "class", algo={"name": own_parts.Mine, "pull": 0.5}, net={"hidden": (8,)})
    other = train(tmp_path / "other", algo="own_parts:Mine", net={"hidden": (8,)})
    assert by_path.params_hash == by_class.params_hash != other.params_hash
    assert by_path.summary["algo"] == by_class.summary["algo"] == "own_parts:Mine"
    loaded = shoal.load(by_class.path)
    assert loaded.plan.algo.pull == 0.5 and loaded.params_hash == by_class.params_hash
    with pytest.raises(BadInput, match=r"unknown setting --algo\.push.*'--algo\.pull'"):
        train(tmp_path / "typo", algo={"name": "own_parts:Mine", "push": 1})


def test_an_own_net(module: None, tmp_path: Path) -> None:
    wide = train(tmp_path / "wide", net={"name": "own_parts:Wide", "width": 12})
    plain = train(tmp_path / "plain", net={"hidden": (12,)})
    assert wide.params_hash == plain.params_hash, "the same layers under another name"
    assert shoal.load(wide.path).evaluate(2).returns == plain.evaluate(2).returns


def test_what_is_missing_is_said(module: None, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="net 'own_parts:NoConfig' has no Config"):
        train(tmp_path / "run", net="own_parts:NoConfig")
    told = (
        "'own_parts:Undeclared' does not declare net_name, usual_topology, topologies, replays, if_trained, groups, adopt:"
        " shoal.core.algorithm.Algorithm documents them"
    )
    with pytest.raises(BadInput, match=told):
        train(tmp_path / "run", algo="own_parts:Undeclared")
    with pytest.raises(BadInput, match="cannot import algorithm 'own_parts:Nothing'"):
        train(tmp_path / "run", algo="own_parts:Nothing")


def test_an_own_algorithm_under_processes(module: None, tmp_path: Path) -> None:
    where = {"runtime": "processes", "topology": "sync", "actors": 1}
    run = train(tmp_path / "run", algo="own_parts:Mine", net="own_parts:Wide", **where)
    assert run.summary["updates"] == 3 and run.summary["faults"] == 0


@pytest.mark.parametrize(
    ("axis", "what", "left_out"),
    [("topology", "topology", "program"), ("topology", "topology", "one_optimiser"), ("algo", "algorithm", "adopt")],
)
def test_what_only_a_run_would_miss_is_asked_for_at_once(axis: str, what: str, left_out: str) -> None:
    declared = {name: None for name in DECLARED[what] if name != left_out}
    part = type("Part", (), {**declared, "Config": NetConfig})
    with pytest.raises(BadInput, match=f"does not declare {left_out}: "):
        resolve(Walk, {axis: part})
