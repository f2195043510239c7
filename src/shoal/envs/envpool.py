"""EnvPool: native environments behind one call, on one thread per actor.

Seeds are fixed when a pool is made, one for every (seed, actor, environment). A pool's state cannot be saved.
When an episode reaches the time limit on the very step that terminates it, EnvPool reports it as truncated.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.core.spec import EnvSpec
from shoal.core.trajectory import Array
from shoal.envs import registry
from shoal.envs.batch import Lives, Step, seed_of
from shoal.envs.families import table
from shoal.envs.spaces import Actions, Observations

# EnvPool's default preprocessing of Atari games, spelled out because evaluation rebuilds exactly this.
ATARI: dict[str, Any] = {
    "stack_num": 4,
    "frame_skip": 4,
    "noop_max": 30,
    "img_height": 84,
    "img_width": 84,
    "gray_scale": True,
    "use_inter_area_resize": True,
    "use_fire_reset": True,
    "reward_clip": False,
    "episodic_life": False,
    "full_action_space": False,
    "repeat_action_probability": 0.0,
    "max_episode_steps": 27_000,
}


def installed() -> bool:
    """Whether EnvPool is installed, found without importing it (which takes a second or more)."""
    return importlib.util.find_spec("envpool") is not None


def ids() -> list[str]:
    """Every id of the installed EnvPool; [] without EnvPool."""
    if not installed():
        return []
    import envpool

    return [str(name) for name in envpool.list_all_envs()]


def has(task: str) -> bool:
    """Whether EnvPool is installed and has `task`; imports only the part of EnvPool that this needs."""
    return installed() and task in _specs(task)


def is_atari(task: str) -> bool:
    """Whether EnvPool's `task` is one of its Atari games."""
    return str(_specs(task)[task][0]).startswith("envpool.atari")


def _specs(task: str) -> dict[str, Any]:
    named = registry.gymnasium_id(task)
    return table(task, None if named is None else registry.entry_point(named))


def make(task: str, seeds: list[int], options: Mapping[str, Any] | None = None) -> Any:
    """A pool of len(seeds) environments with Gymnasium's interface, on one thread."""
    settings = dict(ATARI) if is_atari(task) else {}
    settings.update(options or {})
    import envpool

    # Gymnasium complains about EnvPool's float64 bounds. The filter stays: restoring it would race with other threads.
    warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
    return envpool.make(
        task,
        env_type="gymnasium",
        num_envs=len(seeds),
        batch_size=len(seeds),
        num_threads=1,
        seed=seeds,
        **settings,
    )


class EnvPoolBatch:
    """An `EnvBatch` over one pool."""

    def __init__(
        self,
        name: str,
        task: str,
        size: int,
        seed: int,
        actor: int,
        options: Mapping[str, Any] | None = None,
        life_ends: bool = False,
    ) -> None:
        self.size = size
        self.faults: list[tuple[str, str]] = []
        self._pool = make(task, [seed_of(seed, actor, env) for env in range(size)], options)
        self._observations = Observations(self._pool.observation_space)
        self._actions = Actions(self._pool.action_space)
        self.spec = EnvSpec(name, self._observations.spec, self._actions.spec)
        self._never = np.zeros(size, np.bool_)
        self._never.flags.writeable = False
        keys: list[str] = list(self._pool._state_keys)
        # EnvPool's own `step` spends 40 us on trees and names. With one array each way, `step` below bypasses it.
        self._plain = "obs" in keys and list(self._pool._action_keys) == ["env_id", "players.env_id", "action"]
        self._ids = np.arange(size, dtype=np.int32)
        self._at = tuple(keys.index(key) if key in keys else -1 for key in ("obs", "reward", "done", "trunc"))
        self._dtype = self._pool._spec._action_spec[-1][0]
        self._lives = Lives(size) if life_ends else None
        self._at_lives = keys.index("info:lives") if life_ends else -1

    def reset(self) -> Array:
        obs, info = self._pool.reset()
        if self._lives is not None:
            self._lives.begin(self._ids, info["lives"])
        return self._observations.batch(obs, self.size)

    def step(self, action: Array) -> Step:
        decoded = self._actions.decode(action)
        cut = None
        if self._plain:
            self._pool._send([self._ids, self._ids, decoded.astype(self._dtype, copy=False)])
            state = self._pool._recv()
            obs, reward, done, truncated = (state[at] for at in self._at)
            terminated = done & ~truncated
            if self._lives is not None:
                cut = self._lives.lost(state[self._at_lives])
        else:
            obs, reward, terminated, truncated, _ = self._pool.step(decoded)
        return Step(self._observations.batch(obs, self.size), reward, terminated, truncated, self._never, cut)

    def restart(self, index: int) -> Array:
        obs, info = self._pool.reset(np.array([index], np.int32))
        if self._lives is not None:
            self._lives.begin(index, info["lives"][0])
        return self._observations.batch(obs, 1)[0]

    def snapshot(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        if arrays:
            raise ValueError("an EnvPool batch has no state to restore")

    def close(self) -> None:
        self._pool.close()


class EnvPoolSingle:
    """An `EvalEnv` on EnvPool itself, for ids that Gymnasium cannot build here. A new seed is a new pool."""

    def __init__(self, name: str, task: str, render: bool = False, options: Mapping[str, Any] | None = None) -> None:
        self._task, self._options = task, {**(options or {}), **({"render_mode": "rgb_array"} if render else {})}
        self.can_render = render
        self._pool = make(task, [0], self._options)
        self._observations = Observations(self._pool.observation_space)
        self._actions = Actions(self._pool.action_space)
        self.spec = EnvSpec(name, self._observations.spec, self._actions.spec)

    def reset(self, seed: int) -> Array:
        self._pool.close()
        self._pool = make(self._task, [seed % 2**31], self._options)
        return self._observations.batch(self._pool.reset()[0], 1)[0]

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        decoded = self._actions.decode(np.asarray(action)[None])
        obs, reward, terminated, truncated, _ = self._pool.step(decoded)
        return self._observations.batch(obs, 1)[0], float(reward[0]), bool(terminated[0]), bool(truncated[0])

    def flat(self, obs: Any) -> Array:
        return self._observations.single(obs)

    def own(self, action: Array) -> Any:
        return self._actions.single(action)

    def render(self) -> np.ndarray:
        frames: np.ndarray = self._pool.render()
        return np.asarray(frames[0])

    def close(self) -> None:
        self._pool.close()
