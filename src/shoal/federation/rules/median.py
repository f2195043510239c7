"""The median of each coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.federation.rules.rounds import RobustRounds
from shoal.federation.rules.rule import Memory, Step, columns
from shoal.federation.wire import Takes


def median(children: Sequence[np.ndarray]) -> np.ndarray:
    """P_j <- median_i C_ij; for an even number, the mean of the two in the middle.

    Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates", definition 1.

    Args:
        children: C_i [P] each.

    Returns:
        P after it.
    """
    out = np.empty_like(children[0])
    for part in columns(len(out)):
        ordered = np.sort(np.stack([child[part] for child in children]), axis=0).astype(np.float64)
        out[part] = (ordered[(len(children) - 1) // 2] + ordered[len(children) // 2]) / 2
    return out


@dataclass(frozen=True, kw_only=True)
class Median(RobustRounds):
    """Settings of the rule."""

    about: ClassVar[str] = "in rounds: the median of each coordinate, for untrusted children"
    takes: ClassVar[Takes] = "weights"

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        return self.ended(memory, present, now, lambda got: median([c.vector for c in got]))
