"""Buffered asynchronous aggregation: every K changes, from any children, are applied together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.rules.rule import Contribution, Memory, Step, some, weighted_mean
from shoal.federation.rules.staleness import discount
from shoal.federation.wire import Adopts, Takes


def fedbuff(
    parent: np.ndarray, changes: Sequence[np.ndarray], taus: Sequence[int], shares: Sequence[float], rate: float
) -> np.ndarray:
    """P <- P + eta sum_i s_i (1 + tau_i)^-1/2 (C_i - base_i) / sum_i s_i.

    Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", algorithm 1.

    Args:
        parent: P [P].
        changes: C_i - base_i [P] each.
        taus: versions between each base and now.
        shares: s_i.
        rate: eta, the server's learning rate.

    Returns:
        P after it.
    """
    scaled = [np.float32(discount(tau, 0.5)) * change for change, tau in zip(changes, taus, strict=True)]
    return np.asarray(parent + np.float32(rate) * weighted_mean(scaled, list(shares)), np.float32)


@dataclass(frozen=True, kw_only=True)
class FedBuff:
    """Settings of the rule."""

    about: ClassVar[str] = "the mean of every K changes, from any children, older ones discounted (FedBuff)"
    takes: ClassVar[Takes] = "delta"
    adopts: ClassVar[Adopts] = "always"
    quorum: ClassVar[int] = 1

    buffer: int = 3
    """Number K of changes that are applied together."""
    rate: float = 1.0
    """The parent's learning rate: how much of the mean change is applied."""

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise BadInput(f"buffer is {self.buffer}; it must be at least 1")
        if not 0.0 < self.rate < float("inf"):
            raise BadInput(f"rate is {self.rate}; it must be above 0")

    @property
    def pull(self) -> float:
        return 1.0

    def receive(self, parent: np.ndarray, memory: Memory, one: Contribution, present: int, now: float) -> Step:
        got = (*memory.pending, one)
        if len(got) < self.buffer:
            return Step(None, memory._replace(pending=got))
        shares = some([c.share for c in got])
        after = fedbuff(parent, [c.vector for c in got], [c.staleness for c in got], shares, self.rate)
        return Step(after, Memory(), tuple((c, c.share / sum(shares)) for c in got))

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        return Step(None, memory)
