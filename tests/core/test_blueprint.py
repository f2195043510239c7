"""Blueprints: a state's leaves are saved and restored by name."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.blueprint import named_leaves, restore_leaves


def test_leaves_are_restored_by_name() -> None:
    tree = {"a": np.zeros(2, np.float32), "b": {"c": np.zeros((), np.int32)}}
    leaves = {"b/c": np.array(5, np.int32), "a": np.array([1, 2], np.float32), "unused": np.zeros(9)}
    restored = restore_leaves(tree, leaves)
    assert named_leaves(restored).keys() == {"a", "b/c"} and restored["b"]["c"] == 5
    np.testing.assert_array_equal(restored["a"], [1, 2])
    with pytest.raises(ValueError, match=r"'a' should have shape \(2,\), not \(3,\)"):
        restore_leaves(tree, {**leaves, "a": np.zeros(3)})
    with pytest.raises(ValueError, match="'b/c' should have shape"):
        restore_leaves(tree, {"a": np.zeros(2)})
