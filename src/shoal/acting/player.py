"""Whole episodes with a fixed policy, several at a time, each with a seed of its own. A broken episode is played again."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from shoal.acting.compiled_act import compiled_act
from shoal.core.algorithm import Algorithm
from shoal.core.errors import FROM_ENV
from shoal.core.keys import EVALUATION, episode_seed, key_data

TOGETHER = 16  # episodes at a time: enough to share the cost of acting, few enough to finish close together


class SingleEnv(Protocol):
    """One environment for evaluation (`envs.batch.EvalEnv`)."""

    def reset(self, seed: int) -> Any: ...
    def step(self, action: Any) -> tuple[Any, float, bool, bool]: ...
    def close(self) -> None: ...


class Played(NamedTuple):
    """Returns and lengths of all episodes, in the order of the seeds."""

    returns: list[float]
    lengths: list[int]


class Ended(NamedTuple):
    """An episode that was played to its end, or cut at the limit."""

    episode: int
    ret: float
    length: int
    cut: bool = False


class Broke(NamedTuple):
    """An episode whose environment raised (`env_raised`) or returned NaN or infinity (`env_nan`)."""

    episode: int
    kind: str
    detail: str  # the traceback, or a line


class Policy:
    """A fixed policy on `size` environments at once. Keeps the recurrent state."""

    def __init__(self, algorithm: Algorithm, actor: Any, size: int, sample: bool, seed: int) -> None:
        self._algorithm, self._size = algorithm, size
        self._actor = jax.device_put(actor)
        self._act = compiled_act(algorithm)
        self._explore = np.full(size, 1.0 if sample else 0.0, np.float32)
        self._carry: Any = algorithm.initial_carry(size)
        self._key = key_data(seed, EVALUATION)
        self._t = 0

    def __call__(self, obs: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions for `obs` [size, ...]; `first` [size] marks the first step of an episode."""
        t = np.int32(self._t % 2**31)
        action, _, self._carry = self._act(self._actor, obs, self._carry, first, self._key, t, self._explore)
        self._t += 1
        return np.asarray(action)

    def alone(self, obs: Any) -> np.ndarray:
        """The action for one observation of a single environment (`size` 1), whose episode begins with the first call."""
        action: np.ndarray = self(np.asarray(obs)[None], np.full(1, self._t == 0))[0]
        return action


class Recorder(Protocol):
    """Receives every step of the episodes that are played, by episode number."""

    def begin(self, episode: int, obs: np.ndarray) -> None: ...
    def step(self, episode: int, obs: np.ndarray, reward: float, terminated: bool) -> None: ...


def play(
    algorithm: Algorithm,
    actor: Any,
    make_env: Callable[[], SingleEnv],
    todo: Iterable[tuple[int, int]],
    size: int,
    *,
    sample: bool = False,
    seed: int = 0,
    limit: int | None = None,
    mark: Callable[[int], None] = lambda episode: None,
    start_of: Callable[[int, int], int] | None = None,
    recorder: Recorder | None = None,
) -> Iterator[Ended | Broke]:
    """Play episodes of a fixed policy, `size` at a time, and yield them as they end.

    `todo` names each by (episode, attempt). Its start is derived from (seed, episode, attempt), whichever environment plays
    it, so order does not matter; `start_of(episode, attempt)` can replace the environment's seed. A broken episode begins
    again at its next attempt, in a new environment and from another start, as long as the caller keeps iterating. After `limit`
    steps an episode is cut: a policy that is stuck in an environment without a time limit would never end its episode.
    """
    start_of = start_of or partial(episode_seed, seed)
    waiting = deque(todo)
    policy = Policy(algorithm, actor, size, sample, seed)
    seats = [_Seat(make_env, start_of, mark, recorder, limit) for _ in range(size)]
    first = np.zeros(size, bool)
    obs = np.zeros((size, *algorithm.task.spec.obs.shape), algorithm.task.spec.obs.dtype)
    try:
        while True:
            for i, seat in enumerate(seats):
                while seat.playing is None and waiting:
                    try:
                        obs[i] = seat.begin(*waiting.popleft())
                        first[i] = True
                    except _Broken as error:
                        yield error.fault
                        waiting.appendleft(error.again)
            if all(seat.playing is None for seat in seats):
                return
            actions = policy(obs, first)
            first[:] = False
            for i, seat in enumerate(seats):
                if seat.playing is None:
                    continue
                try:
                    obs[i], ended = seat.step(actions[i])
                except _Broken as error:
                    yield error.fault
                    waiting.appendleft(error.again)
                    continue
                if ended is not None:
                    yield ended
    finally:
        for seat in seats:
            seat.leave()


class _Broken(Exception):
    def __init__(self, fault: Broke, again: tuple[int, int]) -> None:
        super().__init__(fault.detail)
        self.fault, self.again = fault, again


class _Seat:
    """One environment and the episode that it plays."""

    def __init__(
        self,
        make_env: Callable[[], SingleEnv],
        start_of: Callable[[int, int], int],
        mark: Callable[[int], None],
        recorder: Recorder | None,
        limit: int | None,
    ) -> None:
        self._limit = limit
        self._make_env, self._start_of, self._mark, self._recorder = make_env, start_of, mark, recorder
        self._env: SingleEnv | None = None
        self.playing: tuple[int, int] | None = None  # (episode, attempt)

    def begin(self, episode: int, attempt: int) -> np.ndarray:
        self.playing, self._ret, self._length = (episode, attempt), 0.0, 0
        self._mark(episode)
        try:
            if self._env is None:
                self._env = self._make_env()
            obs = np.asarray(self._env.reset(self._start_of(episode, attempt)))
        except FROM_ENV as error:
            raise self._broken("env_raised", traceback.format_exc()) from error
        obs = self._checked(obs, 0.0)
        self._mark(-1)
        if self._recorder is not None:
            self._recorder.begin(episode, obs)
        return obs

    def step(self, action: Any) -> tuple[np.ndarray, Ended | None]:
        assert self.playing is not None and self._env is not None
        self._mark(self.playing[0])
        try:
            obs, reward, terminated, truncated = self._env.step(action)
        except FROM_ENV as error:
            raise self._broken("env_raised", traceback.format_exc()) from error
        obs = self._checked(np.asarray(obs), reward)
        self._mark(-1)
        if self._recorder is not None:
            self._recorder.step(self.playing[0], obs, reward, terminated)
        self._ret, self._length = self._ret + reward, self._length + 1
        cut = not (terminated or truncated)
        if cut and self._length != self._limit:
            return obs, None
        ended = Ended(self.playing[0], self._ret, self._length, cut)
        self.playing = None
        return obs, ended

    def leave(self) -> None:
        """Close the environment and ignore a failure: it is no longer used."""
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(*FROM_ENV):
                env.close()

    def _checked(self, obs: np.ndarray, reward: float) -> np.ndarray:
        if math.isfinite(reward) and np.isfinite(obs).all():
            return obs
        what = "its observation" if math.isfinite(reward) else "its reward"
        raise self._broken("env_nan", f"{what} was not finite; the episode was dropped")

    def _broken(self, kind: str, detail: str) -> _Broken:
        assert self.playing is not None
        episode, attempt = self.playing
        self.leave()  # still marked as a call: a broken environment may hang here too
        self._mark(-1)
        self.playing = None
        return _Broken(Broke(episode, kind, detail), (episode, attempt + 1))
