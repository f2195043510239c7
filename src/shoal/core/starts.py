"""Samplers of initial states, as plug-ins: the actor calls one at the start of every fresh unroll."""

from __future__ import annotations

from typing import Any, Protocol

from shoal.core.algorithm import ActorState
from shoal.core.trajectory import Array


class Starts(Protocol):
    """A sampler of initial states, pure and hashable. It runs on the actor, so it can query the policy's uncertainty."""

    def init(self, key: Array) -> Any:
        """The sampler's initial state, a tree of arrays, carried between unrolls."""

    def sample(self, state: Any, actor: ActorState, key: Array, n: int) -> tuple[Array, Any]:
        """(n initial states in the form that the environment's reset takes, the sampler's next state)."""
