"""Observation statistics, which are merged by counts, and optimiser moments, which are averaged.

A child sends the statistics of its observations since its last applied push, so that nothing is counted twice; the parent
sends those of all children. Both are one float64 vector: count, mean [m], M2 [m].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Counts(NamedTuple):
    """Number of samples, their mean and the sum of squared deviations from it."""

    samples: float
    mean: np.ndarray  # [m] float64
    m2: np.ndarray  # [m] float64


def empty(size: int) -> Counts:
    """Statistics of no samples."""
    return Counts(0.0, np.zeros(size), np.zeros(size))


def merge(a: Counts, b: Counts) -> Counts:
    """Statistics of both samples together (Chan, Golub and LeVeque 1983).

    n = n_a + n_b;  mean = mean_a + d n_b / n;  M2 = M2_a + M2_b + d^2 n_a n_b / n, where d = mean_b - mean_a.
    """
    if not a.samples or not b.samples:
        return b if not a.samples else a
    count = a.samples + b.samples
    delta = b.mean - a.mean
    return Counts(
        count, a.mean + delta * (b.samples / count), a.m2 + b.m2 + np.square(delta) * (a.samples * b.samples / count)
    )


def difference(whole: Counts, before: Counts) -> Counts:
    """Statistics of the samples in `whole` but not in `before`: merge(before, difference) is `whole`, up to rounding."""
    count = whole.samples - before.samples
    if count < 0:
        raise ValueError(f"{whole.samples} samples cannot contain {before.samples}")
    if not count:
        return empty(len(whole.mean))
    if not before.samples:
        return whole
    mean = whole.mean + (whole.mean - before.mean) * (before.samples / count)
    m2 = whole.m2 - before.m2 - np.square(mean - before.mean) * (before.samples * count / whole.samples)
    return Counts(count, mean, np.maximum(m2, 0.0))


def to_vector(counts: Counts) -> np.ndarray:
    """Encode as one vector [1 + 2m] float64."""
    return np.concatenate([[counts.samples], counts.mean, counts.m2]).astype(np.float64)


def from_vector(vector: np.ndarray) -> Counts:
    """Decode a vector; raises ValueError if it cannot be statistics."""
    size = (len(vector) - 1) // 2
    if not np.isfinite(vector).all():
        raise ValueError("the normaliser is not finite")
    counts = Counts(float(vector[0]), np.array(vector[1 : 1 + size]), np.array(vector[1 + size :]))
    if counts.samples < 0 or (counts.m2 < 0).any():
        raise ValueError("the normaliser has a negative count or a negative sum of squares")
    return counts


def mix_moments(
    parent: np.ndarray, children: Sequence[tuple[np.ndarray, float]], *, squares: bool = False
) -> np.ndarray:
    """M <- (1 - sum_i r_i) M + sum_i r_i M_i with the rates r_i of the weights; `squares` stay >= 0."""
    kept = max(0.0, 1.0 - sum(rate for _, rate in children))
    mixed = kept * parent.astype(np.float64)
    for vector, rate in children:
        mixed += rate * vector.astype(np.float64)
    return np.asarray(np.maximum(mixed, 0.0) if squares else mixed, np.float32)
