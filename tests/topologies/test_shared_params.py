"""Workers on shared parameters: one of them is `sequential`, several share, and every option does what it says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_envs import Walk

import shoal
from shoal.core.errors import BadInput
from shoal.core.program import Context, Reply, Report
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.weight_exchange import Central
from shoal.roles import shared_params as shared_roles
from shoal.runtimes.inline import inline_ports

T, B, N = 8, 4, 6
A2C = {"name": "a2c", "unroll": T}
PPO = {"name": "ppo", "unroll": T, "batch_size": 16, "epochs": 2, "final_rate": 0.1}
DQN = {"name": "dqn", "unroll": T, "batch_size": 16, "warmup": 40, "capacity": 300, "every": 8, "target_every": 5}
CASES: dict[str, dict[str, Any]] = {
    "rmsprop": {"algo": {**A2C, "final_rate": 0.1}},
    "adam": {"algo": {**A2C, "optimiser": "adam"}},
    "momentum": {"algo": {**A2C, "optimiser": "momentum"}},
    "normalised": {"algo": {**A2C, "normalise_obs": True, "normalise_reward": True}},
    "ppo": {"algo": PPO},
    "dqn": {"algo": DQN},
    "prioritized": {"algo": {**DQN, "replay": "prioritized", "n_step": 3}},
    "recurrent": {"env": Walk, "algo": A2C, "net": {"hidden": (8,), "cell": "gru", "cell_size": 8}},
}


def test_a_worker_may_learn_for_longer_than_a_step_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn, slow = Central.learn, iter([2.5])

    def slowly(self: Central, *args: Any) -> Any:
        time.sleep(next(slow, 0.0))
        return learn(self, *args)

    monkeypatch.setattr(Central, "learn", slowly)
    run = train(tmp_path / "run", runtime={"name": "threads", "step_timeout": 1.0}, updates=3)
    assert run.summary["updates"] == 3 and run.summary["faults"] == 0


def train(
    out: Path,
    topology: Any = "shared_params",
    *,
    case: str = "rmsprop",
    actors: int = 1,
    updates: int = N,
    runtime: Any = "inline",
    **more: Any,
) -> shoal.Run:
    settings: dict[str, Any] = {
        "env": "CartPole-v1",
        "backend": "auto" if CASES[case].get("env") else "gymnasium",
        "net": {"hidden": (8,)},
        **CASES[case],
        **more,
    }
    return shoal.train(
        settings.pop("env"),
        topology=topology,
        runtime=runtime,
        actors=actors,
        envs=B,
        steps=updates * T * B,
        eval_episodes=0,
        sinks=("jsonl",),
        out=out,
        quiet=True,
        report=False,
        **settings,
    )


def shared(consistency: str = "hogwild", **options: Any) -> dict[str, Any]:
    return {"name": "shared_params", "consistency": consistency, **options}


def vector(run: shoal.Run, part: str = "params") -> np.ndarray:
    """The weights of the last checkpoint, or another part of the state, in one vector."""
    arrays = run._loaded().arrays
    chosen = [a.ravel() for n, a in sorted(arrays.items()) if n.startswith(f"state/{part}")]
    return np.concatenate(chosen)


def metrics(run: shoal.Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


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


def test_a_global_replay_is_drawn_from_by_all(tmp_path: Path) -> None:
    runs = {
        kind: train(tmp_path / kind, shared("lock", replay=kind), case="dqn", actors=2, updates=8, report_every=1)
        for kind in ("local", "global")
    }
    rows = {kind: metrics(run)[-1]["replay/rows"] for kind, run in runs.items()}
    assert rows["global"] > 1.5 * rows["local"] and runs["local"].params_hash != runs["global"].params_hash


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


def test_the_moments_of_many_workers_on_a_replay_stay_what_they_are(tmp_path: Path) -> None:
    """32 gradients an unroll forget nearly all of Adam's mean: four such changes added up would leave minus thrice of it."""
    algo = {**DQN, "every": 1, "learning_rate": 1e-6, "target_every": 10**6}
    kind = shared("hogwild", push_every=1)
    run = train(tmp_path / "run", kind, case="dqn", actors=4, updates=80, runtime="threads", algo=algo)
    means = [array for name, array in run._loaded().arrays.items() if name.startswith("state/moments/mu/")]
    assert means and max(np.abs(array).max() for array in means) < 10.0, "gradients are clipped to a norm of 10"


@pytest.mark.parametrize("consistency", ["hogwild", "lock"])
def test_gradients_of_a_replay_come_in_whole_pushes(consistency: str, tmp_path: Path) -> None:
    """Steps that did not earn a whole push are carried over, so the number of gradients is that of the steps."""
    counts = {}
    for together in (1, 4):
        kind = shared(consistency, push_every=together)
        algo = {**DQN, "every": 3, "warmup": 0}
        run = train(tmp_path / str(together), kind, case="dqn", actors=2, updates=20, algo=algo)
        counts[together] = vector(run, "step")[0]
        assert np.isfinite(vector(run)).all()
    assert counts[4] % 4 == 0 and 0 <= counts[1] - counts[4] < 4, counts


def test_the_default_push_shares_out_sixteen_gradients(tmp_path: Path) -> None:
    for actors, named in ((2, 8), (4, 4)):
        runs = [
            train(tmp_path / f"{actors}-{every}", kind, case="dqn", actors=actors, updates=12, algo={**DQN, "every": 1})
            for every, kind in ((None, shared("lock")), (named, shared("lock", push_every=named)))
        ]
        assert runs[0].params_hash == runs[1].params_hash


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"consistency": "chaos"}, r"'chaos': expected one of hogwild, lock, sharded, gossip"),
    "shards": ({"consistency": "sharded", "shards": 10**6}, r"--topology.shards is 1000000: the net has only \d+ para"),
    "sharded own": ({"consistency": "sharded", "moments": "own"}, "servers of sharded hold the moments"),
    "gossip shared": ({"consistency": "gossip", "moments": "shared"}, "every worker has its own"),
    "split sharded": ({"consistency": "sharded", "split": True}, "goes with hogwild, lock and gossip"),
    "split alone": ({"split": True}, "at least --actors 2"),
    "replay": ({"replay": "global"}, "algorithms that learn from a replay"),
    "many gradients": ({"moments": "shared"}, "several gradients, whose changes of the moments do not add up"),
    "push": ({"push_every": 4}, "--topology.push-every is 4: only algorithms that learn from a replay"),
    "servers": ({"shards": 3}, "--topology.shards is 3: it goes with --topology.consistency sharded"),
    "their queue": ({"consistency": "lock", "queue": 3}, "--topology.queue is 3: it goes with --topology.consistency"),
    "pull": ({"pull": "episode", "pull_every": 3}, "--topology.pull-every is 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    case = "ppo" if name == "many gradients" else "rmsprop"
    with pytest.raises(BadInput, match=message) as caught:
        train(tmp_path / "run", {"name": "shared_params", **options}, case=case)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("consistency", "what"), [("gossip", "the whole update"), ("sharded", "one gradient")])
def test_pushes_of_some_consistencies_have_a_size_of_their_own(consistency: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"--topology.push-every is 4: under {consistency} each push is {what}"):
        train(tmp_path / "run", shared(consistency, push_every=4), actors=2, case="dqn")


def test_one_worker_alone_has_nobody_to_push_for(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--topology.push-every is 4: it takes at least --actors 2"):
        train(tmp_path / "run", shared("lock", push_every=4), actors=1, case="dqn")


def test_split_needs_two_nets(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="share nothing"):
        train(tmp_path / "run", shared(split=True), actors=2, net={"hidden": (8,), "shared": True})
    with pytest.raises(BadInput, match="such as a2c"):
        train(tmp_path / "run", shared(split=True), actors=2, case="dqn")


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
