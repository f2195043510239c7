"""Where episodes begin, as a plug-in: the actor asks it at the start of every fresh unroll."""

from __future__ import annotations

from typing import Any, Protocol

from shoal.core.algorithm import ActorState
from shoal.core.trajectory import Array


class Starts(Protocol):
    """Pure and hashable. It lives on the actor, so that a sampler may ask the policy where it is least sure."""

    def init(self, key: Array) -> Any:
        """What it remembers between unrolls: a tree of arrays."""

    def sample(self, state: Any, actor: ActorState, key: Array, n: int) -> tuple[Array, Any]:
        """(n starts as the environment's reset takes them, what to remember)."""
