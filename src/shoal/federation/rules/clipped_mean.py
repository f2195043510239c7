"""A mean in which no child moves the parent further than the median child does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.rules.rounds import RobustRounds
from shoal.federation.rules.rule import Memory, Step, columns
from shoal.federation.wire import Takes


def clipped_mean(parent: np.ndarray, children: Sequence[np.ndarray], factor: float) -> np.ndarray:
    """P <- P + mean_i d_i min(1, b / |d_i|), where d_i = C_i - P and b = factor * median_i |d_i|.

    Karimireddy et al. 2021, "Learning from history for Byzantine robust optimization", with the bound taken from the
    round itself.

    Args:
        parent: P [P].
        children: C_i [P] each.
        factor: of the median distance.

    Returns:
        P after it.
    """
    distances = [float(np.sqrt(np.sum(np.square(child - parent, dtype=np.float64)))) for child in children]
    bound = factor * float(np.median(distances))
    scales = [1.0 if distance <= bound else bound / distance for distance in distances]
    out = np.empty_like(parent)
    for part in columns(len(parent)):
        start = parent[part].astype(np.float64)
        moved = sum(scale * (child[part] - start) for child, scale in zip(children, scales, strict=True))
        out[part] = start + moved / len(children)
    return out


@dataclass(frozen=True, kw_only=True)
class ClippedMean(RobustRounds):
    """Settings of the rule."""

    about: ClassVar[str] = (
        "in rounds: a mean in which no child moves the parent further than the median child, for untrusted children"
    )
    takes: ClassVar[Takes] = "weights"

    factor: float = 1.0
    """A child's distance from the parent is clipped to this many times the median distance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.factor < float("inf"):
            raise BadInput(f"factor is {self.factor}; it must be above 0")

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        return self.ended(memory, present, now, lambda got: clipped_mean(parent, [c.vector for c in got], self.factor))
