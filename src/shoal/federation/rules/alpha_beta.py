"""Genkidama's rule: the parent moves towards each child, the child towards the parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.federation.rules.rule import Contribution, Memory, Step, check_unit, columns, towards
from shoal.federation.wire import Adopts, Takes


def alpha_beta(parent: np.ndarray, child: np.ndarray, alpha: float) -> np.ndarray:
    """P <- (1 - alpha) P + alpha C; then, at the child, C <- (1 - beta) C + beta P (`federation.adoption`).

    Args:
        parent: P [P].
        child: C [P].
        alpha: in [0, 1].

    Returns:
        P after it; exactly C for alpha = 1.
    """
    return towards(parent, child, alpha)


@dataclass(frozen=True, kw_only=True)
class AlphaBeta:
    """Settings of the rule."""

    about: ClassVar[str] = "P <- (1-alpha) P + alpha C at every push, then C <- (1-beta) C + beta P (Genkidama)"
    takes: ClassVar[Takes] = "weights"
    adopts: ClassVar[Adopts] = "always"
    quorum: ClassVar[int] = 1

    alpha: float = 0.9
    """How far the parent moves towards the child at every push, in [0, 1]."""
    beta: float = 0.5
    """How far the child then moves towards the parent, in [0, 1]; 0 keeps children independent of each other."""

    def __post_init__(self) -> None:
        check_unit("alpha", self.alpha)
        check_unit("beta", self.beta)

    @property
    def pull(self) -> float:
        return self.beta

    def receive(self, parent: np.ndarray, memory: Memory, one: Contribution, present: int, now: float) -> Step:
        rate = self._rate(one)
        return Step(alpha_beta(parent, one.vector, rate), memory, ((one, rate),))

    def mix(self, parent: np.ndarray, one: Contribution) -> None:
        # From a copy, so that each weight ends between a value that it had and the child's, whatever other threads write.
        for part in columns(len(parent)):
            parent[part] = alpha_beta(parent[part].copy(), one.vector[part], self._rate(one))

    def _rate(self, one: Contribution) -> float:
        return min(1.0, self.alpha * one.share)

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        return Step(None, memory)
