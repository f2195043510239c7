"""The discrete-event model against what can be counted by hand, and against the schedule that is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import BadInput
from shoal.tuning.halving import SuccessiveHalving, equal_rungs
from shoal.tuning.hypertrick import HyperTrick, completion
from shoal.tuning.pbt import PBT
from shoal.tuning.scheduler import RunAll
from shoal.tuning.schedulers import SCHEDULERS, Budget, make_scheduler
from shoal.tuning.schedules import METHODS, SimulateConfig, gantt, measure, methods_of
from shoal.tuning.simulate import METRICS, Metric, Trials, draw_trials, simulate


def known(times: list[float], quality: list[float], units: int) -> Trials:
    return Trials(np.array(times), np.repeat(np.array(quality)[:, None], units, axis=1))


def test_halving_of_the_slides_takes_seven_units() -> None:
    """16 trials on 6 nodes: three rounds, then two, one and one; 30 units of work."""
    halving = SuccessiveHalving(trials=16, rungs=equal_rungs(4))
    made = simulate(halving, draw_trials(16, 4, sigma=0.0), nodes=6)
    assert made.wall == 7.0 and made.work == 30 and made.alpha == 30 / 64
    assert made.switches >= 2  # the eight of the second rung do not all find their node again
    assert made.idle == pytest.approx(1 - 30 / 42)


def test_a_barrier_waits_for_the_slowest() -> None:
    trials = known([1.0, 3.0], [1.0, 0.0], 2)
    made = simulate(SuccessiveHalving(trials=2, rungs=(1, 2)), trials, nodes=2)
    assert [(p.trial, p.start, p.stop, p.verdict) for p in made.pieces] == [
        (0, 0.0, 1.0, "pause"),
        (1, 0.0, 3.0, "stop"),
        (0, 3.0, 4.0, "complete"),
    ]
    assert made.switches == 0  # its node still held it
    assert made.to_best == 1.0 and made.found == 1.0


def test_checkpoints_cost_what_they_should() -> None:
    trials = known([1.0, 1.0], [0.0, 1.0], 2)
    free = simulate(SuccessiveHalving(trials=2, rungs=(1, 2)), trials, nodes=1)
    assert free.wall == 3.0 and free.switches == 0  # trial 1 ran last and goes on
    other = known([1.0, 1.0], [1.0, 0.0], 2)
    dear = simulate(SuccessiveHalving(trials=2, rungs=(1, 2)), other, nodes=1, checkpoint=0.25)
    assert dear.switches == 1
    assert dear.wall == 1.0 + 0.25 + 1.0 + 0.25 + 1.0  # a save, then a load; what is stopped is not saved
    assert dear.idle == pytest.approx(0.5 / 3.5)
    assert simulate(RunAll(trials=2, units=2), trials, nodes=1, checkpoint=0.25).wall == 4.0


def test_a_trial_stopped_while_it_rests_is_marked() -> None:
    trials = known([1.0, 2.0], [0.0, 1.0], 2)
    made = simulate(SuccessiveHalving(trials=2, rungs=(1, 2)), trials, nodes=2)
    assert [(p.trial, p.verdict) for p in made.pieces] == [(0, "stop"), (1, "pause"), (1, "complete")]


def test_a_copy_has_the_values_of_its_source_and_loads_them() -> None:
    trials = known([1.0] * 5, [0.0, 1.0, 2.0, 3.0, 4.0], 2)
    made = simulate(PBT(trials=5, units=2), trials, nodes=5, checkpoint=0.5)
    ends = {p.trial: p.value for p in made.pieces if p.end == 2}
    assert ends == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}  # trial 0 reported when it was alone, with nobody to copy
    slow = known([2.0, 1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 3.0, 4.0], 2)
    late = simulate(PBT(trials=5, units=2), slow, nodes=5, checkpoint=0.5)
    assert [(p.value, p.loading) for p in late.pieces if p.trial == 0] == [(0.0, 0.0), (4.0, 0.5)]


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("metric", METRICS)
@given(st.integers(1, 15), st.integers(1, 4), st.integers(1, 7), st.sampled_from([0.0, 0.3]), st.integers(0, 99))
@settings(max_examples=5)
def test_nodes_do_one_thing_at_a_time(
    name: str, metric: Metric, trials: int, phases: int, nodes: int, cost: float, seed: int
) -> None:
    drawn = draw_trials(trials, phases, sigma=0.5, metric=metric, seed=seed)
    made = simulate(make_scheduler(name, Budget(trials, phases)), drawn, nodes=nodes, checkpoint=cost)
    for who in ("node", "trial"):
        for one in {getattr(p, who) for p in made.pieces}:
            mine = sorted((p for p in made.pieces if getattr(p, who) == one), key=lambda p: p.start)
            assert all(b.start >= a.stop - 1e-12 for a, b in itertools.pairwise(mine))
            if who == "node":
                assert all(b.start >= a.stop + a.saving - 1e-12 for a, b in itertools.pairwise(mine))
    for p in made.pieces:
        assert p.stop - p.start - p.loading == pytest.approx((p.end - p.begin) * drawn.times[p.trial])
    assert made.wall * nodes >= sum(p.stop - p.start for p in made.pieces) - 1e-9
    if name == "hypertrick":
        assert made.switches == 0
        assert made.alpha >= completion(trials=trials, phases=phases, eviction=0.25).least - 1e-12


def test_trials_are_as_their_metric_says() -> None:
    drawn = draw_trials(2000, 3, sigma=0.6, seed=1)
    assert drawn.times.mean() == pytest.approx(1.0, abs=0.05) and np.log(drawn.times).std() == pytest.approx(
        0.6, abs=0.03
    )
    assert (drawn.values == drawn.values[:, :1]).all()
    slow = draw_trials(50, 3, sigma=0.6, metric="slow")
    assert (np.diff(slow.times[np.argsort(slow.values[:, 0])]) >= 0).all()
    fresh = draw_trials(2000, 2, sigma=0.6, metric="exchangeable").values
    assert abs(np.corrcoef(fresh.T)[0, 1]) < 0.1
    walk = draw_trials(2000, 4, sigma=0.6, metric="walk").values
    assert np.corrcoef(walk.T)[0, 3] == pytest.approx(0.5, abs=0.06)
    assert (draw_trials(9, 2, sigma=0.3, seed=4).times == draw_trials(9, 2, sigma=0.3, seed=4).times).all()


def test_the_claim_of_the_slides_holds_at_equal_work_and_unequal_speeds_alone() -> None:
    """r = 0.25 trains half as much again as halving, and takes longer; r = 0.5 is shorter once speeds differ."""
    walls: dict[float, dict[str, float]] = {}
    for sigma in (0.0, 0.6):
        config = SimulateConfig(sigma=sigma, methods=("sh", "hypertrick"), repeats=150)
        measured = measure(config)
        walls[sigma] = {one.method.label: one.mean("wall") for one in measured}
        work = {one.method.label: one.mean("work") for one in measured}
        assert 1.4 < work["hypertrick r=0.25"] / work["sh"] < 1.75
        assert 1.0 < work["hypertrick r=0.5"] / work["sh"] < 1.25
    assert walls[0.0]["sh"] == 7.0 < walls[0.0]["hypertrick r=0.5"] < walls[0.0]["hypertrick r=0.25"]
    assert walls[0.6]["hypertrick r=0.5"] < walls[0.6]["sh"] < walls[0.6]["hypertrick r=0.25"]


def test_exchangeable_metrics_complete_what_is_expected() -> None:
    alphas = []
    for seed in range(20):
        drawn = draw_trials(100, 10, sigma=0.3, metric="exchangeable", seed=seed)
        rule = HyperTrick(trials=100, phases=10, eviction=0.25)
        alphas.append(simulate(rule, drawn, nodes=20).alpha)
    assert np.mean(alphas) == pytest.approx(0.3775, abs=0.01)


def test_a_thousand_nodes() -> None:
    drawn = draw_trials(2667, 4, sigma=0.6)
    made = simulate(make_scheduler("hypertrick", Budget(2667, 4)), drawn, nodes=1000)
    assert made.switches == 0 and 0.7 < made.alpha < 0.8 and made.wall >= drawn.times.max()


def test_methods_are_simulated_on_the_same_trials() -> None:
    config = SimulateConfig(repeats=3, methods=("random", "hypertrick", "random"), eviction=(0.5,))
    assert [m.label for m in methods_of(config)] == ["random", "hypertrick r=0.5"]
    told: list[tuple[int, int, str]] = []
    measured = measure(config, lambda *words: told.append(words))
    assert told == [(0, 2, "random"), (1, 2, "hypertrick r=0.5")]
    assert [m.measures for m in measured] == [m.measures for m in measure(config)]
    assert set(measured[0].values()) == set(measured[0].measures)
    figure = gantt(measured, "g", "G")
    assert [panel["title"].split(":")[0] for panel in figure["panels"]] == ["random", "hypertrick r=0.5"]
    assert set(METHODS.values()) == set(SCHEDULERS)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"methods": ("hypertrik",)}, "--methods has 'hypertrik': unknown method. Did you mean 'hypertrick'"),
        ({"methods": ()}, "--methods is empty"),
        ({"eviction": ()}, "--eviction is empty"),
        ({"eviction": (0.25, 1.0)}, "eviction is 1.0: expected a number between 0 and 1"),
        ({"sigma": 11.0}, "sigma is 11.0: expected a number from 0 to 10"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        measure(SimulateConfig(repeats=1, **changes))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="checkpoint is -1: expected a time"):
        simulate(RunAll(trials=1, units=1), draw_trials(1, 1, sigma=0), nodes=1, checkpoint=-1)
