"""Halving, HyperBand, ASHA and PBT against slow oracles and the published brackets."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import BadInput
from shoal.tuning.halving import ASHA, SuccessiveHalving, equal_rungs, geometric_rungs
from shoal.tuning.hyperband import HyperBand, brackets
from shoal.tuning.pbt import PBT, exploit
from shoal.tuning.scheduler import Decision, Scheduler, Task, key
from shoal.tuning.schedulers import SCHEDULERS, Budget, make_scheduler

VALUES = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1.0, math.nan]))


class Played:
    """Drives a scheduler with a few workers in an order that `draw` decides, and keeps the log."""

    def __init__(self, scheduler: Scheduler, workers: int, draw: random.Random, value: object = None) -> None:
        self.tasks: list[Task] = []
        self.log: list[tuple[int, int, float]] = []
        self.decisions: list[Decision] = []
        running: list[Task] = []
        while True:
            while len(running) < workers and (task := scheduler.next()) is not None:
                self.tasks.append(task)
                running.append(task)
            if not running:
                return
            task = running.pop(draw.randrange(len(running)))
            told = value(task.trial, task.end) if value else draw.choice([draw.gauss(0, 1), 0.0, math.nan])  # type: ignore[operator]
            decision = scheduler.report(task.trial, task.end, told)
            self.log.append((task.trial, task.end, told))
            self.decisions.append(decision)
            assert scheduler.report(task.trial, task.end, -told) == decision  # a second report changes nothing
            if decision.verdict == "continue":
                running.append(Task(task.trial, task.end, decision.end))
                self.tasks.append(running[-1])


@pytest.mark.parametrize("name", SCHEDULERS)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 8), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_every_scheduler_ends_and_trains_each_unit_once(
    name: str, trials: int, phases: int, workers: int, draw: random.Random
) -> None:
    played = Played(make_scheduler(name, Budget(trials, phases)), workers, draw)
    assert {task.trial for task in played.tasks} == set(range(trials))
    done = Counter[int]()
    for task in played.tasks:
        assert task.begin == done[task.trial] < task.end <= phases  # from where it stopped, never twice
        done[task.trial] = task.end
    ended = {d.trial for d in played.decisions if d.verdict in ("stop", "complete")}
    ended |= {trial for d in played.decisions for trial in d.stopped}
    paused = {d.trial for d in played.decisions if d.verdict == "pause"} - ended
    assert ended | paused == set(range(trials)) and (name == "asha" or not paused)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_is_a_function_of_its_calls(name: str) -> None:
    one, two = (Played(make_scheduler(name, Budget(12, 4)), 5, random.Random(3)) for _ in range(2))
    assert (one.tasks, one.decisions) == (two.tasks, two.decisions)


@given(st.integers(1, 24), st.integers(1, 4), st.integers(2, 4), st.integers(1, 6), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_halving_keeps_the_best_of_every_rung(
    trials: int, rungs: int, eta: int, workers: int, draw: random.Random
) -> None:
    played = Played(SuccessiveHalving(trials=trials, rungs=equal_rungs(rungs), eta=eta), workers, draw)
    expected = set(range(trials))
    for rung in range(1, rungs + 1):
        here = {trial: value for trial, end, value in played.log if end == rung}
        assert set(here) == expected
        sound = [trial for trial in here if here[trial] == here[trial]]
        ranked = sorted(sound, key=lambda t: key(t, rung, here[t]), reverse=True)
        expected = set(ranked[: max(1, len(here) // eta)])


def test_halving_waits_at_its_rungs_and_names_those_it_stops() -> None:
    bracket = SuccessiveHalving(trials=4, rungs=(1, 2), eta=2)
    assert [bracket.next() for _ in range(5)] == [(0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1), None]
    assert [bracket.report(t, 1, float(t)).verdict for t in range(3)] == ["pause"] * 3
    assert bracket.next() is None  # the barrier
    last = bracket.report(3, 1, 3.0)
    assert last.verdict == "pause" and last.stopped == (0, 1)
    assert [bracket.next() for _ in range(3)] == [(3, 1, 2), (2, 1, 2), None]


def test_halving_with_all_trials_broken_ends() -> None:
    bracket = SuccessiveHalving(trials=2, rungs=(1, 2))
    assert [bracket.report(t, 1, math.nan).verdict for t in range(2)] == ["stop", "stop"]


# Li et al., JMLR 18 (2018), Table 1: R = 81, eta = 3, as (n_i, r_i).
PUBLISHED = [
    [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
    [(34, 3), (11, 9), (3, 27), (1, 81)],
    [(15, 9), (5, 27), (1, 81)],
    [(8, 27), (2, 81)],
    [(5, 81)],
]


def test_the_brackets_are_the_published_ones() -> None:
    assert brackets(81, 3) == PUBLISHED
    assert [bracket[0].trials for bracket in brackets(27, 3)] == [27, 12, 6, 4]


def test_hyperband_trains_what_its_brackets_say() -> None:
    band = HyperBand(units=27, eta=3)
    assert band.trials == 49
    played = Played(band, 8, random.Random(0), lambda trial, end: float(trial % 7))
    work = sum(task.end - task.begin for task in played.tasks)
    assert work / (49 * 27) == pytest.approx(0.27, abs=0.001)
    counts = Counter(end for _, end, _ in played.log)
    assert counts == {1: 27, 3: 9 + 12, 9: 3 + 4 + 6, 27: 1 + 1 + 2 + 4}


def test_hyperband_repeats_its_brackets_until_the_trials_are_spent() -> None:
    assert [b.trials for b in HyperBand(units=4, eta=2, trials=16).brackets] == [4, 3, 3, 4, 2]
    assert HyperBand(units=1, trials=3).brackets[0].rungs == (1,)


def asha_oracle(
    log: list[tuple[int, int, float]], promoted: set[tuple[int, int]], rungs: tuple[int, ...], eta: int
) -> tuple[int, int] | None:
    """get_job of the paper's Algorithm 2: (trial, rung) to promote, None to grow the bottom rung."""
    for rung in reversed(range(len(rungs) - 1)):
        here = {trial: value for trial, end, value in log if end == rungs[rung]}
        top = sorted(here, key=lambda t: key(t, rungs[rung], here[t]), reverse=True)[: len(here) // eta]
        able = [trial for trial in top if (trial, rung) not in promoted and here[trial] == here[trial]]
        if able:
            return able[0], rung
    return None


@given(st.integers(1, 20), st.integers(2, 3), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_asha_promotes_as_published(trials: int, eta: int, workers: int, draw: random.Random) -> None:
    rungs = geometric_rungs(9, eta)
    asha = ASHA(trials=trials, rungs=rungs, eta=eta)
    log: list[tuple[int, int, float]] = []
    promoted: set[tuple[int, int]] = set()
    running: list[Task] = []
    fresh = 0
    while True:
        while len(running) < workers:
            expected, task = asha_oracle(log, promoted, rungs, eta), asha.next()
            if expected is not None:
                assert task == (expected[0], rungs[expected[1]], rungs[expected[1] + 1])
                promoted.add(expected)
            elif fresh < trials:
                assert task == (fresh, 0, rungs[0])
                fresh += 1
            else:
                assert task is None
                break
            assert task is not None
            running.append(task)
        if not running:
            break
        done = running.pop(draw.randrange(len(running)))
        value = draw.choice([draw.gauss(0, 1), 0.0, math.nan])
        log.append((done.trial, done.end, value))
        verdict = asha.report(done.trial, done.end, value).verdict
        assert verdict == ("complete" if done.end == 9 else "stop" if value != value else "pause")


def test_the_rungs() -> None:
    assert equal_rungs(4) == (1, 2, 3, 4)
    assert geometric_rungs(81, 3) == (1, 3, 9, 27, 81)
    assert geometric_rungs(10, 2) == (1, 2, 5, 10)
    assert geometric_rungs(4, 3) == (1, 4) and geometric_rungs(1, 2) == (1,)


LATEST = st.dictionaries(st.integers(0, 30), st.tuples(st.integers(1, 4), VALUES), min_size=1)


@given(LATEST, st.integers(0, 3))
def test_exploit_is_truncation_selection(latest: dict[int, tuple[int, float]], seed: int) -> None:
    worst_first = sorted(latest, key=lambda who: key(who, *latest[who]))
    fifth = len(latest) // 5
    for at, member in enumerate(worst_first):
        source = exploit(latest, member, fraction=0.2, seed=seed)
        if at >= fifth:
            assert source is None
        elif source is not None:
            assert source in worst_first[len(latest) - fifth :] and not math.isnan(latest[source][1])


def test_exploit_copies_every_one_of_the_best() -> None:
    latest = {member: (1, float(member)) for member in range(20)}
    assert {exploit(latest, 0, fraction=0.2, seed=seed) for seed in range(60)} == {16, 17, 18, 19}


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 6), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_pbt_exploits_by_the_latest_reports(trials: int, units: int, workers: int, draw: random.Random) -> None:
    played = Played(PBT(trials=trials, units=units, fraction=0.4, seed=5), workers, draw)
    latest: dict[int, tuple[int, float]] = {}
    for (trial, end, value), decision in zip(played.log, played.decisions, strict=True):
        latest[trial] = (end, value)
        expected = exploit(latest, trial, fraction=0.4, seed=5) if end < units else None
        assert decision.source == expected
    assert len(played.log) == trials * units  # nobody is stopped


def test_pbt_members_take_turns_where_workers_are_few() -> None:
    played = Played(PBT(trials=4, units=2), 2, random.Random(0), lambda trial, end: float(trial))
    assert [task[1] for task in played.tasks] == [0, 0, 0, 0, 1, 1, 1, 1]
    alone = Played(PBT(trials=2, units=3), 2, random.Random(0), lambda trial, end: float(trial))
    assert {d.verdict for d in alone.decisions} == {"continue", "complete"}


@pytest.mark.parametrize(
    ("name", "budget", "told"),
    [
        ("hyperbnad", Budget(4, 4), "unknown scheduler 'hyperbnad'. Did you mean 'hyperband'"),
        ("sh", Budget(0, 4), "trials is 0: expected a whole number, at least 1"),
        ("sh", Budget(4, 0), "units is 0: expected"),
        ("asha", Budget(4, 4, eta=1), "eta is 1: expected a whole number, at least 2"),
        ("hypertrick", Budget(4, 4, eviction=1.5), "eviction is 1.5: expected"),
    ],
)
def test_bad_settings_are_refused(name: str, budget: Budget, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        make_scheduler(name, budget)


def test_reports_off_the_rungs_are_refused() -> None:
    with pytest.raises(BadInput, match="trial 0 reports 2 units: its rung ends at 1"):
        SuccessiveHalving(trials=2, rungs=(1, 3)).report(0, 2, 0.0)
    with pytest.raises(BadInput, match="trial 0 reports 2 units: rungs end at 1, 3"):
        ASHA(trials=2, rungs=(1, 3)).report(0, 2, 0.0)
    with pytest.raises(BadInput, match=r"rungs are \(3, 1\): expected increasing whole numbers"):
        ASHA(trials=2, rungs=(3, 1))
    with pytest.raises(BadInput, match=r"fraction is 0.6: expected a number above 0, at most 0.5"):
        PBT(trials=2, units=2, fraction=0.6)
