"""The player: an episode belongs to its seed, a broken one begins again, a recorder sees every step."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import numpy as np

from shoal.acting.player import Broke, Ended, Policy, play
from shoal.experiment import resolve
from shoal.launch.compose import make_algorithm


class Counting:
    """An environment for evaluation whose return is its seed, and whose length depends on it."""

    def reset(self, seed: int) -> np.ndarray:
        self._left, self._pay = 1 + seed % 5, float(seed % 1000)
        return np.zeros(4, np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        self._left -= 1
        return np.zeros(4, np.float32), self._pay if self._left == 0 else 0.0, self._left == 0, False

    def close(self) -> None:
        return None


def test_episode_i_belongs_to_seed_i_whoever_plays_it() -> None:
    plan = resolve("CartPole-v1", {"backend": "jax", "actors": 1, "envs": 1, "net": {"hidden": (4,)}})
    algorithm = make_algorithm(plan)
    actor = algorithm.actor_state(jax.jit(algorithm.init)(jax.random.key(0)))

    def played(episodes: int, seed: int) -> list[Any]:
        todo = [(i, 0) for i in range(episodes)]
        return sorted(play(algorithm, actor, Counting, todo, min(16, episodes), seed=seed))

    many, few = played(40, seed=3), played(16, seed=3)
    assert many[:16] == few and [ended.episode for ended in many] == list(range(40))
    assert len({ended.ret for ended in many}) > 30
    assert [e.ret for e in played(5, seed=4)] != [e.ret for e in few[:5]]


class Fragile(Counting):
    """Its third life raises, its fourth shows what is not a number; each is known by the seeds that it was given."""

    lives: ClassVar[list[list[int]]] = []

    def __init__(self) -> None:
        self._life = len(self.lives)
        self.lives.append([])

    def reset(self, seed: int) -> np.ndarray:
        self.lives[self._life].append(seed)
        return super().reset(seed)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        obs, reward, terminated, truncated = super().step(action)
        if self._life == 2:
            raise RuntimeError("lost")
        return obs, float("nan") if self._life == 3 else reward, terminated, truncated


def test_a_broken_episode_begins_again_elsewhere_and_the_others_stay_as_they_are() -> None:
    plan = resolve("CartPole-v1", {"backend": "jax", "actors": 1, "envs": 1, "net": {"hidden": (4,)}})
    algorithm = make_algorithm(plan)
    actor = algorithm.actor_state(jax.jit(algorithm.init)(jax.random.key(0)))
    todo = [(i, 0) for i in range(12)]
    whole = sorted(play(algorithm, actor, Counting, todo, 4))
    marks: list[int] = []
    events = list(play(algorithm, actor, Fragile, todo, 4, mark=marks.append))
    faults = [event for event in events if isinstance(event, Broke)]
    ended = sorted(event for event in events if isinstance(event, Ended))
    assert sorted((f.episode, f.kind) for f in faults) == [(2, "env_raised"), (3, "env_nan")]
    assert "RuntimeError: lost" in next(f.detail for f in faults if f.kind == "env_raised")
    assert [e.episode for e in ended] == list(range(12))
    assert [e for e in ended if e.episode not in (2, 3)] == [e for e in whole if e.episode not in (2, 3)]
    seeds = [seed for life in Fragile.lives for seed in life]
    assert len(seeds) == len(set(seeds)) == 14, "an attempt has a start of its own"
    assert marks[::2] and set(marks[1::2]) == {-1} and set(marks[::2]) == set(range(12))


class Steps:
    """Counts what it sees of each episode."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.rewards: dict[int, list[float]] = {}
        self.ends: list[int] = []

    def begin(self, episode: int, obs: np.ndarray) -> None:
        self.begun.append(episode)
        self.rewards[episode] = []

    def step(self, episode: int, obs: np.ndarray, reward: float, terminated: bool) -> None:
        self.rewards[episode].append(reward)
        self.ends += [episode] * terminated


def test_a_recorder_sees_every_step_of_every_episode_from_the_starts_it_was_given() -> None:
    plan = resolve("CartPole-v1", {"backend": "jax", "actors": 1, "envs": 1, "net": {"hidden": (4,)}})
    algorithm = make_algorithm(plan)
    actor = algorithm.actor_state(jax.jit(algorithm.init)(jax.random.key(0)))
    seen, todo = Steps(), [(i, 0) for i in range(5)]
    ended = sorted(play(algorithm, actor, Counting, todo, 2, start_of=lambda episode, _: 10 + episode, recorder=seen))
    assert [(e.episode, e.ret, e.length) for e in ended] == [(i, 10.0 + i, 1 + i) for i in range(5)]
    assert sorted(seen.begun) == sorted(seen.ends) == list(range(5))
    assert {i: (sum(r), len(r)) for i, r in seen.rewards.items()} == {e.episode: (e.ret, e.length) for e in ended}


def test_a_policy_alone_remembers_its_episode() -> None:
    net = {"hidden": (4,), "cell": "gru", "cell_size": 4}
    plan = resolve("CartPole-v1", {"backend": "jax", "actors": 1, "envs": 1, "net": net})
    algorithm = make_algorithm(plan)
    actor = algorithm.actor_state(jax.jit(algorithm.init)(jax.random.key(0)))
    alone, batch = (Policy(algorithm, actor, 1, sample=True, seed=3) for _ in "ab")
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    expected = [int(batch(row[None], np.array([i == 0]))[0]) for i, row in enumerate(rows)]
    assert [int(alone.alone(row)) for row in rows] == expected and len(set(expected)) == 2
