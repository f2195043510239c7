"""Adaptive timeouts, median + k MAD of the last exchanges, and delays before retries."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Settings of an adaptive timeout."""

    deviations: float = 20.0
    """k: median absolute deviations beyond the median."""
    least: float = 5.0
    """Shortest timeout in seconds."""
    most: float = 120.0
    """Longest timeout in seconds, also used before the first measurement."""
    window: int = 64
    """Number of recent exchanges that count."""


class AdaptiveTimeout:
    """median + k MAD of the exchanges so far, between two bounds. A timeout doubles it until an exchange succeeds."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._seen: deque[float] = deque(maxlen=self._patience.window)
        self._factor = 1.0

    def observe(self, seconds: float) -> None:
        """Record the duration of an exchange."""
        self._seen.append(seconds)
        self._factor = 1.0

    def missed(self) -> None:
        """Record that an exchange exceeded the timeout."""
        self._factor *= 2.0

    @property
    def seconds(self) -> float:
        """Timeout of the next exchange."""
        patience = self._patience
        if len(self._seen) < 3:
            return patience.most
        middle = float(np.median(self._seen))
        spread = float(np.median(np.abs(np.asarray(self._seen) - middle)))
        # A smaller spread than a tenth of the median is more likely due to few samples than to a steady network.
        wait = middle + patience.deviations * max(spread, 0.1 * middle)
        return min(patience.most, max(patience.least, wait) * self._factor)


def backoff(attempt: int, generator: random.Random, *, first: float = 0.25, most: float = 5.0) -> float:
    """Seconds to wait before attempt number `attempt` (0, 1, ...): a random share of a limit that doubles up to `most`.

    The randomness prevents children that lost the parent at the same time from reconnecting at the same time.
    """
    limit = min(most, first * 2.0 ** min(attempt, 30))
    return limit * (0.5 + 0.5 * generator.random())
