"""Environments that hide velocities, for policies with a memory: Gymnasium's own, with some entries of the observation left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.core.spec import EnvSpec, ObsSpec
from shoal.core.trajectory import Array

if TYPE_CHECKING:
    from shoal.envs.jax_envs import JaxEnv

IDS: dict[str, tuple[str, tuple[int, ...]]] = {  # {id: (Gymnasium's id, entries of the observation that are shown)}
    "shoal/MaskedCartPole-v0": ("CartPole-v1", (0, 2)),  # the cart's position and the pole's angle
    "shoal/MaskedPendulum-v0": ("Pendulum-v1", (0, 1)),  # cosine and sine of the angle
}


def register() -> None:
    """Add the ids to Gymnasium's registry, unless they are there."""
    for name, (whole, shown) in IDS.items():
        if name not in gymnasium.registry:
            limit = gymnasium.registry[whole].max_episode_steps
            kwargs = {"whole": whole, "shown": shown}
            gymnasium.register(name, "shoal.envs.masked:make", max_episode_steps=limit, kwargs=kwargs)


def make(whole: str, shown: tuple[int, ...], render_mode: str | None = None) -> Any:
    """Gymnasium's environment `whole`, without its time limit, that shows these entries of its observations."""
    env: Any = gymnasium.make(whole, render_mode=render_mode, disable_env_checker=True).unwrapped
    box, kept = env.observation_space, np.array(shown)
    space = spaces.Box(box.low[kept], box.high[kept], dtype=box.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[kept], space)


class Masked(NamedTuple):
    """The same for environments written in JAX."""

    env: JaxEnv
    name: str
    shown: tuple[int, ...]

    @property
    def max_steps(self) -> int | None:
        return self.env.max_steps

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(self.name, ObsSpec((len(self.shown),)), self.env.spec.action)

    def reset(self, key: Array) -> tuple[Any, Array]:
        state, obs = self.env.reset(key)
        return state, obs[np.array(self.shown)]

    def step(self, state: Any, action: Array, key: Array) -> tuple[Any, Array, Array, Array]:
        state, obs, reward, terminated = self.env.step(state, action, key)
        return state, obs[np.array(self.shown)], reward, terminated
