"""A run's history in bounded memory.

`Course` is the curve on the panel. `Gathered` aggregates metrics between two lines of the sinks: lines are written at a
limited rate, and each summarises the metrics since the previous line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from shoal.acting.episodes import episode_metrics
from shoal.core.program import Episode

POINTS = 512  # of a course
EPISODES = 8192  # kept between two lines, for quantiles

# How a metric is aggregated over several updates, by its full name or by the part before the slash. Other metrics are
# averaged, or their maximum is taken if the name ends in `max`. Counts since the start keep the newest value; counts since
# the previous report are summed.
NEWEST = ("speed", "status", "replay", "window", "table", "explore")
NEWEST_NAMES = ("queue/refused", "queue/helped", "lag/dropped", "imagined/gradients")
SUMS = ("time", "fault")
SUM_NAMES = ("imagined/rows",)


class Course:
    """A series of at most `most` points: when it is full, each pair of neighbours is replaced by its mean."""

    def __init__(self, most: int = POINTS) -> None:
        assert most > 1 and most % 2 == 0, most
        self._most, self._stride = most, 1
        self._sum, self._count = 0.0, 0
        self.points: list[float] = []

    def add(self, value: float) -> None:
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._stride:
            return
        self.points.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.points) == self._most:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points, self._stride = [(a + b) / 2 for a, b in pairs], 2 * self._stride


class Gathered:
    """Metrics since the last `take`. Values that are not finite are left out, because one would spoil the mean."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._values: dict[str, tuple[float, int]] = {}  # (aggregate so far, or the sum for a mean; count)
        self._returns, self._lengths, self._count = 0.0, 0, 0
        self._some: list[Episode] = []  # one episode in `_every`
        self._every = 1

    def __bool__(self) -> bool:
        return bool(self._values or self._count)

    def add(self, metrics: Mapping[str, float], episodes: Sequence[Episode] = ()) -> None:
        for name, value in metrics.items():
            if math.isfinite(value):
                before, count = self._values.get(name, (0.0, 0))
                self._values[name] = (_joined(name, before, value) if count else value, count + 1)
        self._returns += math.fsum(episode.ret for episode in episodes)
        self._lengths += sum(episode.length for episode in episodes)
        self._some += [episode for i, episode in enumerate(episodes, self._count) if i % self._every == 0]
        self._count += len(episodes)
        while len(self._some) > EPISODES:
            self._some, self._every = self._some[::2], 2 * self._every

    def take(self) -> dict[str, float]:
        """The aggregate of everything added since the last call; starts over."""
        found = {n: value / count if _rule(n) == "mean" else value for n, (value, count) in self._values.items()}
        found |= episode_metrics(self._some)
        if self._count:
            found |= {"episode/return": self._returns / self._count, "episode/length": self._lengths / self._count}
            found["episode/count"] = float(self._count)
        self._clear()
        return found


def _joined(name: str, before: float, value: float) -> float:
    rule = _rule(name)
    if rule == "newest":
        return value
    return max(before, value) if rule == "largest" else before + value


@cache
def _rule(name: str) -> str:
    place = name.partition("/")[0]
    if place in NEWEST or name in NEWEST_NAMES:
        return "newest"
    if place in SUMS or name in SUM_NAMES:
        return "sum"
    return "largest" if name.endswith("max") else "mean"
