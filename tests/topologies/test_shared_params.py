"""Workers on shared parameters: one of them is `sequential`, several share, and every option does what it says."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from shared_runs import A2C, CASES, B, N, T, metrics, shared, train, vector
from tiny_envs import Walk

import shoal
from shoal.core.algorithm import Moments
from shoal.core.program import Context, Reply, Report
from shoal.envs.batch import seed_of
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.weight_exchange import Central
from shoal.roles import shared_params as shared_roles
from shoal.runtimes.inline import inline_ports


def test_a_worker_may_learn_for_longer_than_a_step_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn, slow = Central.learn, iter([2.5])

    def slowly(self: Central, *args: Any) -> Any:
        time.sleep(next(slow, 0.0))
        return learn(self, *args)

    monkeypatch.setattr(Central, "learn", slowly)
    run = train(tmp_path / "run", runtime={"name": "threads", "step_timeout": 1.0}, updates=3)
    assert run.summary["updates"] == 3 and run.summary["faults"] == 0


@pytest.mark.parametrize("case", CASES)
def test_one_worker_under_a_lock_is_sequential_bit_for_bit(case: str, tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", "sequential", case=case)
    one = train(tmp_path / "one", shared("lock"), case=case)
    assert one.params_hash == alone.params_hash
    for part in ("moments", "obs", "step", "reward", "extra"):
        if any(name.startswith(f"state/{part}") for name in alone._loaded().arrays):
            np.testing.assert_array_equal(vector(one, part), vector(alone, part))
    assert one.summary["updates"] == alone.summary["updates"] == N
    assert one.summary["episodes"] == alone.summary["episodes"]


@pytest.mark.parametrize(("runtime", "case"), [("threads", "normalised"), ("processes", "rmsprop")])
def test_one_worker_is_the_same_bits_wherever_it_runs(runtime: str, case: str, tmp_path: Path) -> None:
    inline = train(tmp_path / "inline", shared("lock"), case=case)
    elsewhere = train(tmp_path / runtime, shared("lock"), case=case, runtime=runtime)
    assert elsewhere.params_hash == inline.params_hash


@pytest.mark.parametrize(
    ("consistency", "case"),
    [("hogwild", "rmsprop"), ("hogwild", "adam"), ("hogwild", "ppo"), ("hogwild", "dqn"), ("gossip", "rmsprop")],
)
def test_one_worker_without_a_lock_is_sequential_but_for_rounding(case: str, consistency: str, tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", "sequential", case=case)
    one = train(tmp_path / "one", shared(consistency), case=case)
    np.testing.assert_allclose(vector(one), vector(alone), atol=1e-5)


@pytest.mark.parametrize("case", ["rmsprop", "adam", "momentum"])
def test_servers_of_slices_run_the_optimiser_as_a_learner_does(case: str, tmp_path: Path) -> None:
    """One gradient, from the same weights: afterwards they would differ by the lag."""
    alone = train(tmp_path / "alone", "sequential", case=case, updates=1)
    one = train(tmp_path / "one", shared("sharded", shards=3), case=case, updates=1)
    for part in ("params", "moments"):
        np.testing.assert_allclose(vector(one, part), vector(alone, part), atol=1e-6)


@pytest.mark.parametrize("case", ["ppo", "dqn"])
def test_servers_take_several_gradients_of_one_unroll(case: str, tmp_path: Path) -> None:
    run = train(tmp_path / "run", shared("sharded", shards=2, queue=1), case=case, updates=4)
    fresh = train(tmp_path / "fresh", "sequential", case=case, updates=4)
    assert np.isfinite(vector(run)).all() and run.summary["updates"] == 4
    assert vector(run, "step")[0] >= 4 and len(vector(run)) == len(vector(fresh))
    assert any("queue/depth" in row for row in metrics(run))


@pytest.mark.parametrize("consistency", ["hogwild", "lock", "sharded", "gossip"])
def test_inline_is_the_same_run_twice_and_workers_alternate(consistency: str, tmp_path: Path) -> None:
    first, again = (
        train(tmp_path / str(i), shared(consistency), actors=3, updates=7, case="normalised") for i in (0, 1)
    )
    assert first.params_hash == again.params_hash
    assert first.summary["updates"] == 7 and first.summary["env_steps"] == 7 * T * B
    other = train(tmp_path / "other", shared(consistency), actors=3, updates=7, case="normalised", seed=1)
    assert other.params_hash != first.params_hash


@pytest.mark.parametrize("consistency", ["hogwild", "lock", "sharded", "gossip"])
@pytest.mark.parametrize("runtime", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_the_budget_holds_exactly(consistency: str, runtime: str, tmp_path: Path) -> None:
    run = train(tmp_path / "run", shared(consistency), actors=3, updates=31, runtime=runtime, case="normalised")
    assert run.summary["updates"] == 31 and run.summary["env_steps"] == 31 * T * B
    last = metrics(run)[-1]
    assert last["lag/max"] >= last["lag/versions"] >= 0 and last["table/lost"] < 0.2
    # Of all rows: a last turn whose news was told before has none of its own.
    assert {"time/lock", "time/barrier", "time/collect", "time/learn"} <= set().union(*metrics(run))
    count = run._loaded().arrays["state/obs/count"]
    valid = 31 * T * B
    assert 0.8 * valid < count <= valid, "statistics of all workers were merged, none was lost"


def test_every_step_counts_in_the_histogram_of_lags(tmp_path: Path) -> None:
    run = train(tmp_path / "run", actors=2, runtime="threads", updates=20)
    lags = {int(lag): steps for lag, steps in run.summary["lags"].items()}
    assert sum(lags.values()) == 20 * T * B
    assert max(lags) == run.summary["lag_max"]


def test_statistics_are_those_of_all_that_was_seen(tmp_path: Path) -> None:
    """Three workers' deltas merged by Chan's formula, against the same unrolls in one batch."""
    config = {"algo": {**A2C, "normalise_obs": True, "learning_rate": 1e-12}}
    apart = train(tmp_path / "apart", shared("lock"), actors=3, updates=6, **config)
    together = train(tmp_path / "together", "sequential", actors=3, updates=6, **config)
    for leaf in ("count", "mean", "m2"):
        ours, theirs = (run._loaded().arrays[f"state/obs/{leaf}"] for run in (apart, together))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_moments_are_shared_or_each_workers_own(tmp_path: Path) -> None:
    """Two workers, two updates: shared squares have seen both gradients, own ones have seen one."""
    config = {"algo": {**A2C, "decay": 0.5, "initial_square": 1e-8}}
    runs = {
        moments: train(tmp_path / moments, shared("lock", moments=moments), actors=2, updates=2, **config)
        for moments in ("shared", "own")
    }
    one = train(tmp_path / "one", "sequential", actors=1, updates=1, **config)
    np.testing.assert_allclose(vector(runs["own"], "moments"), vector(one, "moments"), rtol=1e-5, atol=1e-12)
    assert not np.allclose(vector(runs["shared"], "moments"), vector(one, "moments"), rtol=1e-2)
    assert not np.allclose(vector(runs["shared"]), vector(runs["own"]), atol=1e-7)


def test_pulling_less_often_leaves_the_worker_behind(tmp_path: Path) -> None:
    always, rarely = (
        train(tmp_path / f"{n}", shared("lock", pull_every=n), updates=6, report_every=1, metrics_every=0)
        for n in (1, 3)
    )
    assert always.summary["lag_max"] == 0 and rarely.summary["lag_max"] == 2
    assert [row["lag/max"] for row in metrics(rarely)] == [0, 1, 2, 0, 1, 2]


def test_moments_do_not_diverge_where_pulls_are_rare(tmp_path: Path) -> None:
    """32 pushes based on one pull each forget a tenth of the same mean: added up, they would leave minus twice of it."""
    kind = shared("lock", pull_every=32)
    run = train(tmp_path / "run", kind, case="adam", updates=300)
    means = [array for name, array in run._loaded().arrays.items() if name.startswith("state/moments/mu/")]
    assert means and max(np.abs(array).max() for array in means) <= 0.5, "gradients are clipped to a norm of 0.5"
    assert run.summary["bad_updates"] == 0


def test_which_workers_share_their_moments() -> None:
    """Those whose pushes follow a pull: with a replay, several workers pull before each push whatever the options say."""

    def shares(case: str, actors: int, **options: Any) -> bool:
        settings = {"net": {"hidden": (8,)}, "backend": "gymnasium", "envs": B, "runtime": "inline", "actors": actors}
        plan = resolve("CartPole-v1", {**settings, **CASES[case], "topology": shared("lock", **options)})
        return plan.topology.share_moments(make_blueprint(plan, None, None))

    assert shares("adam", 2) and shares("dqn", 1) and shares("dqn", 2, push_every=1)
    for rare in ({"pull": "episode"}, {"pull_every": 2}):
        assert not shares("adam", 2, **rare) and not shares("dqn", 1, **rare)
        assert shares("dqn", 2, push_every=1, **rare) and not shares("dqn", 2, push_every=2, **rare)


def test_pulling_at_the_end_of_an_episode(tmp_path: Path) -> None:
    run = train(tmp_path / "run", shared("lock", pull="episode"), updates=12, report_every=1, metrics_every=0)
    behind = 0
    for row in metrics(run):
        assert row["lag/max"] == behind
        behind = 0 if row.get("episode/count") else behind + 1
    assert run.summary["lag_max"] > 0 and run.summary["episodes"] > 0


def test_the_barrier_is_waited_at(tmp_path: Path) -> None:
    run = train(tmp_path / "run", shared(barrier=True), actors=2, updates=40, runtime="threads")
    free = train(tmp_path / "free", shared(barrier=False), actors=2, updates=40, runtime="threads")
    total, none = (sum(row["time/barrier"] for row in metrics(r)) for r in (run, free))
    assert run.summary["updates"] == 40 and total > 10 * none


class Uneven(Walk):
    """Episodes of 5 steps for actor 0 and of 40 for the others. Counts the steps of both kinds."""

    early: ClassVar = frozenset(seed_of(0, 0, env, episode) for env in range(B) for episode in range(100))
    made: ClassVar[Counter[int]] = Counter()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._length = 5 if seed in self.early else 40
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.made[self._length] += 1
        obs, reward, *_, info = super().step(action)
        return obs, reward, False, self._steps >= self._length, info


def test_the_barrier_holds_up_no_worker_that_runs_inline(tmp_path: Path) -> None:
    """Actor 0 waits after each of its unrolls for actor 1, whose next end is four unrolls away."""
    Uneven.made.clear()
    kind = shared("lock", barrier=True)
    run = train(tmp_path / "run", kind, actors=2, updates=40, env=Uneven, backend="gymnasium", seed=0)
    assert run.summary["updates"] == 40 and run.summary["faults"] == 0
    assert T * B < 3 * Uneven.made[5] < Uneven.made[40]


def test_some_actions_stray(tmp_path: Path) -> None:
    """All of them: whatever the weights, an episode of CartPole is then as short as chance makes it."""
    runs = [train(tmp_path / str(e), shared("lock", epsilon=e), updates=12) for e in (0.0, 0.1, 1.0)]
    assert len({run.params_hash for run in runs}) == 3
    assert runs[2].summary["return_mean"] < 40


def test_split_workers_teach_one_part_each(tmp_path: Path) -> None:
    before = train(tmp_path / "before", shared("lock", split=True), actors=2, updates=1)
    after = train(tmp_path / "after", shared("lock", split=True), actors=2, updates=2)
    fresh = train(tmp_path / "fresh", "sequential", updates=1, algo={**A2C, "learning_rate": 1e-30})
    first_policy, first_value = (vector(before, f"params/{part}") for part in ("policy", "value"))
    assert not np.array_equal(first_policy, vector(fresh, "params/policy"))
    np.testing.assert_allclose(first_value, vector(fresh, "params/value"), atol=1e-7)
    np.testing.assert_array_equal(vector(after, "params/policy"), first_policy)
    assert not np.array_equal(vector(after, "params/value"), first_value)


def test_gossip_is_evaluated_at_the_mean_of_the_workers(tmp_path: Path) -> None:
    """One update of one of two workers moves the mean by half of it: the pair was equal before."""
    alone = train(tmp_path / "alone", "sequential", updates=1)
    fresh = train(tmp_path / "fresh", "sequential", updates=1, algo={**A2C, "learning_rate": 1e-30})
    pair = train(tmp_path / "pair", shared("gossip"), actors=2, updates=1)
    np.testing.assert_allclose(vector(pair), (vector(alone) + vector(fresh)) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("consistency", "case", "actors"), [("lock", "normalised", 2), ("hogwild", "dqn", 2), ("sharded", "rmsprop", 3)]
)
def test_half_and_half_is_the_whole_bit_for_bit(consistency: str, case: str, actors: int, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", shared(consistency), case=case, actors=actors, updates=12, report_every=1)
    stop = [lambda report: report.version >= 6]
    more = {"report_every": 1, "callbacks": stop}
    half = train(tmp_path / "half", shared(consistency), case=case, actors=actors, updates=12, **more)
    assert half.summary["updates"] == 6
    rest = shoal.train(None, resume=half.path, eval_episodes=0, sinks=("jsonl",), quiet=True, report=False)
    assert rest.summary["updates"] == 12 and rest.params_hash == whole.params_hash
    assert rest.summary["env_steps"] == whole.summary["env_steps"]


def test_statistics_that_are_handed_in_overflow_nothing() -> None:
    algo = {**A2C, "normalise_obs": True}
    settings = {"algo": algo, "net": {"hidden": (8,)}, "backend": "jax", "envs": B, "runtime": "inline", "actors": 2}
    plan = resolve("CartPole-v1", {**settings, "topology": "shared_params", "steps": 2 * T * B})
    blueprint = make_blueprint(plan, None, None)
    program = plan.topology_class(plan.topology).program(blueprint)
    ports = inline_ports(program.ports, [role.name for role in program.roles])
    main = next(role for role in program.roles if role.main)
    monitor: Any = main.build(ports, Context(name="monitor", fault=lambda fault: None, beat=lambda: None))
    next(monitor.run())  # it fills the tables
    ports["statistics"].put(np.array([4, 0, 0, 0, 0, 1, 1, 1, 1], np.float32))
    for mean in (2.0, 1e20):  # the second is left out
        handed = Moments(np.float32(4), np.full(4, mean, np.float32), np.ones(4, np.float32))
        steps = monitor._adopt(monitor.state(), Reply(statistics=handed))
        op = next(steps, None)
        while op is not None:
            try:
                op = steps.send(op.now())
            except StopIteration:
                op = None
        found = ports["statistics"].pull()[1]
        assert np.isfinite(found).all() and found[0] == 8


def test_a_turn_whose_news_was_reported_before_it_was_finished_still_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_roles, "REPORT_SECONDS", 0.0)
    settings = {"algo": A2C, "net": {"hidden": (8,)}, "backend": "jax", "envs": B, "runtime": "inline", "actors": 2}
    plan = resolve("CartPole-v1", {**settings, "topology": "shared_params", "steps": 2 * T * B})
    program = plan.topology_class(plan.topology).program(make_blueprint(plan, None, None))
    ports = inline_ports(program.ports, [role.name for role in program.roles])
    main = next(role for role in program.roles if role.main)
    steps = main.build(ports, Context(name="monitor", fault=lambda fault: None, beat=lambda: None)).run()
    op = next(steps)  # it has opened the roster, and waits for news
    for worker in range(2):
        news = ports["news"].claim(worker).now()
        turn = ports["roster"].turn(worker)
        assert turn.attempt() is shared_roles.NOT_YET  # inline lets the others have a look first
        assert turn.attempt() == worker
        for field in news.values():
            field[...] = 0
        ports["news"].push(worker)
    ports["roster"].finish(0)
    said: list[Report] = []
    for _ in range(10):  # the second worker has told, and not yet finished
        if (answer := op.attempt()) is shared_roles.NOT_YET:
            ports["roster"].finish(1)
            answer = op.attempt()
        got = steps.send(answer)
        while isinstance(got, Report):
            said.append(got)
            if got.version == 2:
                break
            got = steps.send(Reply())
        op = got
        if said and said[-1].version == 2:
            break
    assert [report.version for report in said] == [1, 2]
    assert [report.env_steps for report in said] == [T * B, 2 * T * B] and said[1].lags == {}


def test_news_that_never_ends_does_not_postpone_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many fast workers send more than the monitor reads in between. The last report still holds all news."""
    monkeypatch.setattr(shared_roles, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(shared_roles, "OVERDUE", 0.0, raising=False)
    settings = {"algo": A2C, "net": {"hidden": (8,)}, "backend": "jax", "envs": B, "runtime": "inline", "actors": 2}
    plan = resolve("CartPole-v1", {**settings, "topology": "shared_params", "steps": 6 * T * B})
    program = plan.topology_class(plan.topology).program(make_blueprint(plan, None, None))
    ports = inline_ports(program.ports, [role.name for role in program.roles])
    main = next(role for role in program.roles if role.main)
    steps = main.build(ports, Context(name="monitor", fault=lambda fault: None, beat=lambda: None)).run()
    got, told, said = next(steps), 0, list[Report]()
    while not said or said[-1].version < 6:
        for worker in range(2):
            if told < 6 and (news := ports["news"].claim(worker).now()) is not None:
                turn = ports["roster"].turn(worker)
                assert turn.attempt() is shared_roles.NOT_YET and turn.attempt() == told
                for field in news.values():
                    field[...] = 0
                news["steps"][0] = T * B
                ports["news"].push(worker)
                ports["roster"].finish(worker)
                told += 1
        if isinstance(got, Report):
            said.append(got)
            got = steps.send(Reply())
        else:
            answer = got.attempt()
            assert answer is not shared_roles.NOT_YET
            got = steps.send(answer)
    assert len(said) > 1, "the first comes before the last news"
    assert sum(sum(report.lags.values()) for report in said) == 6 * T * B
