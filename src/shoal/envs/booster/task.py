"""The booster as an environment in JAX: keep IMINER near 0 by changing VIMIN once per tick. The data are synthetic.

Agents train on the surrogate: it predicts IMINER, to which the recorded residual of that tick is added, so that noise and
drift act on the agent as they did on the recording; the other channels are replayed. With `plant` the
synthetic plant itself is stepped, which is where agents are judged. A user's series has no plant: its agents train on the
first part and are judged on the surrogate with `held_out`, on rows that neither they nor the surrogate were fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import BadInput
from shoal.core.spec import ActionSpec, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Array
from shoal.envs.booster import plant as physics
from shoal.envs.booster.ids import STEPS
from shoal.envs.booster.plant import CHANNELS, IMINER, VIMIN
from shoal.envs.booster.series import Series, load
from shoal.envs.booster.surrogate import COLUMNS, predict, surrogate

ACTIONS = 30
WINDOW = 15  # columns that a continuous agent sees
HISTORY = 150  # columns before an episode: their range of VIMIN is the episode's
LIMIT = 2.0  # |IMINER| that ends the episode
PENALTY = 5.0  # for each step left when it does
FAR = 20.0  # observations are clipped to this many standard deviations


class State(NamedTuple):
    window: Array  # [WINDOW, 5], newest last, in the channels' own units
    row: Array  # int32: of the series, at the newest column
    steps: Array  # int32: of the episode
    limits: Array  # [2]: the range of VIMIN, to which settings are clipped
    plant: physics.Plant  # unused on the surrogate


@dataclass(frozen=True)
class Booster:
    """30 discrete changes of VIMIN with the newest column, or a continuous one with a window of 15. Rewards -|IMINER|.

    Raises `BadInput` if `data`, a CSV file in place of the synthetic series, cannot be used.
    """

    data: str | None = None
    continuous: bool = False
    plant: bool = False
    held_out: bool = False

    max_steps: ClassVar[int] = STEPS

    def __post_init__(self) -> None:
        if self.data is not None and self.plant:
            raise BadInput(f"plant is True with data {self.data!r}: a recorded series has no plant to step")
        if self.data is not None:
            load(self.data)

    @property
    def judged(self) -> Booster:
        """The environment in which its agents are evaluated: the plant, or the held-out part of a user's series."""
        if self.plant:
            return self
        return replace(self, plant=True) if self.data is None else replace(self, held_out=True)

    @property
    def series(self) -> Series:
        return load(self.data)

    @property
    def r2(self) -> float:
        """Measures how well the surrogate predicts the held-out part of its series, one tick ahead."""
        return surrogate(self.data).r2

    @property
    def spec(self) -> EnvSpec:
        name = f"shoal/Booster{'Continuous' * self.continuous}{'Plant' * self.plant}-v0"
        if self.continuous:
            action = ActionSpec((Continuous((-1.0,), (1.0,)),))
            return EnvSpec(name, ObsSpec((WINDOW * len(CHANNELS),)), action)
        return EnvSpec(name, ObsSpec((len(CHANNELS),)), ActionSpec((Categorical((ACTIONS,)),), scalar=True))

    def reset(self, key: Array) -> tuple[State, Array]:
        """Begin at a random row: of the fitted part on the surrogate, of the held-out part on the plant and with `held_out`.

        With `held_out` only the columns before an episode may lie in the fitted part, because a short series has few others.
        """
        series = self.series
        first, last = HISTORY - 1, series.split
        if self.plant or self.held_out:
            first, last = series.split + (HISTORY if self.plant else 0) - 1, len(series.rows)
        row = jax.random.randint(key, (), first, last - STEPS)
        history = jax.lax.dynamic_slice_in_dim(jnp.asarray(series.rows), row - HISTORY + 1, HISTORY)
        limits = jnp.stack([history[:, VIMIN].min(), history[:, VIMIN].max()])
        window = history[-WINDOW:]
        window = window.at[-1, VIMIN].set(window[-2, VIMIN])  # this tick's setting is the agent's to choose
        state = State(window, row, jnp.int32(0), limits, self._plant_at(row))
        return state, self._observe(window)

    def _plant_at(self, row: Array) -> physics.Plant:
        states = self.series.states
        if not self.plant or states is None:
            return physics.Plant(jnp.float32(0), jnp.float32(0), jnp.float32(0), jnp.int32(0))
        return physics.Plant(*(jnp.asarray(part)[row] for part in states))

    def step(self, state: State, action: Array, key: Array) -> tuple[State, Array, Array, Array]:
        return self.apply(state, state.window[-1, VIMIN] + self.change(action), key)

    def change(self, action: Array) -> Array:
        """The change of VIMIN that an action stands for: a quantile of the recorded ones, or a value between the quartiles."""
        if self.continuous:
            low, high = self.series.changes(np.array([0.25, 0.75]))
            return (low + high) / 2 + jnp.clip(action[0], -1, 1) * (high - low) / 2
        return jnp.asarray(self.series.changes((np.arange(ACTIONS) + 0.5) / ACTIONS))[action]

    def apply(self, state: State, setting: Array, key: Array) -> tuple[State, Array, Array, Array]:
        """Step with VIMIN at `setting`, clipped to the episode's range."""
        setting = jnp.clip(setting, state.limits[0], state.limits[1])
        window = state.window.at[-1, VIMIN].set(setting)
        row, steps, inside = state.row + 1, state.steps + 1, state.plant
        if self.plant:
            noise = jax.random.normal(key, (6,))
            inside = physics.advance(inside, setting, noise[:3])
            column = physics.measure(inside, setting, noise[3:])
        else:
            column = jnp.asarray(self.series.rows)[row].at[VIMIN].set(setting)
            column = column.at[IMINER].set(self._predict(window, row))
        window = jnp.concatenate([window[1:], column[None]])
        error = jnp.abs(column[IMINER])
        terminated = error >= LIMIT
        reward = -error - jnp.where(terminated, PENALTY * (STEPS - steps), 0.0)
        return State(window, row, steps, state.limits, inside), self._observe(window), reward, terminated

    def _predict(self, window: Array, row: Array) -> Array:
        mean, scale = self.series.mean, self.series.scale
        columns = ((window[-COLUMNS:] - mean) / scale).reshape(-1)
        model = surrogate(self.data)
        after = predict(model.weights, columns) + jnp.asarray(model.residuals)[row]
        return after * scale[IMINER] + mean[IMINER]

    def _observe(self, window: Array) -> Array:
        seen = window if self.continuous else window[-1]
        scaled = (seen - self.series.mean) / self.series.scale
        return jnp.clip(scaled, -FAR, FAR).reshape(-1).astype(jnp.float32)
