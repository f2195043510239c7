"""Parameter groups: each has its own learning rate, and a gradient may leave a group unchanged.

In a tree, a leaf's group is its top-level name. In a slice of the flat vector, every entry has the index of its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import ParamGroup, Params
from shoal.core.trajectory import Array
from shoal.core.weights import Layout


def stepped(groups: Sequence[ParamGroup], params: Params, updates: Params, rate: Array) -> Params:
    """`params - rate * factor * updates`."""
    if not groups:
        after: Params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
        return after
    return {
        name: jax.tree.map(lambda p, u, rate=rate * factor: p - rate * u, params[name], updates[name])
        for name, factor in groups
    }


def held(groups: Sequence[ParamGroup], moved: Array, after: Any, before: Any) -> Any:
    """`after` where a leaf's group was moved, `before` elsewhere. A leaf of no group, such as a count, is `after`."""
    index = {group.name: i for i, group in enumerate(groups)}

    def one(path: Any, new: Array, old: Array) -> Array:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey) and key.key in index]
        return jnp.where(moved[index[names[0]]], new, old) if names else new

    return jax.tree_util.tree_map_with_path(one, after, before)


def group_indices(groups: Sequence[ParamGroup], layout: Layout) -> np.ndarray:
    """[size] the group of each entry of the flat vector of the params."""
    index = {group.name: i for i, group in enumerate(groups)}
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in layout.shapes]
    return np.repeat([index[name.split("/")[0]] for name in layout.names], sizes)
