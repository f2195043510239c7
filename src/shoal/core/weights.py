"""Weights as one vector: a tree of arrays, flattened, with a layout that names and places each part.

There are three ways to flatten a tree. `to_vector` (NumPy) and `flat` (inside a compiled function) take float32 leaves;
`to_words` carries leaves of any type bit for bit.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Layout(NamedTuple):
    """Names and shapes of a tree's leaves in the order of the vector, and the structure to rebuild the tree."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    treedef: Any

    @property
    def size(self) -> int:
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)

    @property
    def fingerprint(self) -> str:
        """Equal for equal names and shapes: vectors with different fingerprints must not be mixed."""
        text = ";".join(f"{name}{list(shape)}" for name, shape in zip(self.names, self.shapes, strict=True))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tree(self, vector: np.ndarray) -> Any:
        """The tree whose leaves are views of `vector`."""
        leaves, at = [], 0
        for shape in self.shapes:
            size = int(np.prod(shape, dtype=np.int64))
            leaves.append(vector[at : at + size].reshape(shape))
            at += size
        return jax.tree.unflatten(self.treedef, leaves)


def leaf_names(tree: Any) -> list[str]:
    """`policy/0/w` and so on: the path of each leaf, in flattening order."""
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(tree)]


def layout_of(tree: Any) -> Layout:
    """The layout of a tree of arrays, all of them float32."""
    leaves, treedef = jax.tree.flatten(tree)
    for name, leaf in zip(leaf_names(tree), leaves, strict=True):
        if np.dtype(leaf.dtype) != np.float32:
            raise TypeError(f"weight {name!r} is {leaf.dtype}; weights are float32")
    return Layout(tuple(leaf_names(tree)), tuple(tuple(leaf.shape) for leaf in leaves), treedef)


def to_vector(tree: Any) -> np.ndarray:
    """All leaves in one newly allocated float32 vector."""
    leaves = [np.asarray(leaf, np.float32).reshape(-1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves) if leaves else np.zeros(0, np.float32)


def moved(vector: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """`vector` moved by `new - old`; exactly `new` where it still equals `old`."""
    return np.where(vector == old, new, vector + (new - old))


def flat(tree: Any) -> jax.Array:
    """`to_vector` inside a compiled function."""
    leaves = [leaf.reshape(-1) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves) if leaves else jnp.zeros(0, jnp.float32)


def words_of(tree: Any) -> int:
    """The length of `to_words(tree)`; `tree` may also be a tree of shapes."""
    return sum(_words(leaf) for leaf in jax.tree.leaves(tree))


def to_words(tree: Any) -> np.ndarray:
    """All leaves of any type, bit for bit, in a newly allocated float32 vector; each leaf starts at a four-byte boundary."""
    vector = np.zeros(words_of(tree), np.float32)
    raw, at = vector.view(np.uint8), 0
    for leaf in jax.tree.leaves(tree):
        data = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        raw[at : at + data.size] = data
        at += 4 * _words(leaf)
    return vector


def from_words(vector: np.ndarray, like: Any) -> Any:
    """Inverse of `to_words`: a tree with the shapes and types of `like`; every leaf has its own memory."""
    leaves, treedef = jax.tree.flatten(like)
    raw, at, found = np.ascontiguousarray(vector).view(np.uint8), 0, []
    for leaf in leaves:
        dtype, size = np.dtype(leaf.dtype), int(np.prod(leaf.shape, dtype=np.int64))
        found.append(raw[at : at + size * dtype.itemsize].view(dtype).reshape(leaf.shape).copy())
        at += 4 * _words(leaf)
    return jax.tree.unflatten(treedef, found)


def _words(leaf: Any) -> int:
    size = int(np.prod(leaf.shape, dtype=np.int64)) * int(np.dtype(leaf.dtype).itemsize)
    return -(-size // 4)


def params_hash(tree: Any) -> str:
    """SHA-256 of the weights' bytes."""
    return hashlib.sha256(to_vector(tree).tobytes()).hexdigest()
