"""Ends of phases and scores from a run's metrics."""

from __future__ import annotations

import math

import pytest

from shoal.core.errors import BadInput
from shoal.tuning.phases import Phase, Tally, parse_phase


def row(step: int, count: int = 0, ret: float = 0.0) -> dict[str, float]:
    found = {"step": step, "speed/env_steps": step, "speed/seconds": step / 100}
    return found | ({"episode/count": count, "episode/return": ret} if count else {})


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("200episodes", Phase(200, "episodes")),
        ("1episode", Phase(1, "episodes")),
        ("20_000steps", Phase(20_000, "steps")),
        ("2e4 steps", Phase(20_000, "steps")),
        ("30s", Phase(30, "seconds")),
        ("1.5s", Phase(1.5, "seconds")),
    ],
)
def test_a_phase_is_a_number_with_its_unit(text: str, phase: Phase) -> None:
    assert parse_phase(text) == phase
    assert parse_phase(str(phase)) == phase


@pytest.mark.parametrize("text", ["", "30", "0s", "-3s", "1.5steps", "3minutes", "steps"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--phase is"):
        parse_phase(text)


def test_a_score_is_the_mean_of_the_last_hundred_episodes_up_to_the_end_of_the_phase() -> None:
    tally = Tally()
    tally.add([row(100, 300, 1.0), row(200, 60, 2.0), row(300), row(400, 50, 5.0), {"step": 400, "eval/return": 9.0}])
    assert tally.reached("steps", 200) == 2 and tally.reached("steps", 201) == 3 and tally.reached("steps", 401) is None
    assert tally.reached("seconds", 3.5) == 4 and tally.reached("episodes", 360) == 2
    assert tally.score(1) == 1.0
    assert tally.score(2) == pytest.approx((60 * 2 + 300) / 360)  # lines are taken whole
    assert tally.score(3) == tally.score(2)
    assert tally.score() == pytest.approx((50 * 5 + 60 * 2) / 110)
    assert (tally.done("steps"), tally.done("seconds"), tally.done("episodes")) == (400, 4.0, 410)


def test_without_an_episode_there_is_no_score() -> None:
    tally = Tally()
    assert math.isnan(tally.score()) and tally.done("steps") == 0 and tally.reached("steps", 1) is None
    tally.add([row(100)])
    assert math.isnan(tally.score())
