"""PI regulators for the booster, to compare agents with: VIMIN = MIN - alpha e - beta, beta += gamma e.

MIN is the mean of the recorded VIMIN. They set VIMIN directly, within its range: neither the 30 actions nor the quartiles limit
them. `python -m shoal.envs.booster.regulator` prints the search from which the tuned gains come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.utils import seeding

from shoal.core.keys import episode_seed
from shoal.core.trajectory import Array
from shoal.envs.booster.gym import draw_key
from shoal.envs.booster.plant import ALPHA, GAMMA, IMINER, VIMIN
from shoal.envs.booster.task import Booster


class Gains(NamedTuple):
    alpha: float
    gamma: float


BASELINES = {"pi": Gains(ALPHA, GAMMA), "pi-tuned": Gains(0.25, 0.15)}
ALPHAS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35)
GAMMAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)


class Regulated(NamedTuple):
    """Episodes under a regulator or an agent."""

    returns: np.ndarray  # [episodes]
    errors: np.ndarray  # [episodes, steps]: IMINER; 0 after the end
    settings: np.ndarray  # [episodes, steps]: VIMIN


def regulate(env: Booster, gains: Gains, episodes: int = 100, seed: int = 0) -> Regulated:
    """Whole episodes of `env` under a PI regulator that begins with beta = 0.

    They have the starts and the noise of an evaluation of the Gymnasium form with this seed (`shoal eval RUN --seed S`).
    """
    rewards, errors, settings = _episodes(env, gains, _draws(env, episodes, seed))
    return Regulated(np.asarray(rewards).sum(1), np.asarray(errors), np.asarray(settings))


def search(
    env: Booster, alphas: Sequence[float] = ALPHAS, gammas: Sequence[float] = GAMMAS, episodes: int = 500, seed: int = 0
) -> np.ndarray:
    """Mean returns [alphas, gammas] over the same episodes. On `Booster()` they lie in the fitted part of the series."""
    draws = _draws(env, episodes, seed)
    found = [[_episodes(env, Gains(alpha, gamma), draws)[0].sum(1).mean() for gamma in gammas] for alpha in alphas]
    return np.array(found, np.float64)


def follow(env: Booster, policy: Callable[[np.ndarray], Any], seed: int = 0) -> Regulated:
    """One episode under an agent, with the start and the noise of `regulate(env, gains, 1, seed)`."""
    first, *rest = episode_draws(seed, 0, env.max_steps)
    state, obs = env.reset(jax.random.key(first))
    step = jax.jit(env.step)
    seen = np.zeros((3, env.max_steps), np.float32)
    for tick, draw in enumerate(rest):
        state, obs, reward, terminated = step(state, np.asarray(policy(np.asarray(obs))), jax.random.key(draw))
        seen[:, tick] = float(reward), float(state.window[-1, IMINER]), float(state.window[-1, VIMIN])
        if terminated:
            break
    rewards, errors, settings = seen[:, None]
    return Regulated(rewards.sum(1), errors, settings)


def _draws(env: Booster, episodes: int, seed: int) -> np.ndarray:
    return np.stack([episode_draws(seed, episode, env.max_steps) for episode in range(episodes)])


def episode_draws(seed: int, episode: int, steps: int) -> np.ndarray:
    """[1 + steps] what `BoosterEnv` draws for the start and for each step of one episode of an evaluation."""
    rng, _ = seeding.np_random(episode_seed(seed, episode))
    return np.array([draw_key(rng) for _ in range(1 + steps)])


@partial(jax.jit, static_argnums=0)
def _episodes(env: Booster, gains: Gains, draws: Array) -> tuple[Array, Array, Array]:
    centre = float(env.series.mean[VIMIN])

    def tick(carry: tuple[Array, Array, Array], draw: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
        state, beta, ended = carry
        error = state.window[-1, IMINER]
        state, _, reward, terminated = env.apply(state, centre - gains.alpha * error - beta, jax.random.key(draw))
        seen = jnp.where(ended, 0.0, jnp.array([reward, state.window[-1, IMINER], state.window[-1, VIMIN]]))
        return (state, beta + gains.gamma * error, ended | terminated), tuple(seen)

    def episode(draws: Array) -> tuple[Array, Array, Array]:
        state, _ = env.reset(jax.random.key(draws[0]))
        start = (state, jnp.float32(0), jnp.bool_(False))
        return jax.lax.scan(tick, start, draws[1:])[1]

    return jax.vmap(episode)(draws)


if __name__ == "__main__":
    print("alpha \\ gamma " + "".join(f"{gamma:>8g}" for gamma in GAMMAS))
    for alpha, row in zip(ALPHAS, search(Booster()), strict=True):
        print(f"{alpha:>13g} " + "".join(f"{ret:>8.2f}" for ret in row))
