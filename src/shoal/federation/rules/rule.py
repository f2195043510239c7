"""What a rule is: the parent's weights and one contribution in, new weights out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.wire import Adopts, Takes

COLUMNS = (
    1 << 16
)  # values that are worked on at a time: they stay in the cache, and float64 and sorting need little memory


class Contribution(NamedTuple):
    """What one push gives to a rule."""

    child: str
    vector: np.ndarray  # [P] float32: weights, or their change since the base, as the rule takes
    staleness: int = 0  # tau: versions between the child's base and now
    share: float = 1.0  # weight in averages: equal, or by environment steps
    moments: Mapping[str, np.ndarray] = {}  # {name: [P]} of the optimiser, where they travel


class Memory(NamedTuple):
    """What a rule keeps between pushes; part of every checkpoint."""

    pending: tuple[Contribution, ...] = ()  # came, but is not yet part of the parent's weights
    quorum_at: float | None = None  # when there were enough of them, by a monotonic clock
    momentum: np.ndarray | None = None  # [P]


class Step(NamedTuple):
    """What became of it."""

    parent: np.ndarray | None  # [P] float32; None if the weights did not change
    memory: Memory
    used: tuple[tuple[Contribution, float], ...] = ()  # with each one's weight in the average, at most 1 together


class Rule(Protocol):
    """A frozen dataclass of settings with these methods. No rule changes an array that it is given.

    `present` is the number of connected children, `now` a monotonic time in seconds.
    """

    about: ClassVar[str]  # one line for the command line
    takes: ClassVar[Takes]  # what a push carries: the child's weights, or their change since its base
    adopts: ClassVar[Adopts]  # when a child takes in the parent's weights

    @property
    def pull(self) -> float:
        """How far a child moves towards the parent's weights when it takes them in: beta, in [0, 1]."""

    def receive(self, parent: np.ndarray, memory: Memory, one: Contribution, present: int, now: float) -> Step:
        """A push arrived."""

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        """Time passed, or a child left: a round may end."""


@runtime_checkable
class InPlace(Protocol):
    """A rule that treats every weight by itself and at once, and so needs no lock (`federation.hogwild`)."""

    def mix(self, parent: np.ndarray, one: Contribution) -> None:
        """`receive`, in place, on weights that other threads read and change at the same time. Alone it gives the same bits."""


def towards(start: np.ndarray, goal: np.ndarray, rate: float) -> np.ndarray:
    """(1 - rate) start + rate goal, exact at both ends and where the two agree."""
    if rate == 0.0:
        return start
    if rate == 1.0:
        return goal
    out = np.empty_like(start)
    for part in columns(
        len(out)
    ):  # in the processor's cache, and one allocation: twice as fast for ten million weights
        np.subtract(goal[part], start[part], out=out[part])
        out[part] *= np.float32(rate)
        out[part] += start[part]
    return out


def plus(start: np.ndarray, change: np.ndarray, rate: float) -> np.ndarray:
    """start + rate change."""
    out = np.empty_like(start)
    for part in columns(len(out)):
        np.multiply(change[part], np.float32(rate), out=out[part])
        out[part] += start[part]
    return out


def weighted_mean(vectors: list[np.ndarray], shares: list[float]) -> np.ndarray:
    """sum_i share_i vector_i / sum_i share_i, summed in float64: k equal vectors give that vector, bit for bit."""
    total, out = sum(shares), np.empty(len(vectors[0]), np.float32)
    for part in columns(len(out)):
        summed = sum(share * vector[part].astype(np.float64) for vector, share in zip(vectors, shares, strict=True))
        out[part] = summed / total
    return out


def columns(size: int) -> Iterator[slice]:
    """Slices that cover a vector of this size."""
    return (slice(at, min(at + COLUMNS, size)) for at in range(0, size, COLUMNS))


def check_unit(name: str, value: float) -> None:
    """Raise `BadInput` unless the setting lies in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise BadInput(f"{name} is {value}; it must lie in [0, 1]")
