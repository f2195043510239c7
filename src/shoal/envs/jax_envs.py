"""Environments written in JAX: the protocol for writing one, and how a batch of them is stepped.

`BatchedJax` is pure, so the same functions serve a `JaxBatch` that an actor steps and a scan over the whole training loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import BadInput
from shoal.core.spec import ActionSpec, Continuous, EnvSpec
from shoal.core.trajectory import Array
from shoal.envs.batch import Step


@runtime_checkable
class JaxEnv(Protocol):
    """One environment as pure functions. Hashable: two equal ones compile once. Its state is a tree of arrays.

    Observations are float32 vectors or uint8 images (height, width, channels), as `spec` says. Actions arrive in
    the environment's own range: a Continuous part is already scaled to its bounds. An environment may also be `Drawable`,
    `JudgedElsewhere` or `StartsAnywhere`.
    """

    @property
    def spec(self) -> EnvSpec: ...

    @property
    def max_steps(self) -> int | None:
        """The time limit: the episode is truncated after this many steps. None for no limit."""

    def reset(self, key: Array) -> tuple[Any, Array]:
        """(state, first observation)."""

    def step(self, state: Any, action: Array, key: Array) -> tuple[Any, Array, Array, Array]:
        """(state, observation, reward, terminated)."""


@runtime_checkable
class Drawable(JaxEnv, Protocol):
    """An environment that can be drawn."""

    def render(self, state: Any) -> Any:
        """A picture of one environment: [height, width, 3] uint8."""


@runtime_checkable
class JudgedElsewhere(JaxEnv, Protocol):
    """An environment that only trains: evaluation plays another one."""

    @property
    def judged(self) -> JaxEnv: ...


@runtime_checkable
class StartsAnywhere(JaxEnv, Protocol):
    """An environment in which an episode can begin at a given state."""

    def start_at(self, key: Array, start: Array) -> tuple[Any, Array]:
        """(state, first observation)."""


class Carry(NamedTuple):
    """The state of a batch between two steps: plain arrays, so that it can be saved and scanned over."""

    state: Any  # the environments', each leaf [B, ...]
    obs: Array  # [B, ...]
    seeds: Array  # [B, 2] uint32: each environment's own key
    clock: Array  # [] int32: steps of the batch, autoreset rows included
    steps: Array  # [B] int32: of the running episode
    ended: Array  # [B] bool: the next step begins an episode


Outcome = tuple[Array, Array, Array, Array]  # obs, reward, terminated, truncated


@dataclass(frozen=True, eq=False)
class BatchedJax:
    """`size` copies of `env` with next-step autoreset. Pure functions; hashable."""

    env: JaxEnv
    size: int

    def __eq__(self, other: object) -> bool:
        """Environments of different classes differ, even if they are named tuples with the same content."""
        if not isinstance(other, BatchedJax) or type(self.env) is not type(other.env):
            return False
        return (self.env, self.size) == (other.env, other.size)

    def __hash__(self) -> int:
        return hash((type(self.env), self.env, self.size))

    def init(self, key: Array) -> Carry:
        """Begin an episode in every environment; environment i's randomness derives from (key, i)."""
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(self.size))
        return self._begin(jax.random.key_data(keys), jnp.zeros((), jnp.int32))

    def restart(self, carry: Carry) -> Carry:
        """Abandon every running episode and begin new ones."""
        return self._begin(carry.seeds, carry.clock + 1)

    def begin_at(self, carry: Carry, starts: Array) -> Carry:
        """Abandon every running episode; environment i begins at `starts[i]`. Needs `StartsAnywhere`."""
        assert isinstance(self.env, StartsAnywhere), self.env
        clock = carry.clock + 1
        state, obs = jax.vmap(self.env.start_at)(self._keys(carry.seeds, clock), starts)
        none = jnp.zeros(self.size, jnp.int32)
        return Carry(state, obs, carry.seeds, clock, none, none.astype(bool))

    def restart_one(self, carry: Carry, index: Array) -> Carry:
        """Abandon one environment's episode and begin a new one."""
        begun = self.restart(carry)
        chosen = jnp.arange(self.size) == index
        mixed: Carry = jax.tree.map(
            lambda new, old: new if new.ndim == 0 else jnp.where(_against(chosen, new), new, old), begun, carry
        )
        return mixed

    def step(self, carry: Carry, action: Array) -> tuple[Carry, Outcome]:
        """Step all environments. Where an episode had ended, the action is ignored and the next episode begins."""
        env, ended = self.env, carry.ended
        clock = carry.clock + 1
        keys = self._keys(carry.seeds, clock)  # drawn once: an environment either steps or begins
        own = to_own(env.spec.action, action)
        state, obs, reward, terminated = jax.vmap(env.step)(carry.state, own, keys)
        fresh_state, fresh_obs = jax.vmap(env.reset)(keys)
        state = jax.tree.map(lambda new, old: jnp.where(_against(ended, new), new, old), fresh_state, state)
        obs = jnp.where(_against(ended, obs), fresh_obs, obs)
        steps = jnp.where(ended, 0, carry.steps + 1)
        reward = jnp.where(ended, 0.0, reward).astype(jnp.float32)
        terminated = terminated & ~ended
        truncated = (steps >= env.max_steps) if env.max_steps is not None else jnp.zeros_like(ended)
        after = Carry(state, obs, carry.seeds, clock, steps, terminated | truncated)
        return after, (obs, reward, terminated, truncated)

    def _begin(self, seeds: Array, clock: Array) -> Carry:
        state, obs = jax.vmap(self.env.reset)(self._keys(seeds, clock))
        none = jnp.zeros(self.size, jnp.int32)
        return Carry(state, obs, seeds, clock, none, none.astype(bool))

    def _keys(self, seeds: Array, clock: Array) -> Array:
        return jax.vmap(lambda seed: jax.random.fold_in(jax.random.wrap_key_data(seed), clock))(seeds)


def _against(mask: Array, value: Array) -> Array:
    """`mask` [B], shaped so that it selects along the first axis of `value`."""
    return mask.reshape(mask.shape + (1,) * (value.ndim - 1))


def to_own(spec: ActionSpec, action: Array) -> Array:
    """Actions in the environment's range, from the coordinates of `core.spec`: [B, ...] to [B, ...]."""
    if not any(isinstance(part, Continuous) for part in spec.parts):
        return action
    columns, at = [], 0
    for part in spec.parts:
        piece, at = action[:, at : at + part.width], at + part.width
        if isinstance(part, Continuous):
            low, high = np.array(part.low, np.float32), np.array(part.high, np.float32)
            bounded = np.isfinite(low) & np.isfinite(high)
            least, most = np.where(bounded, low, -1), np.where(bounded, high, 1)
            scaled = (most + least) / 2 + jnp.clip(piece, -1, 1) * ((most - least) / 2)
            piece = jnp.where(bounded, scaled, jnp.clip(piece, low, high))
        columns.append(piece)
    return jnp.concatenate(columns, axis=1)


def is_jax(env: Any) -> TypeGuard[JaxEnv]:
    """Whether `env` is a `JaxEnv`. Gymnasium environments that happen to have a `max_steps` are not."""
    return isinstance(env, JaxEnv) and not isinstance(env, gymnasium.Env)


def actor_key(seed: int, actor: int) -> Array:
    """The root key of an actor's JAX environments."""
    return jax.random.fold_in(jax.random.key(seed), actor)


class JaxBatch:
    """An `EnvBatch` over `BatchedJax`, compiled."""

    def __init__(self, env: JaxEnv, size: int, seed: int, actor: int) -> None:
        self.spec, self.size = env.spec, size
        self.faults: list[tuple[str, str]] = []
        self._key = actor_key(seed, actor)
        self._batched = BatchedJax(env, size)
        self._carry: Carry | None = None
        self._none = np.zeros(size, np.bool_)
        self._none.flags.writeable = False

    def reset(self) -> Array:
        if self._carry is None:
            self._carry = _init(self._batched, self._key)
        else:
            self._carry = _restart(self._batched, self._carry)
        return self._carry.obs

    def begin_at(self, starts: Array) -> Array:
        if self._carry is None:
            self._carry = _init(self._batched, self._key)
        self._carry = _begin_at(self._batched, self._carry, starts)
        return self._carry.obs

    def step(self, action: Array) -> Step:
        if self._carry is None:
            raise RuntimeError("step before reset")
        self._carry, (obs, reward, terminated, truncated) = _step(self._batched, self._carry, action)
        return Step(obs, np.asarray(reward), np.asarray(terminated), np.asarray(truncated), self._none)

    def restart(self, index: int) -> Array:
        if self._carry is None:
            raise RuntimeError("restart before reset")
        self._carry = _restart_one(self._batched, self._carry, np.int32(index))
        return np.asarray(self._carry.obs)[index]

    def snapshot(self) -> dict[str, np.ndarray]:
        if self._carry is None:
            return {}
        return {str(i): np.array(leaf) for i, leaf in enumerate(jax.tree.leaves(self._carry))}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        shape = jax.eval_shape(self._batched.init, self._key)
        leaves = [jnp.asarray(arrays[str(i)]) for i in range(len(arrays))]
        self._carry = jax.tree.unflatten(jax.tree.structure(shape), leaves)

    def close(self) -> None:
        self._carry = None


# Compiled once for equal environments and sizes, across all actors.
_init = jax.jit(BatchedJax.init, static_argnums=0)
_restart = jax.jit(BatchedJax.restart, static_argnums=0)
_begin_at = jax.jit(BatchedJax.begin_at, static_argnums=0)
_restart_one = jax.jit(BatchedJax.restart_one, static_argnums=0)
_step = jax.jit(BatchedJax.step, static_argnums=0)


class JaxSingle:
    """An `EvalEnv` over one JAX environment that Gymnasium does not have."""

    def __init__(self, env: JaxEnv) -> None:
        self.spec = env.spec
        self._batched = BatchedJax(env, 1)
        self._carry: Carry | None = None
        self._picture = env.render if isinstance(env, Drawable) else None
        self.can_render = self._picture is not None

    def reset(self, seed: int) -> Array:
        self._carry = _init(self._batched, actor_key(seed, 0))
        return np.asarray(self._carry.obs)[0]

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        if self._carry is None:
            raise RuntimeError("step before reset")
        self._carry, (obs, reward, terminated, truncated) = _step(self._batched, self._carry, np.asarray(action)[None])
        return np.asarray(obs)[0], float(reward[0]), bool(terminated[0]), bool(truncated[0])

    def flat(self, obs: Any) -> Array:
        return np.asarray(obs, self.spec.obs.dtype)

    def own(self, action: Array) -> Any:
        return np.asarray(to_own(self.spec.action, np.asarray(action)[None]))[0]

    def render(self) -> np.ndarray:
        if self._picture is None or self._carry is None:
            raise BadInput(f"environment {self.spec.name!r} has no render(state) that draws it")
        return np.asarray(self._picture(jax.tree.map(lambda leaf: leaf[0], self._carry.state)))

    def close(self) -> None:
        self._carry = None
