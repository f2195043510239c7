"""Statistics of the children's pushes: returns, rates, exchange times. No I/O; time is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from shoal.federation import wire
from shoal.federation.rates import Rates
from shoal.federation.state import State

WINDOW = 100  # episodes in the mean return, as in `shoal train`
TIMES = 4096  # exchanges in the quantiles
SHOWN = 16  # children with their own metrics


class AppliedPush(NamedTuple):
    """An applied push, and the time of it."""

    push: wire.Push
    at: float


class Child(NamedTuple):
    """One child, as the panel and the metrics show it."""

    name: str
    present: bool
    rate: float  # environment steps a second
    lag: int  # versions that its last push was behind
    share: float  # of all pushes
    distance: float  # of its weights from the parent's, at its last push


class Ledger:
    """Collects pushes and computes statistics."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.new: list[float] = []  # returns since the last line of metrics
        self.times: deque[float] = deque(maxlen=TIMES)  # milliseconds of exchanges
        self.rates = Rates()

    def add(self, applied: AppliedPush) -> None:
        """Add a push."""
        push = applied.push
        self.recent.extend(push.returns)
        self.new.extend(push.returns)
        if push.took is not None:
            self.times.append(push.took)
        self.rates.add(push.child, push.steps, applied.at)

    @property
    def return_mean(self) -> float | None:
        """Mean return of the children's last 100 episodes."""
        return float(np.mean(self.recent)) if self.recent else None

    @property
    def score(self) -> float | None:
        """The mean return, once its window is full."""
        return self.return_mean if len(self.recent) == WINDOW else None

    def quantile(self, share: float) -> float | None:
        """Quantile of the exchange times in milliseconds, as the children measured them."""
        return float(np.quantile(self.times, share)) if self.times else None

    def children(self, state: State, now: float) -> list[Child]:
        """All children that ever joined: the connected ones first, then those with the most pushes."""
        ranked = sorted(state.children.items(), key=lambda one: (not one[1].present, -one[1].pushes, one[0]))
        return [
            Child(
                name,
                child.present,
                self.rates.of(name, now) if child.present else 0.0,
                child.staleness,
                child.pushes / max(1, state.pushes),
                child.distance,
            )
            for name, child in ranked
        ]

    def metrics(self, state: State, now: float, *, seconds: float, rejected: int) -> dict[str, float]:
        """Metrics for the sinks; `seconds` since the first push; returns are those since the previous call."""
        new, self.new = [ret for ret in self.new if math.isfinite(ret)], []
        found: dict[str, float] = {
            "federation/children": float(state.present),
            "federation/pushes": float(state.pushes),
            "federation/version": float(state.version),
            "federation/rejected": float(rejected),
            "speed/env_steps": float(state.steps),
            "speed/updates": float(updates_of(state)),
            "speed/seconds": seconds,
            "speed/steps_per_s": state.steps / seconds if seconds > 0 else 0.0,
        }
        if new:
            found |= {"episode/return": float(np.mean(new)), "episode/count": float(len(new))}
        if (median := self.quantile(0.5)) is not None:
            found["federation/exchange_ms"] = median
        for child in self.children(state, now)[:SHOWN]:
            numbers: Mapping[str, Any] = {
                "rate": child.rate,
                "lag": child.lag,
                "share": child.share,
                "distance": child.distance,
            }
            found |= {f"child/{child.name}/{what}": float(value) for what, value in numbers.items()}
        return found


def updates_of(state: State) -> int:
    """Updates of the parent's weights: its versions without those that restarts skipped."""
    return state.version - sum(end - begin for begin, end in state.jumps)
