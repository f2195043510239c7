"""Episodes out of unrolls: returns and lengths, across their borders."""

from __future__ import annotations

import numpy as np

from shoal.acting.episodes import EpisodeTracker


def rows(**arrays: list[list[float]]) -> dict[str, np.ndarray]:
    kinds = {"reward": np.float32}
    return {name: np.array(a, kinds.get(name, bool)) for name, a in arrays.items()}


def test_episodes_are_summed_across_unrolls() -> None:
    tracker = EpisodeTracker(1)
    first = rows(reward=[[1], [2]], boundary=[[0], [0]], valid=[[1], [1]], first=[[1], [0], [0]])
    second = rows(reward=[[4], [99], [8]], boundary=[[1], [0], [1]], valid=[[1], [0], [1]], first=[[0], [0], [1], [0]])
    assert list(tracker.take(**first)) == []
    found = list(tracker.take(**second))
    assert [(e.ret, e.length) for e in found] == [(7.0, 3), (8.0, 1)], "the autoreset row's reward is nobody's"


def test_a_dropped_episode_is_not_counted() -> None:
    lost = rows(reward=[[1], [0], [5]], boundary=[[0], [1], [1]], valid=[[0], [0], [1]], first=[[1], [0], [1], [0]])
    assert [(e.ret, e.length) for e in EpisodeTracker(1).take(**lost)] == [(5.0, 1)]


def test_a_tracker_goes_on_where_its_snapshot_was_taken() -> None:
    half = rows(reward=[[1, 2]], boundary=[[0, 0]], valid=[[1, 1]], first=[[1, 1], [0, 0]])
    end = rows(reward=[[1, 2]], boundary=[[1, 1]], valid=[[1, 1]], first=[[0, 0], [0, 0]])
    one, other = EpisodeTracker(2), EpisodeTracker(2)
    assert not list(one.take(**half))
    other.restore(one.snapshot())
    assert [e.ret for e in other.take(**end)] == [e.ret for e in one.take(**end)] == [2.0, 4.0]


def test_several_unrolls_at_once_are_one_after_the_other() -> None:
    rng = np.random.default_rng(0)
    unrolls, rows_, columns = 5, 7, 3
    boundary, valid = rng.random((unrolls, rows_, columns)) < 0.3, rng.random((unrolls, rows_, columns)) < 0.9
    flat = np.vstack([np.ones((1, columns), bool), boundary.reshape(-1, columns)])
    first = np.stack([flat[u * rows_ : (u + 1) * rows_ + 1] for u in range(unrolls)])  # a row more than the others
    reward = rng.integers(-5, 5, (unrolls, rows_, columns)).astype(np.float32)
    one, other = EpisodeTracker(columns), EpisodeTracker(columns)
    expected = [list(one.take(reward[u], boundary[u], valid[u], first[u])) for u in range(unrolls)]
    assert other.take_unrolls(reward, boundary, valid, first) == expected and sum(map(len, expected)) > 10
    assert all(np.array_equal(a, b) for a, b in zip(one.snapshot().values(), other.snapshot().values(), strict=True))
