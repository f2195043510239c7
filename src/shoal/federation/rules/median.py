"""The median of each coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.federation.rules.rounds import check_round, close, gather, settled
from shoal.federation.rules.rule import Contribution, Memory, Step, columns
from shoal.federation.wire import Adopts, Takes


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
class Median:
    """Settings of the rule."""

    about: ClassVar[str] = "rounds; the median of each coordinate, for untrusted children"
    takes: ClassVar[Takes] = "weights"
    adopts: ClassVar[Adopts] = "newer"

    quorum: int = 3
    """Children that must have pushed before a round can end; at least 3."""
    grace: float = 5.0
    """Seconds that a round with a quorum waits for the other connected children."""

    def __post_init__(self) -> None:
        check_round(self.quorum, self.grace, least=3)

    @property
    def pull(self) -> float:
        return 1.0

    def receive(self, parent: np.ndarray, memory: Memory, one: Contribution, present: int, now: float) -> Step:
        return self.tick(parent, gather(memory, one, self.quorum, now), present, now)

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        memory = settled(memory, self.quorum, now)
        return close(memory, present, self.grace, now, lambda got: median([c.vector for c in got]), weighted=False)
