"""The adjustment of numbers: steps of one, kept where the rate rose, taken back at once where it fell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.ports import NOT_YET
from shoal.core.program import BoardSpec
from shoal.roles.hill_climb import Climber, Control, CoreLoad, Numbers, say
from shoal.runtimes.inline import inline_ports

START, MOST = Numbers(2, 2, 4), Numbers(3, 3, 8)


def test_a_step_that_did_not_pay_is_taken_back_at_once() -> None:
    climber = Climber(START, MOST, seed=0)
    trial = climber.judge(100.0)
    assert trial != START
    assert climber.judge(99.0) == START
    assert climber.judge(100.0) != START, "measured again, then the next step"


def test_a_step_that_paid_is_kept() -> None:
    climber = Climber(START, MOST, seed=0)
    trial = climber.judge(100.0)
    assert climber.judge(101.0) == trial


@pytest.mark.parametrize("seed", range(5))
def test_every_step_is_one_up_or_down_within_what_there_is(seed: int) -> None:
    climber, now = Climber(START, MOST, seed), START
    for _ in range(200):
        after = climber.judge(1.0)  # never falls: all steps are kept
        assert all(abs(a - b) <= 1 for a, b in zip(after, now, strict=True))
        assert all(1 <= n <= most for n, most in zip(after, MOST, strict=True))
        now = after


@pytest.mark.parametrize("drift", [0.0, 0.5], ids=["steady", "while all rates fall"])
def test_it_climbs(drift: float) -> None:
    """The rate has one peak; it drifts besides, which a comparison with a rate of long ago would take for a fall."""
    peak = Numbers(1, 3, 6)

    def rate(numbers: Numbers) -> float:
        return 100.0 - sum((a - b) ** 2 for a, b in zip(numbers, peak, strict=True))

    climber = Climber(START, MOST, seed=1)
    for step in range(400):
        climber.judge(rate(climber.numbers) * (1 - drift * step / 400))
    settled = climber.numbers if climber._before is None else climber._before[0]
    assert sum(abs(a - b) for a, b in zip(settled, peak, strict=True)) <= 1


def test_where_there_is_one_of_each_there_is_nothing_to_try() -> None:
    one = Numbers(1, 1, 1)
    assert Climber(one, one, seed=0).judge(5.0) == one


def test_who_is_not_needed_waits_until_the_numbers_change() -> None:
    board = inline_ports({"b": BoardSpec(writer="m", readers=("a",), size=3, history=2)}, ["m", "a"])["b"]
    control = Control(board, START)
    third: Callable[[Numbers], bool] = lambda numbers: numbers.trainers > 2  # noqa: E731
    waiting = control.until(third)
    op = next(waiting)
    assert op.attempt() is NOT_YET
    say(board, 1, Numbers(2, 3, 4))
    op = waiting.send(op.attempt())
    assert control.numbers == Numbers(2, 3, 4) and op.attempt() is NOT_YET
    say(board, 2, Numbers(1, 1, 1))
    say(board, 5, Numbers(3, 1, 1))  # what was in between is gone
    with pytest.raises(StopIteration):
        waiting.send(op.attempt())
    assert control.numbers == Numbers(3, 1, 1)


def test_busy_cores_are_counted_from_the_systems_ticks(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    cores = "cpu0 0\ncpu1 0\ncpu2 0\ncpu3 0\nintr 5\n"
    stat.write_text(f"cpu  100 0 100 700 100 0 0 0 0 0\n{cores}")
    load = CoreLoad(stat)
    assert load.busy() is None, "no time has passed"
    stat.write_text(f"cpu  160 5 110 720 105 0 0 0 0 0\n{cores}")
    assert load.busy() == pytest.approx(4 * 75 / 100)
    assert CoreLoad(tmp_path / "absent").busy() is None
