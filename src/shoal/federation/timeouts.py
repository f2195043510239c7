"""Waiting times that follow what is measured: median + k MAD of the last exchanges; and delays before trying again."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for an answer."""

    deviations: float = 20.0
    """k: median absolute deviations beyond the median."""
    least: float = 5.0
    """Seconds; never give up earlier."""
    most: float = 120.0
    """Seconds; never wait longer. Also the wait before anything was measured."""
    window: int = 64
    """Exchanges that are remembered."""


class AdaptiveTimeout:
    """median + k MAD of the exchanges so far, between two bounds. A timeout doubles it until an exchange succeeds."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._seen: deque[float] = deque(maxlen=self._patience.window)
        self._factor = 1.0

    def observe(self, seconds: float) -> None:
        """An exchange took this long."""
        self._seen.append(seconds)
        self._factor = 1.0

    def missed(self) -> None:
        """An exchange took longer than the timeout."""
        self._factor *= 2.0

    @property
    def seconds(self) -> float:
        """How long to wait for the next answer."""
        patience = self._patience
        if len(self._seen) < 3:
            return patience.most
        middle = float(np.median(self._seen))
        spread = float(np.median(np.abs(np.asarray(self._seen) - middle)))
        # A spread below a tenth of the median says more about the few samples than about the network.
        wait = middle + patience.deviations * max(spread, 0.1 * middle)
        return min(patience.most, max(patience.least, wait) * self._factor)


def backoff(attempt: int, generator: random.Random, *, first: float = 0.25, most: float = 5.0) -> float:
    """Seconds before attempt number `attempt` (0, 1, ...): a random part of a limit that doubles up to `most`.

    The randomness keeps children that lost the parent together from returning together.
    """
    limit = min(most, first * 2.0 ** min(attempt, 30))
    return limit * (0.5 + 0.5 * generator.random())
