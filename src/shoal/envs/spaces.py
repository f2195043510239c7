"""Gymnasium's spaces in Shoal's flat form, and back.

Observations become one array per environment:

| space | result |
| --- | --- |
| Box, uint8, 3 dimensions | an image (height, width, channels); channels first (first <= 4 < last) are moved last |
| Box, uint8, 2 dimensions | an image with one channel |
| any other Box | float32, flattened in C order |
| Discrete(n) | one-hot, n floats |
| MultiDiscrete(nvec) | one-hots one after another, in C order of nvec |
| MultiBinary | one float per bit |
| Tuple | its members in order |
| Dict | its members in Gymnasium's own order of keys (sorted, unless the space was made from an OrderedDict) |

Images inside a Tuple or a Dict are flattened like any other Box. Nested spaces are flattened depth first. Actions
follow the table in `core.spec`, with the same order of members. Text, Graph, Sequence and OneOf have no fixed
width and are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.core.errors import BadInput
from shoal.core.spec import ActionPart, ActionSpec, Binary, Categorical, Continuous, ObsSpec

UNBOUNDED = 1e30  # some environments write "no bound" as float32's extremes


def _refuse(space: Any, what: str) -> BadInput:
    known = "Box, Discrete, MultiDiscrete, MultiBinary, Tuple or Dict"
    return BadInput(f"{what} space {space!r} is not supported: {type(space).__name__} has no fixed width; use {known}")


def _members(space: Any) -> list[tuple[Any, Any]] | None:
    """(key, space) of a Tuple's or a Dict's members, None for a leaf."""
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return None


def _leaves(space: Any) -> Iterator[Any]:
    members = _members(space)
    if members is None:
        yield space
    else:
        for _, member in members:
            yield from _leaves(member)


def _one_hot(value: Any, size: int, envs: int) -> np.ndarray:
    index = np.asarray(value).reshape(envs)
    if index.min(initial=0) < 0 or index.max(initial=0) >= size:
        raise ValueError(f"observation {value!r} is outside its Discrete space of {size}")
    hot = np.zeros((envs, size), np.float32)
    hot[np.arange(envs), index] = 1
    return hot


class Observations:
    """Converts observations of one space; `spec` describes the result."""

    def __init__(self, space: Any) -> None:
        self.space = space
        for leaf in _leaves(space):
            if not isinstance(leaf, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
                raise _refuse(leaf, "observation")
        image = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)
        self.channels_first = image and len(space.shape) == 3 and space.shape[0] <= 4 < space.shape[2]
        if image:
            shape = tuple(int(n) for n in space.shape)
            shape = shape if len(shape) == 3 else (*shape, 1)
            if self.channels_first:
                shape = (shape[1], shape[2], shape[0])
            self.spec = ObsSpec(shape, "uint8")
        else:
            self.spec = ObsSpec((sum(_width(leaf) for leaf in _leaves(space)),))
        # The common case costs nothing: EnvPool's array is already in Shoal's form.
        self._as_is = isinstance(space, spaces.Box) and space.dtype == np.float32 and len(space.shape) == 1

    def batch(self, value: Any, envs: int) -> np.ndarray:
        """[envs, ...] from an observation whose leaves all begin with the environments' axis."""
        if self._as_is and isinstance(value, np.ndarray) and value.dtype == np.float32:
            if value.shape != (envs, *self.spec.shape):
                raise ValueError(f"observation has shape {value.shape[1:]}, its space says {self.spec.shape}")
            return value
        if self.spec.is_image:
            return self._images(np.asarray(value), envs)
        out = np.empty((envs, *self.spec.shape), np.float32)
        self._write(self.space, value, out, 0)
        return out

    def single(self, value: Any) -> np.ndarray:
        """One environment's observation."""
        if self.spec.is_image:
            return np.asarray(self._images(np.asarray(value)[None], 1)[0])
        out = np.empty((1, *self.spec.shape), np.float32)
        self._write(self.space, value, out, 0)
        return np.asarray(out[0])

    def undo(self, flat: np.ndarray) -> Any:
        """The environment's own observation from a flat one: exact up to float32."""
        if self.spec.is_image:
            whole = np.asarray(flat)
            return (whole.transpose(2, 0, 1) if self.channels_first else whole).reshape(self.space.shape)
        return _undo_obs(self.space, np.asarray(flat), 0)[0]

    def _images(self, value: np.ndarray, envs: int) -> np.ndarray:
        if value.shape != (envs, *self.space.shape) or value.dtype != np.uint8:
            raise ValueError(f"observation is {value.dtype}{list(value.shape[1:])}, its space is {self.space!r}")
        return value.transpose(0, 2, 3, 1) if self.channels_first else value.reshape(envs, *self.spec.shape)

    def _write(self, space: Any, value: Any, out: np.ndarray, at: int) -> int:
        members = _members(space)
        if members is not None:
            for key, member in members:
                at = self._write(member, value[key], out, at)
            return at
        width, envs = _width(space), len(out)
        columns = out[:, at : at + width]
        if isinstance(space, spaces.Discrete):
            columns[:] = _one_hot(np.asarray(value) - space.start, int(space.n), envs)
        elif isinstance(space, spaces.MultiDiscrete):
            index = (np.asarray(value) - space.start).reshape(envs, -1)
            sizes = space.nvec.reshape(-1)
            columns[:] = np.concatenate([_one_hot(index[:, i], int(n), envs) for i, n in enumerate(sizes)], axis=1)
        else:
            with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite, and is reported as such
                columns[:] = np.asarray(value).reshape(envs, width)
        return at + width


def _width(space: Any) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(space.shape, dtype=np.int64))


def _undo_obs(space: Any, flat: np.ndarray, at: int) -> tuple[Any, int]:
    members = _members(space)
    if members is not None:
        found = {}
        for key, member in members:
            found[key], at = _undo_obs(member, flat, at)
        return (tuple(found.values()) if isinstance(space, spaces.Tuple) else found), at
    width = _width(space)
    part = flat[at : at + width]
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start + part.argmax()), at + width
    if isinstance(space, spaces.MultiDiscrete):
        cuts = np.cumsum(space.nvec.reshape(-1))[:-1]
        index = np.array([piece.argmax() for piece in np.split(part, cuts)])
        return (index.reshape(space.shape) + space.start).astype(space.dtype), at + width
    return part.reshape(space.shape).astype(space.dtype), at + width


def _bounds(space: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(low, high, bounded) of a Box, flat; unbounded entries have infinite bounds."""
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    # Integer spaces hold the extremes of their type where they are unbounded.
    low = np.where(space.bounded_below.reshape(-1) & (low >= -UNBOUNDED), low, -np.inf)
    high = np.where(space.bounded_above.reshape(-1) & (high <= UNBOUNDED), high, np.inf)
    return low, high, np.isfinite(low) & np.isfinite(high)


class _Leaf:
    """One part of an action: converts columns of the flat array to values of the leaf's space."""

    def __init__(self, space: Any) -> None:
        self.space = space
        self.part: ActionPart
        if isinstance(space, spaces.Discrete):
            self.part = Categorical((int(space.n),))
        elif isinstance(space, spaces.MultiDiscrete):
            self.part = Categorical(tuple(int(n) for n in space.nvec.reshape(-1)))
        elif isinstance(space, spaces.MultiBinary):
            self.part = Binary(_width(space))
        elif isinstance(space, spaces.Box):
            self.low, self.high, self.bounded = _bounds(space)
            low, high = np.where(self.bounded, self.low, -1.0), np.where(self.bounded, self.high, 1.0)
            self.middle, self.half = (high + low) / 2, (high - low) / 2
            self.part = Continuous(tuple(self.low.tolist()), tuple(self.high.tolist()))
        else:
            raise _refuse(space, "action")

    def decode(self, columns: np.ndarray) -> np.ndarray:
        """[B, *shape] in the space's dtype, from [B, width]; always memory of its own."""
        space, envs = self.space, len(columns)
        if isinstance(space, spaces.Discrete):
            own = columns[:, 0].astype(np.int64)
            return own if space.start == 0 else np.asarray(own + space.start)
        if isinstance(space, spaces.MultiDiscrete):
            return np.asarray((columns.astype(np.int64).reshape(envs, *space.shape) + space.start).astype(space.dtype))
        if isinstance(space, spaces.MultiBinary):
            return columns.astype(np.int8).reshape(envs, *space.shape)
        value = np.clip(columns.astype(np.float64) * self.half + self.middle, self.low, self.high)
        if not np.issubdtype(space.dtype, np.floating):
            kind = np.iinfo(space.dtype)  # its largest value may have no float64 of its own
            value = np.clip(np.rint(value), float(kind.min), np.nextafter(float(kind.max) + 1.0, 0.0))
        return np.asarray(value.astype(space.dtype).reshape(envs, *space.shape))

    def encode(self, value: Any) -> np.ndarray:
        """[width] from one value of the leaf's space."""
        if isinstance(self.space, spaces.Discrete | spaces.MultiDiscrete):
            return np.asarray(np.asarray(value) - self.space.start).reshape(-1)
        flat = np.asarray(value).reshape(-1)
        if isinstance(self.space, spaces.Box):
            return np.asarray((flat - self.middle) / np.where(self.half == 0, 1.0, self.half))
        return flat


class Actions:
    """Converts actions of one space; `spec` describes the input."""

    def __init__(self, space: Any) -> None:
        self.space = space
        self._leaf_list = [_Leaf(leaf) for leaf in _leaves(space)]
        self.spec = ActionSpec(tuple(leaf.part for leaf in self._leaf_list), scalar=isinstance(space, spaces.Discrete))

    def decode(self, action: Any) -> Any:
        """The environment's own actions, leaves [B, ...], from Shoal's [B, ...]."""
        columns = np.asarray(action).reshape(len(action), self.spec.width)
        values, at = [], 0
        for leaf in self._leaf_list:
            values.append(leaf.decode(columns[:, at : at + leaf.part.width]))
            at += leaf.part.width
        return self._build(self.space, iter(values))

    def single(self, action: Any) -> Any:
        """One environment's own action."""
        return self.item(self.decode(np.asarray(action)[None]), 0)

    def item(self, decoded: Any, index: int) -> Any:
        """Environment `index`'s action from the result of `decode`."""
        if isinstance(decoded, tuple):
            return tuple(self.item(part, index) for part in decoded)
        if isinstance(decoded, dict):
            return {key: self.item(part, index) for key, part in decoded.items()}
        if decoded.ndim == 1 and decoded.dtype.kind == "f":
            return decoded[index, ...]  # a Box without dimensions takes an array without dimensions
        return decoded[index]

    def encode(self, value: Any) -> np.ndarray:
        """Shoal's action from the environment's own: the inverse of `decode`."""
        parts = [leaf.encode(part) for leaf, part in zip(self._leaf_list, _values(self.space, value), strict=True)]
        return np.concatenate(parts).astype(self.spec.dtype).reshape(self.spec.shape)

    def _build(self, space: Any, values: Iterator[Any]) -> Any:
        members = _members(space)
        if members is None:
            return next(values)
        built = {key: self._build(member, values) for key, member in members}
        return tuple(built.values()) if isinstance(space, spaces.Tuple) else built


def _values(space: Any, value: Any) -> Iterator[Any]:
    members = _members(space)
    if members is None:
        yield value
    else:
        for key, member in members:
            yield from _values(member, value[key])
