"""Telemetry: metric names, and the news that other roles send to the main role as fixed records on a Stream."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.ports import Slot
from shoal.core.program import Episode
from shoal.core.record import Field, Record


@dataclass(frozen=True)
class NewsFormat:
    """The record of one piece of news: steps made, episodes ended, and one number per metric."""

    metrics: tuple[str, ...]
    episodes: int  # the most that one piece of news may hold: every step of an unroll could end one

    @property
    def record(self) -> Record:
        return Record(
            (
                Field("steps", (1,), "int64"),
                Field("clock", (2,), "float64"),  # when this work began and ended, on the monotonic clock
                Field("ended", (1,), "int64"),  # number of valid entries in `returns` and `lengths`
                Field("returns", (self.episodes,), "float64"),
                Field("lengths", (self.episodes,), "int64"),
                Field("metrics", (len(self.metrics),), "float64"),
            )
        )

    def write(
        self, slot: Slot, steps: int, began: float, episodes: Iterable[Episode], metrics: Mapping[str, float]
    ) -> None:
        """Fill a claimed slot. A missing metric is written as NaN, which the reader leaves out."""
        ended = list(episodes)
        slot["steps"][0] = steps
        slot["clock"][...] = began, time.monotonic()
        slot["ended"][0] = len(ended)
        slot["returns"][: len(ended)] = [episode.ret for episode in ended]
        slot["lengths"][: len(ended)] = [episode.length for episode in ended]
        slot["metrics"][...] = [metrics.get(name, np.nan) for name in self.metrics]

    def read(self, slot: Slot) -> News:
        ended = int(slot["ended"][0])
        pairs = zip(slot["returns"][:ended].tolist(), slot["lengths"][:ended].tolist(), strict=True)
        numbers = zip(self.metrics, slot["metrics"].tolist(), strict=True)
        return News(
            steps=int(slot["steps"][0]),
            began=float(slot["clock"][0]),
            ended=float(slot["clock"][1]),
            episodes=tuple(Episode(ret, length) for ret, length in pairs),
            metrics={name: number for name, number in numbers if not np.isnan(number)},
        )


@dataclass(frozen=True)
class News:
    """A piece of news that was read. Times are seconds on the monotonic clock."""

    steps: int
    began: float
    ended: float
    episodes: tuple[Episode, ...]
    metrics: Mapping[str, float]


def mean_metrics(news: Sequence[News]) -> dict[str, float]:
    """The mean of each metric over the news that have it; the maximum for names that end in `max`."""
    names = dict.fromkeys(name for one in news for name in one.metrics)
    known = {name: [one.metrics[name] for one in news if name in one.metrics] for name in names}
    return {name: over_all(name, numbers) for name, numbers in known.items()}


def lags_of(version: int, *acted: np.ndarray) -> np.ndarray:
    """[rows] age, at this version, of the weights that acted on each row; `acted` has their versions."""
    return version - np.concatenate([versions.ravel() for versions in acted])


def metric_name(name: str) -> str:
    """The logged name: an algorithm's `policy` becomes `loss/policy`; a name with a prefix of its own keeps it."""
    return name if "/" in name else f"loss/{name}"


def is_maximum(name: str) -> bool:
    """Whether several values are combined by their maximum instead of their mean."""
    return name.endswith("max")


def over_all(name: str, numbers: Sequence[float] | np.ndarray) -> float:
    """The value of a metric over several updates, minibatches or senders: the maximum or the mean, by its name."""
    return float(np.max(numbers) if is_maximum(name) else np.mean(numbers))
