"""Minibatches: each sample once an epoch, with its own row or column, whether all parts are cut or one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from shoal.core.algorithm import Minibatches
from shoal.learning.minibatches import all_parts, one_part, samples_of

T, B, PARTS = 3, 4, 2


class Rows(NamedTuple):
    valid: Any
    obs: Any


class Batch(NamedTuple):
    rows: Any
    columns: Any


BATCH = Batch(
    Rows(np.ones((T, B), bool), np.arange(2 * T * B).reshape(T, B, 2)),
    {"h": np.arange(B)[:, None] * np.ones((1, 5))},
)


@pytest.mark.parametrize("by_column", [False, True])
def test_every_sample_is_in_one_part(by_column: bool) -> None:
    cut = Minibatches(1, PARTS, by_column)
    samples, count = samples_of(cut, BATCH)
    assert count == (B if by_column else T * B)
    order = np.random.default_rng(0).permutation(count)
    parts = all_parts(cut, samples, order)
    whole = np.moveaxis(BATCH.rows.obs, 0, 1) if by_column else BATCH.rows.obs.reshape(-1, 2)
    found = np.moveaxis(np.asarray(parts.rows.obs), 2, 1) if by_column else np.asarray(parts.rows.obs)
    np.testing.assert_array_equal(found.reshape(whole.shape), whole[order])
    if by_column:
        np.testing.assert_array_equal(np.asarray(parts.columns["h"]).reshape(B, 5), BATCH.columns["h"][order])
    else:
        assert parts.columns == {}, "rows of feed-forward nets need no recurrent state"


@pytest.mark.parametrize("by_column", [False, True])
def test_one_part_is_what_all_parts_have_there(by_column: bool) -> None:
    cut = Minibatches(1, PARTS, by_column)
    samples, count = samples_of(cut, BATCH)
    order = np.random.default_rng(1).permutation(count)
    parts = all_parts(cut, samples, order)
    for part in range(PARTS):
        alone = one_part(cut, samples, order, part)
        np.testing.assert_array_equal(alone.rows.obs, parts.rows.obs[part])
        assert alone.columns.keys() == parts.columns.keys()
        for name, array in alone.columns.items():
            np.testing.assert_array_equal(array, parts.columns[name][part])
