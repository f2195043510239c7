"""The child's side of an exchange as pure functions of vectors: what it sends, and how it adopts the parent's weights."""

from __future__ import annotations

import numpy as np

from shoal.federation.rules.rule import towards
from shoal.federation.wire import Adopts, Takes


def adopt(now: np.ndarray, pushed: np.ndarray, parent: np.ndarray, beta: float) -> np.ndarray:
    """C <- C' + beta (P - C), where C was pushed and C' are the child's weights after training on during the exchange.

    Without overlap C' is C, and the result is (1 - beta) C + beta P: exactly C for beta = 0, exactly P for beta = 1.
    """
    if beta == 0.0:
        return now
    if np.array_equal(now, pushed):
        return towards(now, parent, beta)
    return np.asarray(now + np.float32(beta) * (parent - pushed), np.float32)


def adopts_now(adopts: Adopts, version: int, base: int) -> bool:
    """Whether a child that started from version `base` adopts this version."""
    return adopts == "always" or version > base


def contribution(takes: Takes, weights: np.ndarray, base: np.ndarray) -> np.ndarray:
    """The vector of a push: the weights, or their change since the weights that the child started from."""
    return weights if takes == "weights" else np.asarray(weights - base, np.float32)
