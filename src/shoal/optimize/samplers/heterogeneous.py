"""Several samplers at once: each supplies its share of the starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.algorithm import ActorState
from shoal.core.starts import Starts
from shoal.core.trajectory import Array


@dataclass(frozen=True)
class SplitStarts:
    """One share of the starts per driver, as even as the numbers allow."""

    drivers: tuple[Starts, ...]

    def init(self, key: Array) -> Any:
        return tuple(d.init(jax.random.fold_in(key, i)) for i, d in enumerate(self.drivers))

    def sample(self, state: Any, actor: ActorState, key: Array, n: int) -> tuple[Array, Any]:
        share, rest = divmod(n, len(self.drivers))
        starts, states = [], []
        for i, (driver, remembered) in enumerate(zip(self.drivers, state, strict=True)):
            size = share + (i < rest)
            drawn, after = driver.sample(remembered, actor, jax.random.fold_in(key, i), size)
            starts.append(drawn)
            states.append(after)
        return jnp.concatenate(starts), tuple(states)
