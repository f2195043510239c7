"""Weights that would not be finite: on every way by which they change, the run stops and keeps the last that are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.core.errors import RunFailed
from shoal.optimize.functions import make
from shoal.optimize.learn import learn
from shoal.run.checkpoints import Checkpoints

T, B = 4, 4
RATE = {"learning_rate": 1e30}
PPO = {"name": "ppo", "unroll": T, "batch_size": 16, "epochs": 2, **RATE}
A2C = {"name": "a2c", "unroll": T, **RATE}
DQN = {"name": "dqn", "unroll": T, "n_step": 1, "warmup": 16, "batch_size": 8, "capacity": 200, **RATE}
DYNA = {**DQN, "name": "dyna_q", "starts": 4, "model_gradients": 2, "model_batch": 8}


def shared(consistency: str, **more: Any) -> dict[str, Any]:
    return {"name": "shared_params", "consistency": consistency, **more}


CASES: dict[str, dict[str, Any]] = {
    "sequential": {"algo": {**PPO, "normalise_obs": True}, "topology": "sequential"},
    "sync": {"algo": A2C, "topology": "sync"},
    "sync, replay": {"algo": DQN, "topology": "sync"},
    "fused": {"algo": A2C, "runtime": "fused", "actors": 1},
    "actor_learner": {"algo": PPO, "topology": "actor_learner"},
    "two learners": {"algo": {**PPO, "normalise_obs": True}, "topology": "actor_learner", "learners": 2},
    "averaging": {"algo": A2C, "topology": {"name": "actor_learner", "average_every": 2}, "learners": 2},
    "seed": {"algo": A2C, "topology": "seed"},
    "ga3c": {"algo": A2C, "topology": "ga3c"},
    "hogwild": {"algo": A2C, "topology": shared("hogwild")},
    "lock": {"algo": PPO, "topology": shared("lock")},
    "gossip": {"algo": A2C, "topology": shared("gossip")},
    "sharded": {"algo": A2C, "topology": shared("sharded")},
    "hogwild, replay": {"algo": DQN, "topology": shared("hogwild")},
    "sharded, replay": {"algo": DQN, "topology": shared("sharded")},
    "dyna": {"algo": DYNA, "topology": "dyna"},
    "elsewhere": {"algo": A2C, "topology": shared("lock"), "runtime": "processes"},
}


class Spiky(gymnasium.Env[np.ndarray, int]):
    """Every 30th reward of its life is 1e30."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    life = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.life += 1
        return self._seen(), 1e30 if self.life % 30 == 0 else 1.0, self.life % 20 == 0, False, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class Glaring(Spiky):
    """Every 30th observation of its life is 1e20, whose square leaves the range of float32."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        return np.full(3, 1e20, np.float32) if self.life % 30 == 0 else obs, 1.0, *rest


def train(out: Path, env: Any = "CartPole-v1", **settings: Any) -> shoal.Run:
    plain = {"net": {"hidden": (8,)}, "backend": "jax", "actors": 2, "envs": B, "runtime": "inline", "steps": 20_000}
    quiet = {"eval_episodes": 0, "sinks": ("jsonl",), "quiet": True, "report": False, "max_bad_updates": 4}
    return shoal.train(env, out=out, **{**plain, **quiet, **settings})


def weights(run: Path) -> np.ndarray:
    arrays = Checkpoints(run / "checkpoints").load("last").arrays
    return np.concatenate([array.ravel() for name, array in arrays.items() if name.startswith("state/params/")])


# They fail where another case does: in the same learner, the same table or the same replay.
SLOW = ("sync", "actor_learner", "seed", "lock", "sharded", "hogwild, replay")


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES])
def test_the_run_stops_with_the_cause_and_keeps_what_is_finite(case: str, tmp_path: Path) -> None:
    pattern = r"^\d+ updates in a row failed \(--max-bad-updates 4\): the learning rate [\d.]+e\+(29|30) is too large"
    with pytest.raises(RunFailed, match=pattern) as raised:
        train(tmp_path / "run", **CASES[case])
    assert "\n" not in str(raised.value)
    kept = weights(tmp_path / "run")
    assert np.isfinite(kept).all() and np.abs(kept).max() < 100, "as they were before the first step"
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(row.get("fault/bad_updates", 0) for row in rows) >= 4
    assert "bad_update" in (tmp_path / "run" / "faults.log").read_text()


@pytest.mark.parametrize(
    ("rate", "topology"),
    [
        (1e10, "sync"),
        (1e30, "seed"),
        pytest.param(1e30, "sync", marks=pytest.mark.slow),
        pytest.param(1e10, "seed", marks=pytest.mark.slow),
    ],
)
def test_the_environment_is_not_blamed_for_what_the_weights_make_of_actions(
    rate: float, topology: str, tmp_path: Path
) -> None:
    algo = {"name": "a2c", "unroll": T, "learning_rate": rate}
    net = {"hidden": (8, 8, 8), "activation": "relu"}
    with pytest.raises(RunFailed, match=r"the learning rate .* is too large"):
        train(tmp_path / "run", "Pendulum-v1", algo=algo, topology=topology, net=net)
    assert "env_nan" not in (tmp_path / "run" / "faults.log").read_text()


def test_a_law_is_not_learnt_from_what_is_not_finite(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the learning rate [\d.]+e\+(29|30) is too large"):
        learn(
            make("ackley"),
            steps=50,
            episodes=4,
            out=tmp_path / "run",
            score=False,
            settings={"algo.learning_rate": 1e30},
        )
    assert np.isfinite(weights(tmp_path / "run")).all()


def test_bad_updates_are_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    """Rewards that now and then leave the range of float32: those updates alone are dropped."""
    run = train(tmp_path / "run", Spiky, algo={"name": "a2c", "unroll": T}, backend="gymnasium", steps=40 * 2 * T * B)
    assert run.summary["updates"] == 40 and run.summary["faults"] == 0
    assert 0 < run.summary["bad_updates"] < run.summary["updates"]
    assert np.isfinite(weights(tmp_path / "run")).all()


def test_statistics_that_overflow_are_dropped_with_their_update(tmp_path: Path) -> None:
    """Servers of slices: the policy would see nothing any more, by a spread of infinity."""
    algo = {"name": "a2c", "unroll": T, "normalise_obs": True}
    run = train(tmp_path / "run", Glaring, algo=algo, backend="gymnasium", topology=shared("sharded"), steps=30 * T * B)
    assert run.summary["updates"] == 30 and 0 < run.summary["bad_updates"] < 6
    arrays = Checkpoints(run.path / "checkpoints").load("last").arrays
    for leaf in ("mean", "m2"):
        assert np.isfinite(arrays[f"state/obs/{leaf}"]).all() and np.abs(arrays[f"state/obs/{leaf}"]).max() < 1e3


def test_a_run_without_a_good_update_fails_however_short_it_is(tmp_path: Path) -> None:
    """Three updates are fewer than --max-bad-updates, and yet all of them."""
    with pytest.raises(RunFailed, match=r"^nothing was learnt: 3 updates failed and none succeeded: the learning rate"):
        train(tmp_path / "run", algo=A2C, topology="sync", steps=3 * T * B * 2)
    meta = Checkpoints(tmp_path / "run" / "checkpoints").load("last").meta
    assert meta["bad_updates"] == 3
    again = {"steps": 4 * T * B * 2, "algo": {"learning_rate": 1e-3}, "quiet": True, "report": False}
    assert shoal.train(resume=tmp_path / "run", **again).summary["bad_updates"] == 3, "of all its lives"
