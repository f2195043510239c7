"""The contract of every backend: B environments stepped together, with next-step autoreset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from shoal.core.spec import EnvSpec
from shoal.core.trajectory import Array


class Step(NamedTuple):
    """The result of a step. The arrays may be reused by the next step: copy what you keep."""

    obs: Array  # [B, ...]
    reward: Array  # [B] float32
    terminated: Array  # [B] bool
    truncated: Array  # [B] bool
    dropped: Array  # [B] bool: the episode was lost, `obs` is the first of a new one
    cut: Array | None = None  # [B] bool: the episode continues, but no value is bootstrapped across this step


class Lives:
    """Lives left in each environment of a batch, to detect where one was lost."""

    def __init__(self, size: int) -> None:
        self._left = np.zeros(size, np.int64)

    def begin(self, index: Any, left: Any) -> None:
        """Begin an episode with `left` lives in the environments `index`."""
        self._left[index] = left

    def lost(self, left: Array) -> np.ndarray:
        """[B] bool: True where fewer lives are left than before."""
        lost: np.ndarray = left < self._left
        self._left[:] = left
        return lost


class EnvBatch(Protocol):
    """B environments. The step after an end ignores the action, has reward 0 and returns the next episode's first
    observation. A batch is used by one caller at a time."""

    spec: EnvSpec
    size: int
    faults: list[tuple[str, str]]  # (kind, traceback) since the caller last emptied it; kind is env_raised

    def reset(self) -> Array:
        """Begin an episode in every environment: first observations, [B, ...]."""

    def step(self, action: Array) -> Step:
        """Step all environments. `action` [B, ...] is in the coordinates of `core.spec`; the batch converts it."""

    def restart(self, index: int) -> Array:
        """Abandon the running episode of one environment. Returns the first observation of its next episode."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """The state that `restore` needs to continue bit for bit; {} if that is not possible."""

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Startable(Protocol):
    """A batch whose episodes can begin at given states."""

    def begin_at(self, starts: Array) -> Array:
        """Begin an episode in every environment, environment i at `starts[i]`: first observations, [B, ...]."""


class EvalEnv(Protocol):
    """One environment for evaluation and video, in Shoal's flat form: Gymnasium's own if it has one."""

    spec: EnvSpec
    can_render: bool

    def reset(self, seed: int) -> Array:
        """The first observation of the episode that belongs to `seed`."""

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        """(observation, reward, terminated, truncated)."""

    def flat(self, obs: Any) -> Array:
        """Convert the environment's own observation to Shoal's. Needs no live environment."""

    def own(self, action: Array) -> Any:
        """Convert Shoal's action to the environment's own. Needs no live environment."""

    def render(self) -> np.ndarray:
        """The current frame: [height, width, 3] uint8."""

    def close(self) -> None: ...


def seed_of(seed: int, *path: int) -> int:
    """A seed below 2**31, derived from `seed` and a path of numbers such as (actor, environment, episode)."""
    return int(np.random.SeedSequence(entropy=seed, spawn_key=path).generate_state(1)[0] % 2**31)
