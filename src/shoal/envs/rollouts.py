"""Episodes of random play and observations about them, for the doctor."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten

from shoal.core.errors import FROM_ENV

EPISODES = 20
FINAL = ("final_observation", "final_obs", "terminal_observation", "final_info")  # keys that vector environments use


@dataclass
class Episode:
    """One episode, as seen from outside."""

    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    bad_obs: bool = False  # NaN or infinite
    outside: str | None = None  # why an observation is not in its space
    has_final: bool = False  # the info has a final observation besides the one returned
    last: np.ndarray = field(default_factory=lambda: np.zeros(0))
    before_last: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass
class Played:
    """All episodes, and facts that do not belong to a single one."""

    episodes: list[Episode] = field(default_factory=list)
    starts: list[np.ndarray] = field(default_factory=list)  # first observations, flat
    seconds: list[float] = field(default_factory=list)  # of each step
    goes_on: bool = False  # a step after `terminated` neither raised nor terminated again
    failure: str | None = None  # why playing had to stop: the protocol was broken, or the environment raised
    raised: bool = False  # the environment raised


def play(env: Any, seconds: float, most_steps: int) -> Played:
    """Random play for at most `EPISODES` episodes, `seconds` or `most_steps`, whichever comes first."""
    played = Played()
    until = time.monotonic() + seconds
    env.action_space.seed(0)
    try:
        for seed in range(EPISODES):
            if time.monotonic() > until or len(played.seconds) >= most_steps:
                break
            _episode(env, seed, played, until, most_steps)
    except FROM_ENV as error:
        played.raised = played.failure is None
        played.failure = played.failure or f"random play raised {type(error).__name__}: {' '.join(str(error).split())}"
    return played


def same(a: Any, b: Any) -> bool:
    """Equal values, through tuples and dicts; NaN equals NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    x, y = np.asarray(a), np.asarray(b)
    return x.shape == y.shape and bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f"))


def _episode(env: Any, seed: int, played: Played, until: float, most_steps: int) -> None:
    answer = env.reset(seed=seed)
    if not isinstance(answer, tuple) or len(answer) != 2:
        played.failure = f"reset returns {_shape(answer)}, not (obs, info)"
        raise ValueError(played.failure)
    episode = Episode()
    played.episodes.append(episode)
    flat = _look(env, answer[0], episode)
    played.starts.append(flat)
    while not (episode.terminated or episode.truncated):
        if time.monotonic() > until or len(played.seconds) >= most_steps:
            return
        began = time.perf_counter()
        answer = env.step(env.action_space.sample())
        played.seconds.append(time.perf_counter() - began)
        if not isinstance(answer, tuple) or len(answer) != 5:
            played.failure = f"step returns {_shape(answer)}, not (obs, reward, terminated, truncated, info)"
            raise ValueError(played.failure)
        obs, reward, terminated, truncated, info = answer
        episode.before_last, flat = flat, _look(env, obs, episode)
        episode.last = flat
        episode.rewards.append(float(reward))
        episode.terminated, episode.truncated = bool(terminated), bool(truncated)
        episode.has_final = any(key in info for key in FINAL)
    if episode.terminated:
        played.goes_on = _goes_on(env)


def _goes_on(env: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's own environments warn of exactly this
        try:
            return not env.unwrapped.step(env.action_space.sample())[2]
        except FROM_ENV:  # refusing to step after the end is what an environment should do
            return False


def _look(env: Any, obs: Any, episode: Episode) -> np.ndarray:
    space = env.observation_space
    if isinstance(space, spaces.Box) and isinstance(obs, np.ndarray) and obs.dtype != space.dtype:
        episode.outside = episode.outside or f"its dtype is {obs.dtype}, the space's {space.dtype}"
    elif not space.contains(obs):
        episode.outside = episode.outside or f"{_short(obs)} is not in {_short(space)}"
    flat = np.asarray(flatten(space, obs), np.float64).reshape(-1)
    episode.bad_obs = episode.bad_obs or not bool(np.isfinite(flat).all())
    return flat


def _shape(answer: Any) -> str:
    return f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else text[:117] + "..."
