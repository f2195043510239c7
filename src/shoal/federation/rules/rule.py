"""Interface of a rule: the parent's weights and one contribution in, new weights out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.wire import Adopts, Takes

COLUMNS = 1 << 16  # values per slice: they fit into the cache, and float64 copies and sorting need little memory


class Contribution(NamedTuple):
    """A push, as a rule sees it."""

    child: str
    vector: np.ndarray  # [P] float32: weights, or their change since the base, as the rule takes
    staleness: int = 0  # tau: versions between the child's base and now
    share: float = 1.0  # weight in averages: equal, or by environment steps
    moments: Mapping[str, np.ndarray] = {}  # {name: [P]} of the optimiser, if they are exchanged
    steps: int = 0  # environment steps behind it where those decide its weight in a round; 0 where all count equally


class Memory(NamedTuple):
    """A rule's memory between pushes; part of every checkpoint."""

    pending: tuple[Contribution, ...] = ()  # received, but not yet part of the parent's weights
    quorum_at: float | None = None  # when the quorum was reached, by a monotonic clock
    momentum: np.ndarray | None = None  # [P]


class Step(NamedTuple):
    """Result of a push or a tick."""

    parent: np.ndarray | None  # [P] float32; None if the weights did not change
    memory: Memory
    used: tuple[
        tuple[Contribution, float], ...
    ] = ()  # each with its weight in the average; the weights sum to at most 1


class Rule(Protocol):
    """A frozen dataclass of settings with these methods. A rule never changes an array that it receives.

    `present` is the number of connected children and of others with a pending contribution, `now` a monotonic time in seconds.
    """

    about: ClassVar[str]  # one line for the command line
    takes: ClassVar[Takes]  # what a push carries: the child's weights, or their change since its base
    adopts: ClassVar[Adopts]  # when a child adopts the parent's weights

    @property
    def quorum(self) -> int:
        """Children whose pushes it takes to change the parent's weights."""

    @property
    def pull(self) -> float:
        """beta in [0, 1]: how far a child moves towards the parent's weights when it adopts them."""

    def receive(self, parent: np.ndarray, memory: Memory, one: Contribution, present: int, now: float) -> Step:
        """Take a contribution."""

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        """Advance the clock or note that a child left: a round may end."""


@runtime_checkable
class InPlace(Protocol):
    """A rule that applies every push at once and weight by weight, and so needs no lock (`federation.hogwild`)."""

    def mix(self, parent: np.ndarray, one: Contribution) -> None:
        """`receive` in place, on weights that other threads read and change at the same time. Alone it gives the same bits."""


def towards(start: np.ndarray, goal: np.ndarray, rate: float) -> np.ndarray:
    """(1 - rate) start + rate goal, exact at both ends and where the two agree."""
    if rate == 0.0:
        return start
    if rate == 1.0:
        return goal
    out = np.empty_like(start)
    for part in columns(
        len(out)
    ):  # slices stay in the cache, with one allocation: twice as fast for ten million weights
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


def some(shares: list[float]) -> list[float]:
    """These shares, or equal ones if all are 0, as those of pushes without environment steps are: a mean needs a weight."""
    return shares if any(shares) else [1.0] * len(shares)


def columns(size: int) -> Iterator[slice]:
    """Slices that cover a vector of this size."""
    return (slice(at, min(at + COLUMNS, size)) for at in range(0, size, COLUMNS))


def check_unit(name: str, value: float) -> None:
    """Raise `BadInput` unless the setting lies in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise BadInput(f"{name} is {value}; it must lie in [0, 1]")
