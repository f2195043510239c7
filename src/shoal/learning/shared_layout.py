"""Memory layout of shared learner state: weights and moments as one vector, the rest as words."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState, Moments
from shoal.core.trajectory import Array
from shoal.core.weights import flat, from_words, layout_of, to_vector, to_words, words_of
from shoal.learning.groups import group_indices


class SharedLayout:
    """A state's shared part is one float32 vector: params, then moments shaped like them, then single numbers.

    Its own part is private to a worker: its step, reward scale and targets, and the moments if they are not shared.
    """

    def __init__(self, algorithm: Algorithm, share_moments: bool) -> None:
        self._algorithm = algorithm
        self._share = share_moments
        self.shape: LearnerState = jax.eval_shape(lambda: algorithm.init(jax.random.key(0)))
        self._params = layout_of(self.shape.params)
        self.size = self._params.size
        # The optimiser on the flat vector: the same tree, with one leaf in place of each copy of the params.
        flat = jax.eval_shape(lambda: algorithm.optimiser.init(jnp.zeros(self.size, jnp.float32)))
        leaves, flat_tree = jax.tree.flatten(flat)
        self._flat: Any = flat_tree
        self._is_vector = [leaf.shape == (self.size,) for leaf in leaves]
        self._dtypes = [leaf.dtype for leaf in leaves]
        named = jax.tree.leaves_with_path(flat)
        self._squares = [jax.tree_util.keystr(path, simple=True).endswith("nu") for path, _ in named]
        self.vectors = sum(self._is_vector) if share_moments else 0
        self.singles = len(leaves) - sum(self._is_vector) if share_moments else 0
        self.own_size = words_of(self._own_part(self.shape))

    @property
    def width(self) -> int:
        """Entries of the shared vector."""
        return self.size * (1 + self.vectors) + self.singles

    def pack(self, state: LearnerState) -> np.ndarray:
        """The shared part."""
        parts, singles = [to_vector(state.params)], []
        if self._share:
            for vector, part in zip(self._is_vector, self._flat.flatten_up_to(state.moments), strict=True):
                if vector:
                    parts.append(to_vector(part))
                else:
                    singles.append(np.float32(part))
        return np.concatenate([*parts, np.array(singles, np.float32)])

    def flat(self, state: LearnerState) -> Array:
        """`pack` inside a compiled function."""
        parts = [flat(state.params)]
        singles = []
        if self._share:
            for vector, part in zip(self._is_vector, self._flat.flatten_up_to(state.moments), strict=True):
                if vector:
                    parts += [leaf.reshape(-1) for leaf in jax.tree.leaves(part)]
                else:
                    singles.append(part.astype(jnp.float32)[None])
        return jnp.concatenate([*parts, *singles])

    def unpack(self, vector: Array, state: LearnerState) -> LearnerState:
        """`state` with the shared part from `vector`; only the params if `vector` holds no more."""
        state = state._replace(params=self._params.tree(vector[: self.size]))
        if not self._share or len(vector) == self.size:
            return state
        parts: list[Any] = []
        at, single = self.size, self.size * (1 + self.vectors)
        for is_vector, square, dtype in zip(self._is_vector, self._squares, self._dtypes, strict=True):
            if is_vector:
                row = vector[at : at + self.size]
                # Concurrent additions to a mean of squares, each based on an older value, may have made it negative.
                parts.append(self._params.tree(row.clip(0) if square else row))
                at += self.size
            else:
                parts.append(vector[single].astype(dtype))
                single += 1
        return state._replace(moments=jax.tree.unflatten(self._flat, parts))

    def without_shared(self, state: LearnerState) -> LearnerState:
        """`state` without the part that `unpack` fills in."""
        return state._replace(params={}, moments=() if self._share else state.moments)

    def blank(self) -> LearnerState:
        """A state of zeros, to fill in."""
        zeros: LearnerState = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self.shape)
        return zeros

    def _own_part(self, state: LearnerState) -> Any:
        return state.step, state.progress, state.reward, state.extra, () if self._share else state.moments

    def pack_own(self, state: LearnerState) -> np.ndarray:
        """The own part as words of 32 bits, bit for bit."""
        return to_words(self._own_part(state))

    def unpack_own(self, words: np.ndarray, state: LearnerState) -> LearnerState:
        """`state` with its own part from `words`."""
        step, progress, reward, extra, moments = from_words(words, self._own_part(self.shape))
        state = state._replace(step=step, progress=progress, reward=reward, extra=extra)
        return state if self._share else state._replace(moments=moments)

    @property
    def statistics_size(self) -> int:
        """Entries of the observation statistics; 0 without them."""
        return 0 if self.shape.obs is None else 1 + 2 * int(np.prod(self.shape.obs.mean.shape))

    def pack_statistics(self, state: LearnerState) -> np.ndarray:
        return to_vector(state.obs)

    def unpack_statistics(self, vector: np.ndarray, state: LearnerState) -> LearnerState:
        assert self.shape.obs is not None
        shape = self.shape.obs.mean.shape
        mean, m2 = vector[1:].reshape(2, *shape)
        return state._replace(obs=Moments(vector[0], mean, m2))

    def mask(self, critic: bool) -> np.ndarray:
        """[width] mask of the value function's entries in the shared vector; of the others if not `critic`."""
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self._params.shapes]
        own = [name.startswith("value") == critic for name in self._params.names]
        row = np.repeat(own, sizes)
        return np.concatenate([np.tile(row, 1 + self.vectors), np.ones(self.singles, bool)])

    def shard_width(self, shards: int) -> int:
        """Entries of one shard's row: its slice of the params and of each moment, then the single numbers."""
        return self.slice_size(shards) * (1 + self.vectors) + self.singles

    def slice_size(self, shards: int) -> int:
        return -(-self.size // shards)

    def to_shards(self, vector: np.ndarray, shards: int) -> np.ndarray:
        """[shards, shard_width]; the last slice is padded with zeros."""
        size, rows = self.slice_size(shards), 1 + self.vectors
        body = np.zeros((rows, shards * size), np.float32)
        body[:, : self.size] = vector[: rows * self.size].reshape(rows, self.size)
        slices = body.reshape(rows, shards, size).transpose(1, 0, 2).reshape(shards, rows * size)
        singles = np.broadcast_to(vector[rows * self.size :], (shards, self.singles))
        return np.concatenate([slices, singles], axis=1)

    def from_shards(self, parts: np.ndarray) -> np.ndarray:
        """Inverse of `to_shards`; single numbers are taken from the first shard."""
        shards, rows = len(parts), 1 + self.vectors
        size = self.slice_size(shards)
        body = parts[:, : rows * size].reshape(shards, rows, size).transpose(1, 0, 2).reshape(rows, shards * size)
        return np.concatenate([body[:, : self.size].reshape(-1), parts[0, rows * size :]])

    def group_slice(self, shard: int, shards: int) -> np.ndarray:
        """[slice_size] the parameter group of each entry of one shard's slice; the last slice is padded with zeros."""
        size = self.slice_size(shards)
        padded = np.zeros(size * shards, np.int64)
        if self._algorithm.groups:
            padded[: self.size] = group_indices(self._algorithm.groups, self._params)
        return padded[shard * size : (shard + 1) * size]

    def apply_slice(self, groups: np.ndarray, row: Any, gradient: Any, progress: Any, moved: Any) -> Any:
        """The optimiser's step on one shard's row, which the server of a slice compiles.

        `groups` is its `group_slice`; `moved` [groups] bool says which of them the gradient moves.
        """
        size = gradient.shape[0]
        params, at, single = row[:size], size, size * (1 + self.vectors)
        leaves = []
        for is_vector, dtype in zip(self._is_vector, self._dtypes, strict=True):
            if is_vector:
                leaves.append(row[at : at + size])
                at += size
            else:
                leaves.append(row[single].astype(dtype))
                single += 1
        updates, moments = self._algorithm.optimiser.update(gradient, jax.tree.unflatten(self._flat, leaves), params)
        stub = LearnerState(params, moments, None, None, jnp.zeros((), jnp.int32), progress, {})
        after = jax.tree.leaves(moments)
        vectors = [leaf for leaf, is_vector in zip(after, self._is_vector, strict=True) if is_vector]
        singles = [leaf for leaf, is_vector in zip(after, self._is_vector, strict=True) if not is_vector]
        rate = self._algorithm.rate(stub)
        if not self._algorithm.groups:
            new = params - rate * updates
        else:
            new = params - rate * jnp.asarray([group.factor for group in self._algorithm.groups])[groups] * updates
            old = [leaf for leaf, is_vector in zip(leaves, self._is_vector, strict=True) if is_vector]
            keep = ~moved[groups]
            new, *vectors = (jnp.where(keep, a, b) for a, b in zip((params, *old), (new, *vectors), strict=True))
        return jnp.concatenate([new, *vectors, *(leaf.astype(jnp.float32)[None] for leaf in singles)])
