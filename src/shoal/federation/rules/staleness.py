"""Asynchronous updates: every change is applied on arrival, discounted by the age of its base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.rules.rule import Contribution, Memory, Step, check_unit, columns, plus
from shoal.federation.wire import Adopts, Takes


def discount(tau: int, power: float) -> float:
    """(1 + tau)^-a: the weight of a change whose base is tau versions old."""
    return float((1.0 + tau) ** -power)


def staleness(parent: np.ndarray, change: np.ndarray, tau: int, alpha: float, power: float) -> np.ndarray:
    """P <- P + alpha (1 + tau)^-a (C - base).

    Xie et al. 2019, "Asynchronous federated optimization", with the polynomial discount; applied to the change since
    the child's base.

    Args:
        parent: P [P].
        change: C - base [P].
        tau: versions between the base and now.
        alpha: in [0, 1].
        power: a >= 0.

    Returns:
        P after it.
    """
    return plus(parent, change, alpha * discount(tau, power))


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """Settings of the rule."""

    about: ClassVar[str] = "P <- P + alpha (1+tau)^-a (C - base) at every push; children adopt P completely"
    takes: ClassVar[Takes] = "delta"
    adopts: ClassVar[Adopts] = "always"
    quorum: ClassVar[int] = 1

    alpha: float = 0.6
    """How much of a fresh change is applied, in [0, 1]."""
    power: float = 0.5
    """Exponent a of the discount with tau, the versions since a change's base; 0 is no discount."""

    def __post_init__(self) -> None:
        check_unit("alpha", self.alpha)
        if not 0.0 <= self.power < float("inf"):
            raise BadInput(f"power is {self.power}; it must be 0 or more")

    @property
    def pull(self) -> float:
        return 1.0

    def receive(self, parent: np.ndarray, memory: Memory, one: Contribution, present: int, now: float) -> Step:
        alpha = min(1.0, self.alpha * one.share)
        used = ((one, alpha * discount(one.staleness, self.power)),)
        return Step(staleness(parent, one.vector, one.staleness, alpha, self.power), memory, used)

    def mix(self, parent: np.ndarray, one: Contribution) -> None:
        rate = np.float32(min(1.0, self.alpha * one.share) * discount(one.staleness, self.power))
        for part in columns(len(parent)):
            parent[part] += one.vector[part] * rate

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        return Step(None, memory)
