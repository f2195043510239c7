"""A mean without the largest and the smallest values of each coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.rules.rounds import RobustRounds
from shoal.federation.rules.rule import Memory, Step, columns
from shoal.federation.wire import Takes


def trimmed_mean(children: Sequence[np.ndarray], trim: float) -> np.ndarray:
    """P_j <- mean of the C_ij without the m largest and the m smallest, m = max(1, floor(trim k)).

    Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates", definition 2.

    Args:
        children: C_i [P] each, k >= 3 of them.
        trim: share of children that is cut off at each end, in [0, 1/2).

    Returns:
        P after it; one value at least is left in every coordinate.
    """
    count = len(children)
    assert count >= 3, count
    cut = min(max(1, int(trim * count)), (count - 1) // 2)
    out = np.empty_like(children[0])
    for part in columns(len(out)):
        ordered = np.sort(np.stack([child[part] for child in children]), axis=0)
        out[part] = np.mean(ordered[cut : count - cut], axis=0, dtype=np.float64)
    return out


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(RobustRounds):
    """Settings of the rule."""

    about: ClassVar[str] = (
        "in rounds: the mean without each coordinate's largest and smallest values, for untrusted children"
    )
    takes: ClassVar[Takes] = "weights"

    trim: float = 0.25
    """Share of the children that is cut off at each end, in [0, 0.5); always at least one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.trim < 0.5:
            raise BadInput(f"trim is {self.trim}; it must lie in [0, 0.5)")

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        return self.ended(memory, present, now, lambda got: trimmed_mean([c.vector for c in got], self.trim))
