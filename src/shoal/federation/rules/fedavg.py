"""Federated averaging in rounds with a quorum and a grace period for late children."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.federation.rules.rounds import check_round, close, gather, settled
from shoal.federation.rules.rule import Contribution, Memory, Step, weighted_mean
from shoal.federation.wire import Adopts, Takes


def fedavg(children: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
    """P <- sum_i s_i C_i / sum_i s_i.

    McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data", algorithm 1.

    Args:
        children: C_i [P] each.
        shares: s_i.

    Returns:
        P after the round.
    """
    return weighted_mean(list(children), list(shares))


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Settings of the rule."""

    about: ClassVar[str] = (
        "the mean of all children's weights, in rounds with a quorum and a grace period for late children"
    )
    takes: ClassVar[Takes] = "weights"
    adopts: ClassVar[Adopts] = "newer"

    quorum: int = 1
    """Children that must have pushed before a round can end."""
    grace: float = 5.0
    """Seconds that a round with a quorum waits for the other connected children."""

    def __post_init__(self) -> None:
        check_round(self.quorum, self.grace)

    @property
    def pull(self) -> float:
        return 1.0

    def receive(self, parent: np.ndarray, memory: Memory, one: Contribution, present: int, now: float) -> Step:
        return self.tick(parent, gather(memory, one, self.quorum, now), present, now)

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        memory = settled(memory, self.quorum, now)
        return close(
            memory, present, self.grace, now, lambda got: fedavg([c.vector for c in got], [c.share for c in got])
        )
