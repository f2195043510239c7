"""Rounds: one contribution of each child is kept until there are enough; then all are averaged together.

A round ends when every connected child has contributed, or when a quorum has and the grace period for the others is over. No
child waits for it: each continues training from its own weights. A further push in the same round replaces its last one, or is
added to it if the rule takes changes; their steps add up in both cases, as both led to the vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.rules.rule import Contribution, Memory, Step, some
from shoal.federation.wire import Adopts, Takes

Average = Callable[[tuple[Contribution, ...]], np.ndarray]


def gather(memory: Memory, one: Contribution, takes: Takes, quorum: int, now: float) -> Memory:
    """Add a contribution to the memory. Weights replace older ones of the same child, changes and steps are added to them."""
    others = tuple(other for other in memory.pending if other.child != one.child)
    if len(others) < len(memory.pending):
        older = next(other for other in memory.pending if other.child == one.child)
        one = one._replace(steps=older.steps + one.steps)
        if takes == "delta":  # it was measured from the older push
            one = one._replace(vector=np.asarray(older.vector + one.vector, np.float32))
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


def close(memory: Memory, present: int, grace: float, now: float, average: Average, weighted: bool) -> Step:
    """Average the pending contributions if the round is over, and clear them."""
    if not is_over(memory, present, grace, now):
        return Step(None, memory)
    shares = shares_of(memory.pending) if weighted else [1.0] * len(memory.pending)
    pending = tuple(one._replace(share=share) for one, share in zip(memory.pending, shares, strict=True))
    used = tuple((one, one.share / sum(shares)) for one in pending)
    return Step(average(pending), memory._replace(pending=(), quorum_at=None), used)


def shares_of(pending: tuple[Contribution, ...]) -> list[float]:
    """Weights of contributions in the average of their round: environment steps where they count by them."""
    if any(one.steps for one in pending):
        return [float(one.steps) for one in pending]
    return some([one.share for one in pending])


@dataclass(frozen=True, kw_only=True)
class Rounds(ABC):
    """Base of rules that work in rounds. Concrete rules say in `tick` how a round is averaged."""

    takes: ClassVar[Takes]
    adopts: ClassVar[Adopts] = "newer"
    least: ClassVar[int] = 1  # smallest quorum
    weighted: ClassVar[bool] = True  # contributions count by their shares

    quorum: int = 1
    """Children that must have pushed before a round can end."""
    grace: float = 5.0
    """Seconds that a round with a quorum waits for the other connected children."""

    def __post_init__(self) -> None:
        if self.quorum < self.least:
            raise BadInput(f"quorum is {self.quorum}; this rule needs at least {self.least} children in a round")
        if not 0.0 <= self.grace < float("inf"):
            raise BadInput(f"grace is {self.grace}; it must be a number of seconds, 0 or more")

    @property
    def pull(self) -> float:
        return 1.0

    def receive(self, parent: np.ndarray, memory: Memory, one: Contribution, present: int, now: float) -> Step:
        return self.tick(parent, gather(memory, one, self.takes, self.quorum, now), present, now)

    @abstractmethod
    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step: ...

    def ended(self, memory: Memory, present: int, now: float, average: Average) -> Step:
        """Average the pending contributions if the round is over."""
        return close(settled(memory, self.quorum, now), present, self.grace, now, average, self.weighted)


@dataclass(frozen=True, kw_only=True)
class RobustRounds(Rounds):
    """Base of rules for untrusted children, who report their own shares: all children of a round count equally."""

    least: ClassVar[int] = 3
    weighted: ClassVar[bool] = False

    quorum: int = 3
    """Children that must have pushed before a round can end; at least 3."""
