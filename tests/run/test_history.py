"""What a run remembers of its course: bounded, and still right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.acting.episodes import episode_metrics
from shoal.core.program import Episode
from shoal.run.history import EPISODES, Course, Gathered


def test_a_course_keeps_its_shape_in_few_points() -> None:
    course = Course(most=64)
    for i in range(100_000):
        course.add(float(i))
        assert len(course.points) < 64
    assert len(course.points) >= 32
    assert np.allclose(np.diff(course.points), np.diff(course.points)[0]), "a straight line stays one"
    assert course.points[0] < 2_000 and course.points[-1] > 95_000


def test_a_short_course_is_whole() -> None:
    course = Course(most=8)
    for value in (3.0, 1.0, 2.0):
        course.add(value)
    assert course.points == [3.0, 1.0, 2.0]


def test_each_metric_comes_to_what_its_name_asks_for() -> None:
    gathered = Gathered()
    assert not gathered
    rows = [
        {"loss/value": 1.0, "lag/max": 2.0, "time/learn": 0.5, "speed/env_steps": 10.0, "lag/dropped": 1.0},
        {"loss/value": 2.0, "lag/max": 5.0, "time/learn": 0.5, "speed/env_steps": 20.0, "lag/dropped": 4.0},
        {"loss/value": 6.0, "lag/max": 3.0, "time/learn": 1.0, "speed/env_steps": 30.0, "lag/dropped": 4.0},
    ]
    for row in rows:
        gathered.add(row)
    gathered.add({"fault/env_nan": 1.0})
    gathered.add({"fault/env_nan": 1.0, "ratio/max": 3.0, "queue/depth": 2.0, "replay/rows": 7.0})
    assert gathered.take() == {
        "loss/value": 3.0,
        "lag/max": 5.0,
        "time/learn": 2.0,
        "speed/env_steps": 30.0,
        "lag/dropped": 4.0,
        "fault/env_nan": 2.0,
        "ratio/max": 3.0,
        "queue/depth": 2.0,
        "replay/rows": 7.0,
    }
    assert not gathered and gathered.take() == {}


def test_what_is_not_finite_spoils_no_mean() -> None:
    gathered = Gathered()
    for value in (1.0, math.nan, math.inf, 3.0):
        gathered.add({"loss/value": value, "loss/only": math.nan, "ratio/max": value})
    assert gathered.take() == {"loss/value": 2.0, "ratio/max": 3.0}


def test_episodes_between_two_lines_count_together() -> None:
    rng = np.random.default_rng(0)
    episodes = [Episode(float(rng.normal()), int(rng.integers(1, 9))) for _ in range(50)]
    gathered = Gathered()
    for cut in (slice(0, 1), slice(1, 1), slice(1, 30), slice(30, 50)):
        gathered.add({}, episodes[cut])
    whole = episode_metrics(episodes)
    found = gathered.take()
    assert found.keys() == whole.keys() and all(found[name] == pytest.approx(whole[name]) for name in whole)


def test_many_episodes_take_bounded_memory() -> None:
    gathered, returns = Gathered(), []
    rng = np.random.default_rng(0)
    for _ in range(100):
        some = [Episode(float(ret), 1) for ret in rng.normal(size=1000)]
        returns += [episode.ret for episode in some]
        gathered.add({}, some)
        assert len(gathered._some) <= EPISODES
    found = gathered.take()
    assert found["episode/count"] == 100_000 and found["episode/return"] == pytest.approx(np.mean(returns))
    assert found["episode/return_low"] == pytest.approx(np.quantile(returns, 0.1), abs=0.05)
