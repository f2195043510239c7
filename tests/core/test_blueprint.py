"""Blueprints: a state's leaves are saved and restored by name."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from shoal.core.blueprint import Blueprint, fitting, named_leaves, restore_leaves


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


def test_saved_entries_are_taken_where_they_fit() -> None:
    fresh = {"same": np.zeros(2), "longer": np.zeros(3), "new": np.zeros(1)}
    found = fitting({"same": np.ones(2), "longer": np.ones(2), "gone": np.ones(4)}, fresh)
    assert {name: a.tolist() for name, a in found.items()} == {"same": [1, 1], "longer": [0, 0, 0], "new": [0]}


def test_what_is_sent_is_its_fields_whatever_is_cached_meanwhile() -> None:
    class Filling(dict[str, Any]):
        """A `__dict__` to which another thread adds a cache in the middle of a walk."""

        def items(self) -> Any:
            for name in tuple(self):
                yield name, self[name]
                raise RuntimeError("dictionary changed size during iteration")

    blueprint = Blueprint(
        algorithm=cast(Any, None),
        make_rows=cast(Any, None),
        actors=3,
        envs=2,
        seed=1,
        updates=4,
        state={"a": np.ones(1)},
    )
    object.__setattr__(blueprint, "__dict__", Filling(blueprint.__dict__, layout="a cache"))
    sent = blueprint.__getstate__()
    assert sent["actors"] == 3 and sent["state"] == {} and "layout" not in sent
