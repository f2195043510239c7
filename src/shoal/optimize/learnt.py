"""The result of learning a law."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.optimize.law import Law
from shoal.optimize.truth import Scores


@dataclass
class Learnt:
    """A law with its learning curves and its cost."""

    law: Law
    mse: Scores
    msle: Scores
    evaluations: int
    dropped: int  # episodes in which f failed
    summary: dict[str, Any] = field(default_factory=dict)
