"""What a run remembers of its own course: as much of a long one as of a short one.

`Course` is the curve on the panel. `Gathered` holds the metrics between two lines of the sinks: each line is written at most
so often, and says what its metrics came to since the line before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from shoal.acting.episodes import episode_metrics
from shoal.core.program import Episode

POINTS = 512  # of a course
EPISODES = 8192  # between two lines, for quantiles

# What a metric of several updates comes to, by its name or by the part before the slash. What is not named is the mean, or
# for names that end in `max` the largest. Counts since the start are the newest, counts since the last word are sums.
NEWEST = ("speed", "status", "replay", "window", "table", "explore")
NEWEST_NAMES = ("queue/refused", "queue/helped", "lag/dropped", "imagined/gradients")
SUMS = ("time", "fault")
SUM_NAMES = ("imagined/rows",)


class Course:
    """A series of which at most `most` points are kept: when they are full, each two neighbours become their mean."""

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
    """Metrics since the last `take`. What is not finite is left out: a mean would be nothing else any more."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._values: dict[str, tuple[float, int]] = {}  # what they come to so far (of means the sum), and how many
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
        """What all that was added comes to; the next begins with nothing."""
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
