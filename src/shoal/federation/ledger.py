"""What a parent remembers of its children's pushes: returns, rates, times of exchanges. No I/O; time is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from shoal.federation import wire
from shoal.federation.state import State

WINDOW = 100  # episodes behind the mean return, as in `shoal train`
TIMES = 4096  # exchanges behind the quantiles
RATE_SECONDS = 20.0  # of a child's pushes behind its rate
SHOWN = 16  # children that have metrics of their own


class Heard(NamedTuple):
    """A push that was applied, and when."""

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
    """Fed with pushes, asked for numbers."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.new: list[float] = []  # returns since the last line of metrics
        self.times: deque[float] = deque(maxlen=TIMES)  # milliseconds of exchanges
        self._pushes: dict[str, deque[tuple[float, int]]] = {}  # by child: (when, steps)

    def add(self, heard: Heard) -> None:
        """A push came."""
        push = heard.push
        self.recent.extend(push.returns)
        self.new.extend(push.returns)
        if push.took is not None:
            self.times.append(push.took)
        pushes = self._pushes.setdefault(push.child, deque())
        pushes.append((heard.at, push.steps))
        while pushes and heard.at - pushes[0][0] > RATE_SECONDS:
            pushes.popleft()

    @property
    def return_mean(self) -> float | None:
        """Of the children's last 100 episodes."""
        return float(np.mean(self.recent)) if self.recent else None

    @property
    def score(self) -> float | None:
        """The mean return, once its window is full."""
        return self.return_mean if len(self.recent) == WINDOW else None

    def quantile(self, share: float) -> float | None:
        """Milliseconds of an exchange, as the children measured them."""
        return float(np.quantile(self.times, share)) if self.times else None

    def rate(self, child: str, now: float) -> float:
        """Environment steps a second of one child."""
        pushes = [one for one in self._pushes.get(child, ()) if now - one[0] <= RATE_SECONDS]
        if len(pushes) < 2:
            return 0.0
        return sum(steps for _, steps in pushes[1:]) / max(1e-9, pushes[-1][0] - pushes[0][0])

    def children(self, state: State, now: float) -> list[Child]:
        """All that ever joined, by name."""
        return [
            Child(
                name,
                child.present,
                self.rate(name, now) if child.present else 0.0,
                child.staleness,
                child.pushes / max(1, state.pushes),
                child.distance,
            )
            for name, child in sorted(state.children.items())
        ]

    def metrics(self, state: State, now: float) -> dict[str, float]:
        """For a line of the sinks; the returns since the one before are taken."""
        new, self.new = [ret for ret in self.new if math.isfinite(ret)], []
        found: dict[str, float] = {
            "federation/children": float(state.present),
            "federation/pushes": float(state.pushes),
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
    """Changes of the parent's weights: versions, without those that restarts skipped."""
    return state.version - sum(end - begin for begin, end in state.jumps)
