"""Rounds: the newest contribution of each child is kept until there are enough; then all are averaged together.

A round ends when every connected child has contributed, or when a quorum has and the grace period for the others is over. No
child waits for it: each continues training from its own weights, and a further push in the same round replaces its last one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.rules.rule import Contribution, Memory, Step

Average = Callable[[tuple[Contribution, ...]], np.ndarray]


def gather(memory: Memory, one: Contribution, quorum: int, now: float) -> Memory:
    """Add a contribution to the memory; it replaces an older one of the same child."""
    others = tuple(other for other in memory.pending if other.child != one.child)
    return settled(memory._replace(pending=(*others, one)), quorum, now)


def settled(memory: Memory, quorum: int, now: float) -> Memory:
    """Record in the memory when the quorum was reached."""
    if len(memory.pending) < quorum:
        return memory._replace(quorum_at=None)
    return memory if memory.quorum_at is not None else memory._replace(quorum_at=now)


def is_over(memory: Memory, present: int, grace: float, now: float) -> bool:
    """Whether the round ends now."""
    if memory.quorum_at is None:
        return False
    return len(memory.pending) >= present or now - memory.quorum_at >= grace


def close(memory: Memory, present: int, grace: float, now: float, average: Average, weighted: bool = True) -> Step:
    """Average the pending contributions if the round is over, and clear them."""
    if not is_over(memory, present, grace, now):
        return Step(None, memory)
    shares = [one.share if weighted else 1.0 for one in memory.pending]
    used = tuple((one, share / sum(shares)) for one, share in zip(memory.pending, shares, strict=True))
    return Step(average(memory.pending), memory._replace(pending=(), quorum_at=None), used)


def check_round(quorum: int, grace: float, least: int = 1) -> None:
    """Raise `BadInput` for an impossible quorum or grace period."""
    if quorum < least:
        raise BadInput(f"quorum is {quorum}; this rule needs at least {least} children in a round")
    if not 0.0 <= grace < float("inf"):
        raise BadInput(f"grace is {grace}; it must be a number of seconds, 0 or more")
