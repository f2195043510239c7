"""Statistics merged by counts are those of all samples together; squared moments stay above zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.federation import normaliser as norm
from shoal.federation.normaliser import Counts


def of(samples: np.ndarray) -> Counts:
    """The slow way: all samples at once."""
    if not len(samples):
        return norm.empty(samples.shape[1])
    mean = samples.mean(axis=0)
    return Counts(float(len(samples)), mean, ((samples - mean) ** 2).sum(axis=0))


def same(a: Counts, b: Counts) -> None:
    assert a.samples == b.samples
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(a.m2, b.m2, rtol=1e-6, atol=1e-6)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 100))
def test_merging_is_counting_everything(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = [rng.normal(3.0, 2.0, size=(size, 4)) for size in sizes]
    merged = norm.empty(4)
    for part in samples:
        merged = norm.merge(merged, of(part))
    same(merged, of(np.concatenate(samples)))


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 100))
def test_a_difference_is_what_came_since(before: int, after: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(before, 3)), rng.normal(5.0, size=(after, 3))
    whole = of(np.concatenate([a, b]))
    since = norm.difference(whole, of(a))
    same(since, of(b))
    same(norm.merge(of(a), since), whole)


def test_fewer_samples_than_before_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot contain"):
        norm.difference(of(np.ones((2, 1))), of(np.ones((3, 1))))


def test_averaging_would_be_wrong() -> None:
    """A child with 10 samples must not weigh as much as one with 1,000."""
    rng = np.random.default_rng(0)
    many, few = rng.normal(0.0, 1.0, (1000, 1)), rng.normal(10.0, 1.0, (10, 1))
    merged = norm.merge(of(many), of(few))
    assert abs(float(merged.mean[0])) < 0.2 < abs(float((of(many).mean + of(few).mean)[0]) / 2)


def test_vectors_come_back() -> None:
    counts = of(np.random.default_rng(0).normal(size=(7, 5)))
    same(norm.from_vector(norm.to_vector(counts)), counts)


@pytest.mark.parametrize(("at", "value"), [(0, -1.0), (0, np.nan), (1, np.inf), (4, -1e-9)])
def test_impossible_statistics_are_refused(at: int, value: float) -> None:
    vector = np.ones(5)
    vector[at] = value
    with pytest.raises(ValueError, match="normaliser"):
        norm.from_vector(vector)


@given(st.floats(0, 1), st.integers(0, 50))
def test_moments_follow_the_weights_and_squares_stay_positive(rate: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parent, child = rng.normal(size=9).astype(np.float32), rng.normal(size=9).astype(np.float32)
    mixed = norm.mix_moments(parent, [(child, rate)])
    slow = [(1 - rate) * float(p) + rate * float(c) for p, c in zip(parent, child, strict=True)]
    np.testing.assert_allclose(mixed, slow, rtol=1e-5, atol=1e-6)
    assert (norm.mix_moments(parent, [(child, rate)], squares=True) >= 0).all()


def test_no_contribution_leaves_moments_alone() -> None:
    parent = np.arange(4, dtype=np.float32)
    assert norm.mix_moments(parent, []).tobytes() == parent.tobytes()
