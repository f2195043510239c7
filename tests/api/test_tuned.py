"""The table of tuned settings: which entry a game finds, and what holds for images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.core.errors import BadInput
from shoal.core.spec import EnvSpec
from shoal.envs.masked import Masked
from shoal.envs.pendulum import Pendulum
from shoal.envs.source import find, own_id
from shoal.experiment import resolve
from shoal.tuned import TUNED, tuned

ALGOS = ("ppo", "a2c", "dqn", "reinforce")


@pytest.mark.parametrize("algo", ALGOS)
def test_both_names_of_a_game_find_one_entry(algo: str) -> None:
    assert tuned("ALE/Pong-v5", algo, True, True) == tuned("Pong-v5", algo, True, True)
    assert tuned("ALE/Pong-v5", "ppo", True, True)["algo"].items() >= TUNED["Pong-v5", "ppo"]["algo"].items()


@pytest.mark.parametrize("algo", ALGOS)
def test_games_are_learnt_by_the_sign_and_other_images_by_their_spread(algo: str) -> None:
    game, other = (tuned("Unheard-v5", algo, True, atari) for atari in (True, False))
    assert game["algo"]["reward_clip"] == "sign" and game["life_ends"]
    assert not game["algo"].get("normalise_reward", False)
    assert other["algo"]["normalise_reward"] and not {"reward_clip", "life_ends"} & {*other, *other["algo"]}


def test_no_image_entry_lets_the_value_loss_swamp_the_policy() -> None:
    """A shared trunk under one gradient norm: the value loss has at most half its weight."""
    shared = [e for e in TUNED.values() if e.get("net", {}).get("shared")]
    assert shared and all(entry["algo"]["value_weight"] <= 0.5 for entry in shared)


@pytest.mark.parametrize(("env", "backend"), [("Pong-v5", "auto"), ("ALE/Pong-v5", "auto"), ("Pong-v5", "gymnasium")])
def test_a_run_on_a_game_takes_it(env: str, backend: str) -> None:
    pytest.importorskip("ale_py")
    if backend == "auto":
        pytest.importorskip("envpool")
    plan = resolve(env, {"algo": "ppo", "backend": backend})
    entry = TUNED["Pong-v5", "ppo"]
    assert plan.settings.steps == entry["steps"] and plan.algo.learning_rate == entry["algo"]["learning_rate"]
    assert plan.algo.reward_clip == "sign" and plan.settings.life_ends and plan.net.conv == tuple(entry["net"]["conv"])
    assert resolve(env, {"algo": "ppo", "backend": backend, "life_ends": False}).settings.life_ends is False


class Moon(NamedTuple):
    """A copy of Pendulum with other physics under the same name."""

    max_steps: int = 200

    @property
    def spec(self) -> EnvSpec:
        return Pendulum().spec

    def reset(self, key: Any) -> Any:
        return Pendulum().reset(key)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, obs, reward, terminated = Pendulum().step(state, action / 6, key)
        return state, obs, 6 * reward, terminated


def test_only_shoals_own_environments_find_the_entry_of_their_name() -> None:
    entry, general = (TUNED[env, "td3"]["steps"] for env in ("Pendulum-v1", "*"))
    loose = {"algo": "td3", "runtime": "fused"}
    own = ("Pendulum-v1", "shoal.envs.pendulum:Pendulum", Pendulum, Pendulum(), Pendulum(max_steps=50))
    assert [resolve(env, loose).settings.steps for env in own] == [entry] * 5
    assert [resolve(env, loose).settings.steps for env in (Moon, Moon())] == [general] * 2
    path = f"{Moon.__module__}:Moon"
    assert resolve(path, loose).settings.steps == general
    assert resolve(Moon(), {**loose, "algo": "ppo"}).settings.steps == TUNED["*", "ppo"]["steps"]


def test_a_masked_environment_is_known_by_what_it_masks() -> None:
    shown = (0, 1)
    own, other = (Masked(env, "shoal/MaskedPendulum-v0", shown) for env in (Pendulum(), Moon()))
    sources = [find(env) for env in (own, other, own._replace(shown=(1, 2)))]
    assert [own_id(source) for source in sources] == ["shoal/MaskedPendulum-v0", None, None]


def test_rmsprop_begins_near_the_squared_gradients_of_the_net() -> None:
    """They are about 1e-3 for the small dense nets of vectors, and 4e-7 for pictures."""
    pytest.importorskip("ale_py")
    assert resolve("ALE/Breakout-v5", {"algo": "a2c", "backend": "gymnasium"}).algo.initial_square <= 1e-5
    assert resolve("CartPole-v1", {"algo": "a2c"}).algo.initial_square == 1e-2


class Bricks(gymnasium.Env[Any, Any]):
    """Episodes of four steps, each worth 7."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 4
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(2, np.float32), 7.0, self.left == 0, False, {}


@pytest.mark.parametrize("algo", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_scores_are_not_clipped(algo: str, tmp_path: Path) -> None:
    """Neither in the returns of training, which `until_return` waits for, nor in evaluation."""
    settings: dict[str, Any] = {"runtime": "inline", "topology": "sequential", "actors": 1, "envs": 4, "report": False}
    run = shoal.train(
        Bricks,
        out=tmp_path / "run",
        algo={"name": algo, "reward_clip": "sign", "unroll": 40},
        net={"hidden": (4,)},
        steps=4_000,
        until_return=27.9,
        eval_episodes=2,
        sinks=("jsonl",),
        quiet=True,
        **settings,
    )
    assert run.summary["return_mean"] == 28.0 and run.summary["solved_at_s"] is not None
    assert run.summary["eval_mean"] == 28.0


def test_an_unknown_clip_is_refused() -> None:
    with pytest.raises(BadInput, match=r"reward.clip"):
        resolve("CartPole-v1", {"algo.reward_clip": "half"})
