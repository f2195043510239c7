"""HyperTrick's rule: against its definition, its expectation and its bounds."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import BadInput
from shoal.tuning.hypertrick import HyperTrick, Report, completion, decide, quota, replay
from shoal.tuning.scheduler import tie

VALUES = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, -21.0, math.nan, math.inf, -math.inf]))
LOGS = st.lists(st.builds(Report, st.integers(0, 7), st.integers(0, 3), VALUES), min_size=1, max_size=60)
RATES = st.sampled_from([0.0841, 0.25, 0.36, 0.5, 0.9])


def oracle(log: list[Report], trials: int, phases: int, r: float) -> bool:
    """The paper's rule and the four edge rules, word by word."""
    trial, phase, _ = log[-1]
    arrived: list[tuple[float, int, int]] = []
    for who, when, value in log:
        if when == phase and who not in [w for _, _, w in arrived]:
            arrived.append((value, tie(who, phase), who))
            if who == trial:
                break
    own = arrived[-1]
    if phase == phases - 1:
        return False
    if own[0] != own[0]:
        return True
    k = len(arrived)
    if k <= trials * (1 - r**0.5) * (1 - r) ** phase + 1e-9:
        return False
    worse = [one for one in arrived if one[0] != one[0] or one[:2] < own[:2]]
    return len(worse) + 1 <= r**0.5 * k + 1e-9


@given(LOGS, RATES, st.integers(1, 30))
@settings(max_examples=300)
def test_every_decision_is_a_function_of_its_prefix(log: list[Report], r: float, trials: int) -> None:
    told = replay(log, trials=trials, phases=4, eviction=r)
    for end in range(1, len(log) + 1):
        assert told[end - 1] == oracle(log[:end], trials, 4, r)
        assert told[end - 1] == decide(log[:end], trials=trials, phases=4, eviction=r)


def play(trials: int, phases: int, r: float, order: random.Random, value: object) -> float:
    """Alpha of one study whose trials report in random order; `value(trial, phase)`."""
    rule = HyperTrick(trials=trials, phases=phases, eviction=r)
    running, units = [(trial, 0) for trial in range(trials)], 0
    while running:
        at = order.randrange(len(running))
        trial, phase = running[at]
        units += 1
        if rule.evict(trial, phase, value(trial, phase)) or phase == phases - 1:  # type: ignore[operator]
            running.pop(at)
        else:
            running[at] = (trial, phase + 1)
    return units / (trials * phases)


@pytest.mark.parametrize(("phases", "expected"), [(10, 0.3775), (5, 0.6102)])
def test_exchangeable_metrics_complete_what_the_paper_expects(phases: int, expected: float) -> None:
    order = random.Random(0)
    alphas = [play(100, phases, 0.25, order, lambda trial, phase: order.random()) for _ in range(60)]
    assert completion(trials=100, phases=phases, eviction=0.25).expected == pytest.approx(expected, abs=5e-5)
    assert sum(alphas) / len(alphas) == pytest.approx(expected, abs=0.01)


def test_the_printed_floor_and_its_correction() -> None:
    ten, five = (completion(trials=10**6, phases=phases, eviction=0.25) for phases in (10, 5))
    assert (ten.printed_floor, five.printed_floor) == pytest.approx((0.1887, 0.3051), abs=1e-4)
    assert (ten.floor, five.floor) == pytest.approx((0.285, 0.473), abs=1e-3)
    assert (ten.least, five.least) == pytest.approx((ten.floor, five.floor), abs=1e-5)


@given(st.integers(1, 40), st.integers(1, 6), RATES, st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_no_metric_completes_less_than_the_corrected_floor(n: int, phases: int, r: float, order: random.Random) -> None:
    worst = iter(range(0, -(10**6), -1))  # every report is worse than all before it
    least = completion(trials=n, phases=phases, eviction=r).least
    assert play(n, phases, r, order, lambda trial, phase: float(next(worst))) == pytest.approx(least)
    assert play(n, phases, r, order, lambda trial, phase: order.choice([0.0, order.random()])) >= least - 1e-12
    best = iter(range(10**6))
    assert play(n, phases, r, order, lambda trial, phase: float(next(best))) == 1.0


# Pong at the start: every trial scores -21. Which ranks are evicted is then the hash's choice alone.
def test_the_tie_table() -> None:
    rule = HyperTrick(trials=16, phases=4, eviction=0.25)
    evicted = [rule.evict(trial, 0, -21.0) for trial in range(16)]
    ranks = [sorted(tie(t, 0) for t in range(k + 1)).index(tie(k, 0)) + 1 for k in range(16)]
    assert evicted == [k + 1 > 8 and ranks[k] <= (k + 1) // 2 for k in range(16)]
    assert 0 < sum(evicted) < 8  # neither none, as `<` would, nor all eight that are judged, as `<=` would
    assert [t for t in range(16) if evicted[t]] == [14, 15]  # stored studies replay by these hashes


def test_ties_favour_neither_early_nor_late_trials() -> None:
    ranks = [sorted(range(200), key=lambda t: tie(t, phase)).index(0) for phase in range(200)]
    assert 80 < sum(ranks) / len(ranks) < 120


def test_nan_is_evicted_at_once_and_counts() -> None:
    rule = HyperTrick(trials=4, phases=2, eviction=0.25)
    assert quota(4, 0, 0.25) == 2
    assert rule.evict(0, 0, math.nan)
    assert not rule.evict(1, 0, 1.0)  # the second of two that collect data
    assert rule.evict(2, 0, 0.5) is False  # third: rank 2 of 3 is above floor(.5 * 3) = 1, which NaN holds
    assert not rule.evict(1, 1, math.nan)  # the last phase evicts nothing


def test_a_retried_trial_keeps_its_first_report() -> None:
    rule = HyperTrick(trials=2, phases=2, eviction=0.25)
    assert not rule.evict(0, 0, 1.0)
    assert rule.evict(1, 0, 0.0)
    assert rule.evict(1, 0, 9.0)  # its decision stands
    assert not rule.evict(0, 0, -9.0)


def test_as_a_scheduler_it_never_pauses() -> None:
    rule = HyperTrick(trials=2, phases=2, eviction=0.25)
    assert [rule.next(), rule.next(), rule.next()] == [(0, 0, 1), (1, 0, 1), None]
    assert rule.report(0, 1, 1.0).verdict == "continue" and rule.report(0, 2, 1.0).verdict == "complete"
    assert rule.report(1, 1, 0.0).verdict == "stop"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"eviction": 0.0}, "eviction is 0.0: expected a number between 0 and 1"),
        ({"eviction": 1}, "eviction is 1: expected"),
        ({"eviction": math.nan}, "eviction is nan: expected"),
        ({"phases": 0}, "phases is 0: expected a whole number, at least 1"),
        ({"trials": True}, "trials is True: expected a whole number"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, float], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        HyperTrick(**{"trials": 4, "phases": 2, "eviction": 0.25, **changes})  # type: ignore[arg-type]


def test_a_phase_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadInput, match="trial 3 reports phase 2: phases run from 0 to 1"):
        HyperTrick(trials=4, phases=2, eviction=0.25).evict(3, 2, 0.0)
