"""The model of many learners: nothing is lost, known limits hold; and its times are measured on a small run."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import BadInput
from shoal.studies import learners
from shoal.studies.learners import Times, simulate

UNROLL, ALONE, JOINT = 0.01, 0.002, 0.003
TIMES = Times(UNROLL, ALONE, JOINT, {n: 1e-4 * n for n in range(2, 30)})


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(("many", "actors"), [(1, 1), (1, 40), (3, 8), (20, 120)])
def test_every_unroll_is_learnt_from_once_or_still_waits(many: int, actors: int, depth: int) -> None:
    found = simulate(
        actors=actors, learners=many, unrolls=997, times=TIMES._replace(spread=0.4), depth=depth, seed=many
    )
    assert found.made == found.learnt + found.waiting
    assert 997 <= found.learnt < 997 + many
    assert found.waiting <= actors * (depth + 1)  # its queue, and the one that it holds while it waits
    assert 0 < found.busy <= 1


def test_one_learner_with_many_actors_is_limited_by_its_updates() -> None:
    found = simulate(actors=50, learners=1, unrolls=1000, times=TIMES)
    assert found.seconds == pytest.approx(UNROLL + 1000 * ALONE)


def test_joint_updates_take_the_gradient_the_exchange_and_the_network() -> None:
    found = simulate(actors=600, learners=20, unrolls=1000, times=TIMES, latency=0.004)
    assert found.seconds == pytest.approx(UNROLL + 50 * (JOINT + TIMES.exchange[20] + 0.004))


def test_few_actors_are_the_limit_themselves() -> None:
    """One actor whose unroll takes longer than an update: the learner waits for each."""
    found = simulate(actors=1, learners=1, unrolls=100, times=TIMES)
    assert found.seconds == pytest.approx(100 * UNROLL + ALONE)
    assert found.busy == pytest.approx(100 * ALONE / found.seconds)


def test_a_joint_update_waits_for_its_slowest_learner() -> None:
    same, varying = (
        simulate(actors=600, learners=20, unrolls=2000, times=TIMES._replace(spread=spread)) for spread in (0.0, 0.3)
    )
    assert 1.3 * same.seconds < varying.seconds < 3 * same.seconds


def test_a_learner_without_an_actor_is_refused() -> None:
    with pytest.raises(BadInput, match="8 learners: there must be an actor for each, and there are 4"):
        simulate(actors=4, learners=8, unrolls=10, times=TIMES)


@pytest.mark.slow
def test_times_are_measured_on_the_functions_that_runs_use() -> None:
    from shoal.studies.learner_times import measure_times

    settings = {"algo": "a2c", "envs": 2, "net.hidden": "8", "algo.unroll": 4, "backend": "jax"}
    times = measure_times("CartPole-v1", settings, [1, 2, 20], repeats=3)
    assert min(times.unroll, times.alone, times.joint) > 0
    assert set(times.exchange) == {2, 20} and 0 < times.exchange[2] < times.exchange[20]


def test_the_table_of_the_simulation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gains over one learner with as many actors, and a network that takes them away again."""
    monkeypatch.setattr("shoal.studies.learner_times.measure_times", lambda *given: TIMES)
    size = {"env": "CartPole-v1", "steps": 1, "seeds": 2, "timed": {"algo": "a2c"}, "unrolls": 1000}
    pairs = {"simulated": [[20, 600]], "latency_ms": [0.0, 200.0]}
    found = learners.learners({**size, **pairs}, tmp_path, lambda done, total, name: None)
    near, far = found["rows"]
    assert near["keys"]["simulated"] == "20 learners, 600 actors"
    expected = (UNROLL + 50 * (JOINT + TIMES.exchange[20])) / (UNROLL + 1000 * ALONE)
    assert near["values"]["less_time"] == pytest.approx([100 * (1 - expected)] * 2)
    assert near["values"]["throughput"] == pytest.approx([100 * (1 / expected - 1)] * 2)
    assert max(far["values"]["less_time"]) < 0
    assert "an unroll 10.00, an update alone 2.00, with others 3.00" in found["notes"][-1]
