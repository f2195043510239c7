"""DiLoCo: the mean change of a round is the gradient of an outer optimiser with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.rules.rounds import Rounds
from shoal.federation.rules.rule import Memory, Step, weighted_mean
from shoal.federation.wire import Takes


def diloco(
    parent: np.ndarray, momentum: np.ndarray, change: np.ndarray, rate: float, decay: float, nesterov: bool
) -> tuple[np.ndarray, np.ndarray]:
    """m <- mu m + d;  P <- P + eta m, or P + eta (d + mu m) with Nesterov's look-ahead.

    Douillard et al. 2023, "DiLoCo: Distributed low-communication training of language models", algorithm 1.

    Args:
        parent: P [P].
        momentum: m [P].
        change: d [P], the mean of C_i - base_i over the round.
        rate: eta, the outer learning rate.
        decay: mu in [0, 1).
        nesterov: whether to look ahead; the least stable choice where children are late.

    Returns:
        (P, m) after it.
    """
    after = np.asarray(np.float32(decay) * momentum + change, np.float32)
    step = change + np.float32(decay) * after if nesterov else after
    return np.asarray(parent + np.float32(rate) * step, np.float32), after


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Rounds):
    """Settings of the rule."""

    about: ClassVar[str] = "the mean change of a round drives an outer optimiser with momentum (DiLoCo)"
    takes: ClassVar[Takes] = "delta"

    rate: float = 0.7
    """Outer learning rate."""
    momentum: float = 0.5
    """Outer momentum, in [0, 1); 0.9 was measured to hurt."""
    nesterov: bool = False
    """Look ahead by the momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.rate < float("inf"):
            raise BadInput(f"rate is {self.rate}; it must be above 0")
        if not 0.0 <= self.momentum < 1.0:
            raise BadInput(f"momentum is {self.momentum}; it must lie in [0, 1)")

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        step = self.ended(
            memory, present, now, lambda got: weighted_mean([c.vector for c in got], [c.share for c in got])
        )
        if step.parent is None:
            return step
        before = np.zeros_like(parent) if memory.momentum is None else memory.momentum
        after, momentum = diloco(parent, before, step.parent, self.rate, self.momentum, self.nesterov)
        return Step(after, step.memory._replace(momentum=momentum), step.used)
