"""Problems that are learnt in seconds, as JAX environments (for `fused`) and as Gymnasium ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from shoal.core.spec import ActionSpec, Binary, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Array

PARTS: dict[str, ActionSpec] = {
    "Discrete": ActionSpec((Categorical((4,)),), scalar=True),
    "MultiDiscrete": ActionSpec((Categorical((3, 2)),)),
    "MultiBinary": ActionSpec((Binary(3),)),
    "Box": ActionSpec((Continuous((-2.0, 0.0), (2.0, 3.0)),)),
    "mixed": ActionSpec((Categorical((3,)), Continuous((-1.0,), (1.0,)), Binary(2))),
}


class Identity(NamedTuple):
    """Shows what to do, each step something else. The reward is the share of entries that the action got right."""

    kind: str
    max_steps: int = 8

    @property
    def spec(self) -> EnvSpec:
        width = sum(sum(p.sizes) if isinstance(p, Categorical) else p.width for p in PARTS[self.kind].parts)
        return EnvSpec(f"Identity-{self.kind}", ObsSpec((width,)), PARTS[self.kind])

    def reset(self, key: Array) -> tuple[Array, Array]:
        return self._show(key)

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array]:
        given, at, scores = jnp.atleast_1d(action), 0, []
        for part in PARTS[self.kind].parts:
            asked, mine, at = state[at : at + part.width], given[at : at + part.width], at + part.width
            if isinstance(part, Continuous):
                reach = (np.array(part.high, np.float32) - np.array(part.low, np.float32)) / 2
                scores.append(1 - jnp.minimum(jnp.abs(mine - asked) / reach, 1))
            else:
                scores.append((mine == asked).astype(jnp.float32))
        after, obs = self._show(key)
        return after, obs, jnp.concatenate(scores).mean(), jnp.asarray(False)

    def _show(self, key: Array) -> tuple[Array, Array]:
        """(target of each entry, what is shown of it: one-hot, bit, or where in its range from -1 to 1)."""
        target, shown = [], []
        for part in PARTS[self.kind].parts:
            key, use = jax.random.split(key)
            if isinstance(part, Categorical):
                sizes = np.array(part.sizes)
                entries = jnp.minimum(jax.random.uniform(use, (part.width,)) * sizes, sizes - 1).astype(jnp.int32)
                shown += [jax.nn.one_hot(entries[i], size) for i, size in enumerate(part.sizes)]
            elif isinstance(part, Binary):
                entries = jax.random.bernoulli(use, 0.5, (part.width,)).astype(jnp.int32)
                shown.append(entries.astype(jnp.float32))
            else:
                place = jax.random.uniform(use, (part.width,), minval=-0.9, maxval=0.9)
                low, high = np.array(part.low, np.float32), np.array(part.high, np.float32)
                entries = (low + high) / 2 + place * (high - low) / 2
                shown.append(place)
            target.append(entries.astype(jnp.float32))
        return jnp.concatenate(target), jnp.concatenate(shown)


class Bandit(NamedTuple):
    """Four arms, one step: arm 2 is best on average, all are noisy."""

    max_steps: int | None = None

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("Bandit", ObsSpec((1,)), ActionSpec((Categorical((4,)),), scalar=True))

    def reset(self, key: Array) -> tuple[Array, Array]:
        return jnp.zeros(()), jnp.ones(1)

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array]:
        reward = jnp.array([0.0, 0.3, 1.0, 0.6])[action] + 0.3 * jax.random.normal(key)
        return state, jnp.ones(1), reward, jnp.asarray(True)


class Chain(NamedTuple):
    """Four places. Left pays 0.05 and goes back to the start, right pays nothing until the end, which pays 5.

    Without looking ahead (gamma 0) left is best everywhere but at the last place.
    """

    length: int = 4
    max_steps: int = 16

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("Chain", ObsSpec((self.length,)), ActionSpec((Categorical((2,)),), scalar=True))

    def reset(self, key: Array) -> tuple[Array, Array]:
        at = jnp.zeros((), jnp.int32)
        return at, jax.nn.one_hot(at, self.length)

    def step(self, at: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array]:
        right = action == 1
        ended = right & (at == self.length - 1)
        reward = jnp.where(ended, 5.0, jnp.where(right, 0.0, 0.05))
        after = jnp.where(right, jnp.minimum(at + 1, self.length - 1), 0)
        return after, jax.nn.one_hot(after, self.length), reward, ended


class Recall(NamedTuple):
    """The first observation shows a cue, the next ones nothing; the last action must name it. Guessing earns 1/3."""

    blanks: int = 3

    @property
    def max_steps(self) -> int | None:
        return None

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("Recall", ObsSpec((5,)), ActionSpec((Categorical((3,)),), scalar=True))

    def reset(self, key: Array) -> tuple[Array, Array]:
        cue = jax.random.randint(key, (), 0, 3)
        return jnp.stack([cue, 0]), jnp.concatenate([jax.nn.one_hot(cue, 3), jnp.zeros(2)])

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array]:
        cue, time = state
        ended = time == self.blanks
        reward = jnp.where(ended & (action == cue), 1.0, 0.0)
        blank = jnp.array([0.0, 0.0, 0.0, 1.0, 0.0]) + jnp.array([0.0, 0.0, 0.0, 0.0, 1.0]) * (time + 1 == self.blanks)
        return jnp.stack([cue, time + 1]), blank, reward, ended


class Picture(NamedTuple):
    """An 8 by 8 picture with a bright square in one of four corners: name the corner."""

    max_steps: int = 8

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("Picture", ObsSpec((8, 8, 1), "uint8"), ActionSpec((Categorical((4,)),), scalar=True))

    def reset(self, key: Array) -> tuple[Array, Array]:
        corner = jax.random.randint(key, (), 0, 4)
        row, column = corner // 2, corner % 2
        place = (jnp.arange(8) // 4)[:, None] * 2 + (jnp.arange(8) // 4)[None, :]
        bright = jnp.where(place == row * 2 + column, 200, 20).astype(jnp.uint8)
        return corner, bright[..., None]

    def step(self, corner: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array]:
        after, obs = self.reset(key)
        return after, obs, (action == corner).astype(jnp.float32), jnp.asarray(False)


SPACES: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(4),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 3], np.float32)),
    "Tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (1,), np.float32))),
    "Dict": spaces.Dict({"b": spaces.MultiBinary(2), "a": spaces.Discrete(3)}),
}


class Mirror(gymnasium.Env[Any, Any]):
    """Observation and action spaces are the same: repeat what you see. The reward is the share that is right."""

    def __init__(self, kind: str = "Discrete") -> None:
        self.action_space = SPACES[kind]
        self.observation_space = SPACES[kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(np.mean(agreement(self.action_space, self._asked, action)))
        self._steps += 1
        return self._show(), reward, False, self._steps == 8, {}

    def _show(self) -> Any:
        self._asked = draw(self.action_space, self.np_random)
        return self._asked


def draw(space: Any, rng: np.random.Generator) -> Any:
    """An element by this generator alone, so that an episode belongs to its seed."""
    if isinstance(space, spaces.Tuple):
        return tuple(draw(s, rng) for s in space.spaces)
    if isinstance(space, spaces.Dict):
        return {name: draw(s, rng) for name, s in space.spaces.items()}
    if isinstance(space, spaces.Box):
        return rng.uniform(space.low, space.high).astype(np.float32)
    if isinstance(space, spaces.Discrete):
        return np.int64(rng.integers(space.n))
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=space.n).astype(np.int8)
    return rng.integers(space.nvec)


def agreement(space: Any, asked: Any, given: Any) -> list[float]:
    """1 for each entry that is right, or how near a number is, in shares of its range."""
    if isinstance(space, spaces.Tuple):
        return [x for s, a, g in zip(space.spaces, asked, given, strict=True) for x in agreement(s, a, g)]
    if isinstance(space, spaces.Dict):
        return [x for name, s in space.spaces.items() for x in agreement(s, asked[name], given[name])]
    assert space.contains(given), (space, given)
    if isinstance(space, spaces.Box):
        return list(1 - np.minimum(2 * np.abs(asked - given) / (space.high - space.low), 1))
    return list((np.atleast_1d(asked) == np.atleast_1d(given)).astype(float))


class Walk(gymnasium.Env[Any, Any]):
    """A noisy walk whose episodes both terminate and are truncated: for bits, not for learning."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._steps = float(self.np_random.uniform(-1, 1)), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._at += (2 * int(action) - 1) * 0.7 + 0.1 * float(self.np_random.normal())
        return self._obs(), self._at, abs(self._at) > 3, self._steps >= 11, {}

    def _obs(self) -> np.ndarray:
        return np.array([self._at, self._steps / 10], np.float32)
