"""Gymnasium environments, stepped one after another by the actor itself.

Every episode begins with `reset(seed=...)`, and the seed is derived from (seed, actor, environment, episode). The state
of an environment therefore follows from its episode's number and the actions since the reset: `snapshot` stores those,
and `restore` replays the actions. An environment that raises is rebuilt at once; its episode is dropped.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.core.errors import FROM_ENV, EnvFault
from shoal.core.spec import EnvSpec
from shoal.core.trajectory import Array
from shoal.envs.batch import Lives, Step, seed_of
from shoal.envs.spaces import Actions, Observations

REPLAYED = 20_000  # actions of one episode that a snapshot holds at most; a longer episode starts over
TRIES = 10  # failures in a row to make or reset an environment before the run gives up

log = logging.getLogger("shoal")


class GymnasiumBatch:
    """An `EnvBatch` over a list of environments that `make` makes."""

    def __init__(
        self, name: str, make: Callable[[], Any], size: int, seed: int, actor: int, life_ends: bool = False
    ) -> None:
        self.size = size
        self._lives = Lives(size) if life_ends else None
        self._left = np.zeros(size, np.int64)  # lives, where they count
        self.faults: list[tuple[str, str]] = []
        self._name, self._make, self._seed, self._actor = name, make, seed, actor
        self._envs: list[Any] = [None] * size
        try:
            for index in range(size):
                self._envs[index] = make()
        except BaseException:
            self.close()
            raise
        self._observations = Observations(self._envs[0].observation_space)
        self._actions = Actions(self._envs[0].action_space)
        self.spec = EnvSpec(name, self._observations.spec, self._actions.spec)
        self._episode = np.full(size, -1, np.int64)
        self._ended = np.zeros(size, np.bool_)
        self._lost = np.zeros(size, np.bool_)  # no running episode: the next step begins one and marks it as dropped
        self._failures = np.zeros(size, np.int64)
        self._since: list[list[np.ndarray]] = [[] for _ in range(size)]  # actions since the episode began
        self._obs = np.zeros((size, *self.spec.obs.shape), self.spec.obs.dtype)

    def reset(self) -> Array:
        for index in range(self.size):
            self.restart(index)
        return self._obs

    def restart(self, index: int) -> Array:
        try:
            if not self._lost[index]:
                self._begin(index)
        except FROM_ENV:
            self._failed(index)
        while self._lost[index]:
            self._recover(index)
        return self._obs[index]

    def step(self, action: Array) -> Step:
        action = np.asarray(action)
        decoded = self._actions.decode(action)
        reward = np.zeros(self.size, np.float32)
        terminated, truncated, dropped = (np.zeros(self.size, np.bool_) for _ in range(3))
        for index in range(self.size):
            if self._lost[index]:
                dropped[index] = True
                self._recover(index)
                continue
            try:
                if self._ended[index]:
                    self._begin(index)
                    continue
                self._remember(index, action[index])
                obs, reward[index], terminated[index], truncated[index], info = self._envs[index].step(
                    self._actions.item(decoded, index)
                )
                self._left[index] = info.get("lives", 0)
                self._obs[index] = self._observations.single(obs)
            except FROM_ENV:
                reward[index], terminated[index], truncated[index], dropped[index] = 0, False, False, True
                self._failed(index)
                self._recover(index)
        self._ended = terminated | truncated
        cut = None if self._lives is None else self._lives.lost(self._left)
        return Step(self._obs, reward, terminated, truncated, dropped, cut)

    def snapshot(self) -> dict[str, np.ndarray]:
        kept = [actions for actions in self._since if len(actions) <= REPLAYED]
        flat = [action for actions in kept for action in actions]
        shape = self.spec.action.shape
        return {
            "seed": np.frombuffer(self._seed.to_bytes(-(-self._seed.bit_length() // 8), "little"), np.uint8),
            "episode": self._episode.copy(),
            "ended": self._ended.copy(),
            "lost": self._lost.copy(),
            "lengths": np.array([len(actions) for actions in self._since], np.int64),
            "actions": np.array(flat, self.spec.action.dtype).reshape(len(flat), *shape),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replay each running episode up to where the snapshot was taken."""
        if "seed" in arrays:  # of the run that took it, which may itself have been resumed
            self._seed = int.from_bytes(arrays["seed"].tobytes(), "little")
        at = 0
        for index, length in enumerate(arrays["lengths"]):
            self._episode[index] = arrays["episode"][index]
            self._lost[index] = arrays["lost"][index]
            if length > REPLAYED:
                log.warning("%s: an episode of %d steps is too long to replay; it starts over", self._name, int(length))
                self._lost[index] = True
                continue
            actions, at = arrays["actions"][at : at + length], at + int(length)
            if not self._lost[index] and self._episode[index] >= 0:
                try:
                    self._replay(index, actions)
                except FROM_ENV:
                    self._failed(index)
        self._ended = np.array(arrays["ended"]) & ~self._lost

    def close(self) -> None:
        """Close every environment, even if some fail to; the first failure is raised at the end."""
        failure: BaseException | None = None
        for index, env in enumerate(self._envs):
            self._envs[index] = None
            try:
                if env is not None:
                    env.close()
            except FROM_ENV as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _begin(self, index: int) -> None:
        """Reset one environment with the seed of its next episode."""
        self._episode[index] += 1
        self._since[index] = []
        self._ended[index] = False
        seed = seed_of(self._seed, self._actor, index, int(self._episode[index]))
        obs, info = self._envs[index].reset(seed=seed)
        self._count(index, info)
        self._obs[index] = self._observations.single(obs)

    def _count(self, index: int, info: Mapping[str, Any]) -> None:
        """Record the lives of an episode that begins or is being replayed."""
        self._left[index] = info.get("lives", 0)
        if self._lives is not None:
            self._lives.begin(index, self._left[index])

    def _remember(self, index: int, action: np.ndarray) -> None:
        since = self._since[index]
        if len(since) <= REPLAYED:  # one more than can be replayed marks the episode as too long
            since.append(action.copy())

    def _replay(self, index: int, actions: np.ndarray) -> None:
        self._episode[index] -= 1
        self._begin(index)
        decoded = self._actions.decode(actions) if len(actions) else None
        for t, action in enumerate(actions):
            obs, *_, info = self._envs[index].step(self._actions.item(decoded, t))
            self._count(index, info)
            self._remember(index, action)
            self._obs[index] = self._observations.single(obs)

    def _failed(self, index: int) -> None:
        """Record the exception that is being handled."""
        self.faults.append(("env_raised", f"environment {index} of {self._name}\n{traceback.format_exc()}"))
        self._lost[index] = True
        self._since[index] = []

    def _recover(self, index: int) -> None:
        """Rebuild the environment and begin an episode; if that fails too, the next step tries again."""
        try:
            if self._envs[index] is not None:
                broken, self._envs[index] = self._envs[index], None
                broken.close()
        except FROM_ENV:
            self._failed(index)
        try:
            self._envs[index] = self._make()
            self._begin(index)
        except FROM_ENV as error:
            self._failed(index)
            self._failures[index] += 1
            if self._failures[index] >= TRIES:
                raise EnvFault(
                    f"environment {self._name!r} failed {TRIES} times in a row to start again:"
                    f" {type(error).__name__}: {error}"
                ) from error
        else:
            self._lost[index] = False
            self._failures[index] = 0


class GymnasiumSingle:
    """An `EvalEnv` over one environment."""

    def __init__(self, name: str, env: Any, can_render: bool) -> None:
        self._env = env
        self.can_render = can_render
        self._observations = Observations(env.observation_space)
        self._actions = Actions(env.action_space)
        self.spec = EnvSpec(name, self._observations.spec, self._actions.spec)

    def reset(self, seed: int) -> Array:
        return self._observations.single(self._env.reset(seed=seed)[0])

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        obs, reward, terminated, truncated, _ = self._env.step(self._actions.single(action))
        return self._observations.single(obs), float(reward), bool(terminated), bool(truncated)

    def flat(self, obs: Any) -> Array:
        return self._observations.single(obs)

    def own(self, action: Array) -> Any:
        return self._actions.single(action)

    def render(self) -> np.ndarray:
        picture: np.ndarray = self._env.render()  # whatever it is: `observe.video` checks it
        return picture

    def close(self) -> None:
        self._env.close()
