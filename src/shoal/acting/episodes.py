"""Episodes extracted from unrolls: returns and lengths, from rewards and boundaries alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shoal.core.program import Episode


class EpisodeTracker:
    """Sums the rewards of each column's running episode across unrolls. A dropped episode is not counted."""

    def __init__(self, columns: int) -> None:
        self._ret = np.zeros(columns)
        self._length = np.zeros(columns, np.int64)

    def take(self, reward: np.ndarray, boundary: np.ndarray, valid: np.ndarray, first: np.ndarray) -> Iterator[Episode]:
        """The episodes that end in this unroll, by time, then column. Arrays are [T, B]; `first` may have a row more."""
        ret, length, ends = self._ended(reward, boundary, valid, first)
        yield from map(Episode, ret[ends].tolist(), length[ends].tolist())

    def take_unrolls(
        self, reward: np.ndarray, boundary: np.ndarray, valid: np.ndarray, first: np.ndarray
    ) -> list[list[Episode]]:
        """The episodes that end in each of several consecutive unrolls. Arrays are [U, T, B]; `first` may have more rows.

        The same as one `take` after the other, in a fraction of the time where unrolls are short.
        """
        unrolls, rows = reward.shape[:2]
        flat = (x[:, :rows].reshape(unrolls * rows, -1) for x in (reward, boundary, valid, first))
        ret, length, ends = self._ended(*flat)
        episodes = list(map(Episode, ret[ends].tolist(), length[ends].tolist()))
        until = np.cumsum(ends.reshape(unrolls, -1).sum(axis=1)).tolist()
        return [episodes[begin:end] for begin, end in zip([0, *until], until, strict=False)]

    def _ended(
        self, reward: np.ndarray, boundary: np.ndarray, valid: np.ndarray, first: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(return of the running episode, its length, whether it ends), each [T, B]. Goes on from the last row."""
        rows = np.arange(len(reward))[:, None]
        begun = np.maximum.accumulate(np.where(first[: len(reward)], rows, -1), axis=0)  # -1: before this unroll
        columns = np.arange(reward.shape[1])

        def so_far(added: np.ndarray, before: np.ndarray) -> np.ndarray:
            """Sums over the running episode from its first row to each row: cumulative sums minus those before the episode."""
            sums = np.cumsum(added, axis=0, dtype=before.dtype)
            until = np.concatenate([-before[None], sums])  # row t+1 holds the sum up to row t
            rest: np.ndarray = sums - until[np.maximum(begun, 0), columns] * (begun != 0)
            return rest

        ret = so_far(np.where(valid, reward, 0.0), self._ret)
        length = so_far(valid, self._length)
        self._ret, self._length = ret[-1], length[-1]
        return ret, length, boundary & valid

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"ret": self._ret.copy(), "length": self._length.copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._ret, self._length = arrays["ret"].copy(), arrays["length"].copy()


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Metrics of the episodes that ended; {} if none did."""
    if not episodes:
        return {}
    returns = np.array([episode.ret for episode in episodes])
    low, high = np.quantile(returns, [0.1, 0.9])
    return {
        "episode/return": float(returns.mean()),
        "episode/return_low": float(low),
        "episode/return_high": float(high),
        "episode/length": float(np.mean([episode.length for episode in episodes])),
        "episode/count": float(len(episodes)),
    }
