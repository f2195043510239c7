"""The contract of every backend: B environments stepped together, with next-step autoreset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from shoal.core.spec import EnvSpec
from shoal.core.trajectory import Array


class Step(NamedTuple):
    """What followed an action. The arrays may be reused by the next step: copy what you keep."""

    obs: Array  # [B, ...]
    reward: Array  # [B] float32
    terminated: Array  # [B] bool
    truncated: Array  # [B] bool
    dropped: Array  # [B] bool: the episode was lost, `obs` is the first of a new one
    cut: Array | None = None  # [B] bool: the episode goes on, but what follows has no worth for what led here


class Lives:
    """Lives left in each environment of a batch: tells where one was lost."""

    def __init__(self, size: int) -> None:
        self._left = np.zeros(size, np.int64)

    def begin(self, index: Any, left: Any) -> None:
        """Episodes begin in the environments `index` with this many lives."""
        self._left[index] = left

    def lost(self, left: Array) -> np.ndarray:
        """[B] bool: fewer are left than before."""
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
        """`action` [B, ...] in the coordinates of `core.spec`; the batch makes the environment's own of it."""

    def restart(self, index: int) -> Array:
        """Give up the running episode of one environment: the first observation of the next, one environment's."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """What `restore` needs to go on bit for bit; {} where that cannot be had."""

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Startable(Protocol):
    """A batch whose episodes can begin where they are told to."""

    def begin_at(self, starts: Array) -> Array:
        """Begin an episode in every environment, environment i at `starts[i]`: first observations, [B, ...]."""


class EvalEnv(Protocol):
    """One environment for evaluation and video: Gymnasium's own wherever there is one, in Shoal's flat form."""

    spec: EnvSpec
    can_render: bool

    def reset(self, seed: int) -> Array:
        """The first observation of the episode that belongs to `seed`."""

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        """(observation, reward, terminated, truncated)."""

    def flat(self, obs: Any) -> Array:
        """Shoal's observation, of one of the environment's own. Needs no live environment."""

    def own(self, action: Array) -> Any:
        """The environment's own action, of one of Shoal's. Needs no live environment."""

    def render(self) -> np.ndarray:
        """The picture now: [height, width, 3] uint8."""

    def close(self) -> None: ...


def seed_of(seed: int, *path: int) -> int:
    """A seed below 2**31 that belongs to `seed` and a path of numbers, such as (actor, environment, episode)."""
    return int(np.random.SeedSequence(entropy=seed, spawn_key=path).generate_state(1)[0] % 2**31)
