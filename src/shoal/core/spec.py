"""Shapes of observations and actions: flat arrays with a documented order.

An observation is one array per environment: a float32 vector, or an NHWC uint8 image. An action is one array too:

| Gymnasium space | parts | array for B environments |
| --- | --- | --- |
| Discrete(n) | one Categorical | int32 [B] |
| MultiDiscrete(nvec) | one Categorical with several sizes | int32 [B, len(nvec)] |
| MultiBinary(n) | one Binary | int32 [B, n] |
| Box(low, high) | one Continuous | float32 [B, n], in normalised coordinates: -1 is low, 1 is high |
| Tuple, Dict | the parts of its members, in order | float32 [B, width]; integers are stored exactly |
"""

from __future__ import annotations

import msgspec
import numpy as np


class Categorical(msgspec.Struct, frozen=True, tag=True):
    """Integers, entry i from 0 to sizes[i] - 1."""

    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        return len(self.sizes)


class Binary(msgspec.Struct, frozen=True, tag=True):
    """Independent bits."""

    size: int

    @property
    def width(self) -> int:
        return self.size


class Continuous(msgspec.Struct, frozen=True, tag=True):
    """Real numbers. Actions are normalised: the policy's -1 and 1 are the environment's `low` and `high`.

    An entry without finite bounds is passed through unscaled and unclipped.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def width(self) -> int:
        return len(self.low)


ActionPart = Categorical | Binary | Continuous


class ActionSpec(msgspec.Struct, frozen=True):
    """The parts of an action, in the order of their columns."""

    parts: tuple[ActionPart, ...]
    scalar: bool = False  # a lone Discrete: the array is [B], not [B, 1]

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts)

    @property
    def spaces(self) -> str:
        """The parts by Gymnasium's names of their spaces, for messages."""
        names = {Categorical: "MultiDiscrete", Binary: "MultiBinary", Continuous: "Box"}
        single = [type(part) is Categorical and part.width == 1 for part in self.parts]
        return ", ".join("Discrete" if one else names[type(p)] for one, p in zip(single, self.parts, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one environment's action."""
        return () if self.scalar else (self.width,)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        mixed = any(isinstance(part, Continuous) for part in self.parts)
        return np.dtype(np.float32 if mixed else np.int32)


class ObsSpec(msgspec.Struct, frozen=True):
    """One environment's observation: `(n,)` float32, or `(height, width, channels)` uint8."""

    shape: tuple[int, ...]
    dtype_name: str = "float32"

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return np.dtype(self.dtype_name)

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3


class EnvSpec(msgspec.Struct, frozen=True):
    """The facts about an environment that an algorithm needs."""

    name: str
    obs: ObsSpec
    action: ActionSpec
