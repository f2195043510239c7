"""Federated averaging in rounds with a quorum and a grace period for late children."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.federation.rules.rounds import Rounds
from shoal.federation.rules.rule import Memory, Step, weighted_mean
from shoal.federation.wire import Takes


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
class FedAvg(Rounds):
    """Settings of the rule."""

    about: ClassVar[str] = (
        "the mean of all children's weights, in rounds with a quorum and a grace period for late children"
    )
    takes: ClassVar[Takes] = "weights"

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        return self.ended(memory, present, now, lambda got: fedavg([c.vector for c in got], [c.share for c in got]))
