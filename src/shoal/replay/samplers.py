"""Samplers: draw rows uniformly, or in proportion to their priority.

A sampler knows indices and priorities but no data. It draws from the generator that the caller passes in, so the same seed
draws the same rows; only `cpprb` has a generator of its own, which cannot be seeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from shoal.core.algorithm import Replay
from shoal.replay.sum_tree import SumTree

DRAWS = 8  # long draws before a minibatch without replacement is completed by a pass over all rows
EPSILON = 1e-6  # added to every error, so that a row with error 0 is still drawn at times


class Picked(NamedTuple):
    indices: np.ndarray  # [count, batch] flat, int64
    weights: np.ndarray  # [count, batch] float32, at most 1


class Sampler(Protocol):
    """Draws rows. `sizes` [rings] is the number of filled slots of each ring; indices are flat, as in `rings`."""

    def note(self, indices: np.ndarray) -> None:
        """Register that these slots hold new rows."""

    def draw(self, rng: np.random.Generator, sizes: np.ndarray, count: int, batch: int, beta: float) -> Picked:
        """Draw `count` minibatches of `batch` rows."""

    def feedback(self, indices: np.ndarray, errors: np.ndarray) -> None:
        """Set the errors of drawn rows. If a row occurs twice, the last one counts."""

    def snapshot(self) -> dict[str, np.ndarray]: ...

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None: ...


def make_sampler(replay: Replay, rings: int, slots: int) -> Sampler:
    if replay.kind == "uniform":
        return Uniform(slots, replay.replacement)
    if replay.sampler == "seeded":
        return Prioritized(rings * slots, replay.alpha, replay.replacement)
    assert replay.replacement, "cpprb draws only with replacement"
    return Cpprb(rings * slots, replay.alpha)


class Uniform:
    """Draws every row with equal probability."""

    def __init__(self, slots: int, replacement: bool) -> None:
        self._slots, self._replacement = slots, replacement

    def note(self, indices: np.ndarray) -> None:
        return None

    def draw(self, rng: np.random.Generator, sizes: np.ndarray, count: int, batch: int, beta: float) -> Picked:
        total = int(sizes.sum())
        if self._replacement:
            drawn = rng.integers(0, total, (count, batch))
        else:
            drawn = np.stack([rng.choice(total, batch, replace=False, shuffle=False) for _ in range(count)])
        if len(sizes) > 1:  # convert a number among all filled slots to its ring and slot
            ends = np.cumsum(sizes)
            ring = np.searchsorted(ends, drawn, side="right")
            drawn = ring * self._slots + drawn - (ends - sizes)[ring]
        return Picked(drawn, np.ones(drawn.shape, np.float32))

    def feedback(self, indices: np.ndarray, errors: np.ndarray) -> None:
        return None

    def snapshot(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        return None


class Prioritized:
    """Draws in proportion to `(|error| + epsilon)^alpha`; new rows get the largest priority ever seen, so all are drawn soon.

    Schaul et al. 2016, "Prioritized experience replay", https://arxiv.org/abs/1511.05952. As in the paper, a minibatch has one
    row from each of `batch` equal shares of the total; without replacement, rows are drawn one by one from the rest.
    """

    def __init__(self, size: int, alpha: float, replacement: bool) -> None:
        self._tree = SumTree(size)
        self._alpha, self._replacement = alpha, replacement
        self._largest = 1.0  # as stored, raised to the power alpha

    def note(self, indices: np.ndarray) -> None:
        self._tree.set(indices, np.full(len(indices), self._largest))

    def draw(self, rng: np.random.Generator, sizes: np.ndarray, count: int, batch: int, beta: float) -> Picked:
        if self._replacement:
            shares = (np.arange(batch) + rng.random((count, batch))) / batch
            indices = self._tree.find(shares.reshape(-1)).reshape(count, batch)
        else:
            indices = np.stack([self._distinct(rng, batch) for _ in range(count)])
        # (N p_i)^-beta, divided by the largest of the buffer, which belongs to the smallest priority.
        weights: np.ndarray = (self._tree.leaves[indices] / self._tree.least()) ** -beta
        return Picked(indices, weights.astype(np.float32))

    def _distinct(self, rng: np.random.Generator, batch: int) -> np.ndarray:
        """The first `batch` distinct rows of a long draw, which equals drawing one by one without replacement.

        If a few rows hold nearly all of the priority, the others are not waited for: the rest is drawn by exponential keys
        (Efraimidis and Spirakis 2006), which costs a pass over all rows.
        """
        drawn = np.zeros(0, np.int64)
        for _ in range(DRAWS):
            drawn = np.concatenate([drawn, self._tree.find(rng.random(2 * batch))])
            _, first = np.unique(drawn, return_index=True)
            if len(first) >= batch:
                return drawn[np.sort(first)[:batch]]
        distinct = drawn[np.sort(first)]
        rest = self._tree.leaves.copy()
        rest[distinct] = 0.0
        with np.errstate(divide="ignore"):
            keys = rng.exponential(size=len(rest)) / rest  # infinite for empty slots and for what is drawn already
        missing = batch - len(distinct)
        nearest = np.argpartition(keys, missing - 1)[:missing]
        return np.concatenate([distinct, nearest[np.argsort(keys[nearest])]])

    def feedback(self, indices: np.ndarray, errors: np.ndarray) -> None:
        priorities = (np.abs(errors.reshape(-1)).astype(np.float64) + EPSILON) ** self._alpha
        assert np.isfinite(priorities).all(), "errors of a gradient that is not sound"
        self._largest = max(self._largest, float(priorities.max(initial=0.0)))
        self._tree.set(indices.reshape(-1), priorities)

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"priorities": self._tree.leaves.copy(), "largest": np.array([self._largest])}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._tree.set(np.arange(len(arrays["priorities"])), arrays["priorities"])
        self._largest = float(arrays["largest"][0])


class Cpprb:
    """The sum tree of cpprb, in C++. It draws with random numbers of its own, so runs that use it are not reproducible.

    Here it is slower than `Prioritized` (docs/adr/0006). It does not expose its priorities, so a copy is kept for checkpoints.
    Its rows are numbered in order of first arrival, since it draws from all places up to the newest, empty or not.
    """

    def __init__(self, size: int, alpha: float) -> None:
        import cpprb  # late: it brings `multiprocessing` with it, and few runs use it

        self._buffer = cpprb.PrioritizedReplayBuffer(size, {"index": {"dtype": np.int64}}, alpha=alpha, eps=EPSILON)
        self._place = np.full(size, -1)  # place of each index in cpprb's buffer
        self._index = np.zeros(size, np.int64)  # index of each place
        self._errors = np.zeros(size)  # by place
        self._filled, self._largest = 0, 1.0

    def note(self, indices: np.ndarray) -> None:
        self._put(indices, np.full(len(indices), self._largest))

    def _put(self, indices: np.ndarray, errors: np.ndarray) -> None:
        new = indices[self._place[indices] < 0]
        if len(new):
            places = self._filled + np.arange(len(new))
            self._place[new], self._index[places] = places, new
            self._buffer.add(index=new)
            self._filled += len(new)
        places = self._place[indices]
        self._errors[places] = errors
        self._buffer.update_priorities(places, errors)

    def draw(self, rng: np.random.Generator, sizes: np.ndarray, count: int, batch: int, beta: float) -> Picked:
        picked = Picked(np.zeros((count, batch), np.int64), np.zeros((count, batch), np.float32))
        for i in range(count):
            drawn = self._buffer.sample(batch, beta)  # the next call overwrites the memory of its weights
            picked.indices[i], picked.weights[i] = drawn["index"][:, 0], drawn["weights"]
        return picked

    def feedback(self, indices: np.ndarray, errors: np.ndarray) -> None:
        size = np.abs(errors.reshape(-1)).astype(np.float64)
        self._largest = max(self._largest, float(size.max(initial=0.0)))
        self._put(indices.reshape(-1), size)

    def snapshot(self) -> dict[str, np.ndarray]:
        used = slice(self._filled)
        return {
            "index": self._index[used].copy(),
            "errors": self._errors[used].copy(),
            "largest": np.array([self._largest]),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._put(arrays["index"], arrays["errors"])
        self._largest = float(arrays["largest"][0])
