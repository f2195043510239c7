"""Statistics of returns, against slow and obvious versions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import trim_mean

from shoal.core.errors import BadInput
from shoal.studies.statistics import interval, iqm, over_seeds, summarise


def test_iqm_is_the_mean_of_the_middle_half() -> None:
    values = [100.0, -1000.0, 2.0, 3.0, 4.0, 5.0, 1.0, 1e6]
    assert iqm(values) == pytest.approx(np.mean(sorted(values)[2:6]))


def test_a_summary_of_known_numbers() -> None:
    summary = summarise([1.0, 2.0, 3.0, 4.0])
    assert summary.mean == 2.5 and summary.sd == pytest.approx(np.sqrt(1.25)) and summary.n == 4
    assert summary.ci is not None and summary.ci[0] < 2.5 < summary.ci[1]
    assert summary.as_dict()["ci"] == list(summary.ci)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(60):
        low, high = interval(rng.normal(5.0, 2.0, 30).tolist()) or (0.0, 0.0)
        hits += low <= 5.0 <= high
    assert 50 <= hits <= 60


def test_the_interval_is_the_same_twice_and_shrinks_with_more_values() -> None:
    values = np.random.default_rng(1).normal(0, 1, 2000).tolist()
    assert interval(values[:50]) == interval(values[:50])
    wide, narrow = interval(values[:50]), interval(values)
    assert wide is not None and narrow is not None
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 3


def test_one_value_and_equal_values() -> None:
    assert summarise([7.0]).ci is None and summarise([7.0]).mean == summarise([7.0]).iqm == 7.0
    assert summarise([500.0] * 100).ci == (500.0, 500.0)


def test_an_interval_of_a_statistic_that_no_single_value_changes() -> None:
    """BCa divides by the spread of the statistic over all samples that lack one value, which is zero here."""
    scores = [500.0, 500.0, 500.0, 500.0, 499.5]
    found = interval(scores, lambda values, axis: trim_mean(values, 0.25, axis=axis))
    assert found is not None and 499.5 <= found[0] <= found[1] == 500.0


def test_a_seed_is_one_observation() -> None:
    few = over_seeds([[1.0], [2.0], [3.0]])
    many = over_seeds([[1.0] * 100, [2.0] * 100, [3.0] * 100])
    assert few == many and few.n == 3


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadInput, match="no returns"):
        summarise([])
    with pytest.raises(BadInput, match="1 of 2 are not"):
        summarise([1.0, float("nan")])
    with pytest.raises(BadInput, match="no seeds"):
        over_seeds([])
