"""Who judges: plays whole episodes with a fixed policy, several at a time, each begun by a seed of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from shoal.core.algorithm import Algorithm
from shoal.core.keys import EVALUATION, key_data
from shoal.roles.compiled import compiled

TOGETHER = 16  # episodes at a time: enough to share the cost of acting, few enough to finish close together


class SingleEnv(Protocol):
    """One environment for evaluation (`envs.batch.EvalEnv`)."""

    def reset(self, seed: int) -> Any: ...
    def step(self, action: Any) -> tuple[Any, float, bool, bool]: ...
    def close(self) -> None: ...


class Played(NamedTuple):
    returns: list[float]  # in the order of the seeds
    lengths: list[int]


class Policy:
    """A fixed policy on `size` environments at once: actions for observations, with the recurrent state kept here."""

    def __init__(self, algorithm: Algorithm, actor: Any, size: int, sample: bool, seed: int) -> None:
        self._algorithm, self._size = algorithm, size
        self._actor = jax.device_put(actor)
        self._act = compiled(algorithm).act
        self._explore = np.full(size, 1.0 if sample else 0.0, np.float32)
        self._carry: Any = algorithm.initial_carry(size)
        self._key = key_data(seed, EVALUATION)
        self._t = 0

    def __call__(self, obs: np.ndarray, first: np.ndarray) -> np.ndarray:
        """`obs` [size, ...], `first` [size]: an episode begins here."""
        t = np.int32(self._t % 2**31)
        action, _, self._carry = self._act(self._actor, obs, self._carry, first, self._key, t, self._explore)
        self._t += 1
        return np.asarray(action)


def play(
    algorithm: Algorithm,
    actor: Any,
    make_env: Callable[[], SingleEnv],
    episodes: int,
    *,
    sample: bool = False,
    seed: int = 0,
    on_episode: Callable[[float], None] = lambda ret: None,
) -> Played:
    """`episodes` episodes. Episode i belongs to (seed, i), whichever environment plays it, so order does not matter."""
    size = min(TOGETHER, episodes)
    envs = [make_env() for _ in range(size)]
    try:
        policy = Policy(algorithm, actor, size, sample, seed)
        played: list[tuple[float, int]] = [(0.0, 0)] * episodes
        running = list(range(size))  # the episode that each environment plays; past the last, it idles
        obs = np.stack([np.asarray(env.reset(_seed(seed, i))) for i, env in enumerate(envs)])
        first, following = np.ones(size, bool), size
        while any(episode < episodes for episode in running):
            actions = policy(obs, first)
            first[:] = False
            for i, env in enumerate(envs):
                episode = running[i]
                if episode >= episodes:
                    continue
                obs[i], reward, terminated, truncated = env.step(actions[i])
                ret, length = played[episode]
                played[episode] = (ret + reward, length + 1)
                if terminated or truncated:
                    on_episode(ret + reward)
                    running[i], following = following, following + 1
                    if running[i] < episodes:
                        obs[i], first[i] = env.reset(_seed(seed, running[i])), True
    finally:
        for env in envs:
            env.close()
    return Played([ret for ret, _ in played], [length for _, length in played])


def _seed(seed: int, episode: int) -> int:
    return int(key_data(seed, EVALUATION, episode)[0] >> 1)
