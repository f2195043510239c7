"""Actors and learners apart: lockstep is `sequential`, learners hold the same bits, and every unroll is accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.tree import leaves

import shoal
from shoal.core.errors import BadInput
from shoal.core.program import Fault, Report, StreamSpec
from shoal.core.weights import from_words, params_hash, to_vector, to_words
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.intake import BatchSource, Intake
from shoal.roles.joint_learner import LAGS
from shoal.runtimes import RUNTIMES
from shoal.runtimes.memory import Place, Silent, plain_ports, private_arena
from shoal.topologies.actor_learner import assigned

T, B = 8, 4
PPO = {"name": "ppo", "unroll": T, "batch_size": 16, "epochs": 2}
A2C = {"name": "a2c", "unroll": T}


@contextmanager
def running(
    topology: Any, runtime: str = "inline", algo: Any = A2C, actors: int = 2, learners: int = 1, **more: Any
) -> Iterator[Any]:
    """A session of the program, without a run folder."""
    settings = {
        "backend": "jax",
        "algo": algo,
        "net": {"hidden": (8,)},
        "topology": topology,
        "runtime": runtime,
        "actors": actors,
        "learners": learners,
        "envs": B,
        "steps": 100 * T * B * actors,
        **more,
    }
    plan = resolve("CartPole-v1", settings)
    program = plan.topology_class(plan.topology).program(make_blueprint(plan, None, None))
    session = RUNTIMES[runtime](plan.runtime).start(program, lambda: False)
    try:
        yield session
    finally:
        session.close()


def reports(session: Any, updates: int) -> list[Report]:
    found: list[Report] = []
    for event in session:
        assert not isinstance(event, Fault), event.detail
        found.append(event)
        if len(found) == updates:
            break
    return found


def after(updates: int, topology: Any, runtime: str = "inline", **settings: Any) -> list[Report]:
    with running(topology, runtime, **settings) as session:
        return reports(session, updates)


def apart(**fields: Any) -> dict[str, Any]:
    return {"name": "actor_learner", **fields}


def hash_of(report: Report) -> str:
    return params_hash(report.state.params)


NORMALISED = {"normalise_obs": True, "normalise_reward": True}
CASES = [
    ("inline", A2C, 1),
    ("inline", {**A2C, "returns": "vtrace", **NORMALISED}, 2),
    ("inline", {**PPO, **NORMALISED}, 1),
    ("threads", PPO, 2),
]


@pytest.mark.parametrize(("runtime", "algo", "actors"), CASES)
def test_in_lockstep_it_is_sequential(runtime: str, algo: Any, actors: int) -> None:
    apart_ = after(5, apart(max_lag=0), runtime, algo=algo, actors=actors)
    together = after(5, "sequential", algo=algo, actors=actors)
    assert [hash_of(r) for r in apart_] == [hash_of(r) for r in together]
    assert all(r.lags == {0: T * B * actors} and r.metrics["lag/max"] == 0 for r in apart_)
    assert [r.env_steps for r in apart_] == [r.env_steps for r in together]


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_actors_send_what_their_episodes_have_earned(runtime: str) -> None:
    """CartPole pays 1 a step, and no episode ends within the two unrolls that are learnt from each actor."""
    algo = {**A2C, **NORMALISED, "unroll": 4, "gamma": 0.5, "reward_scale": 1.0}
    last = after(6, apart(batch_unrolls=1), runtime, algo=algo, actors=3)[-1]
    moments = last.state.reward.moments
    assert moments.count > 0 and moments.mean > 1.6, "returns that began with 0 in every unroll have a mean of 1.53"


def test_several_learners_hold_the_same_bits() -> None:
    """Whoever reports has met the others after the update: all are at the same version then."""
    with running(apart(), algo={**PPO, **NORMALISED, "target_kl": 0.001}, actors=4, learners=2) as session:
        events = iter(session)
        last = reports(events, 6)[-1]
        mine, other = (session._roles[f"learner-{i}"] for i in range(2))
        assert mine.version == other.version == last.version == 6
        assert params_hash(other.state.params) == hash_of(last)
        for ours, theirs in ((mine.state.moments, other.state.moments), (mine.state.obs, other.state.obs)):
            np.testing.assert_array_equal(*(np.concatenate([np.ravel(x) for x in leaves(t)]) for t in (ours, theirs)))
        assert hash_of(reports(events, 1)[0]) != hash_of(last)
        assert mine._intake._stream is not other._intake._stream, "each has learnt from actors of its own"


@pytest.mark.parametrize("runtime", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("average_every", [0, 1])
def test_several_learners_in_lockstep_compute_the_same_on_every_runtime(runtime: str, average_every: int) -> None:
    topology = apart(max_lag=0, average_every=average_every)
    settings: dict[str, Any] = {"algo": {**PPO, **NORMALISED}, "actors": 2, "learners": 2}
    reference = [hash_of(r) for r in after(4, topology, **settings)]
    assert [hash_of(r) for r in after(4, topology, runtime, **settings)] == reference
    assert len(set(reference)) == 4


def test_two_learners_with_half_of_the_batch_each_make_the_step_of_one_with_all_of_it() -> None:
    algo = {**A2C, "max_grad_norm": 1e6, "unroll": 4}  # no episode ends within four steps: all rows count
    one = after(1, apart(max_lag=0), algo=algo, actors=2)[0]
    two = after(1, apart(max_lag=0), algo=algo, actors=2, learners=2)[0]
    start = after(1, apart(max_lag=0), algo={**algo, "learning_rate": 1e-30}, actors=2)[0]
    moved = np.abs(to_vector(one.state.params) - to_vector(start.state.params)).max()
    apart_by = np.abs(to_vector(one.state.params) - to_vector(two.state.params)).max()
    assert apart_by < 1e-3 * moved, (apart_by, moved)


def test_the_common_step_can_be_stretched() -> None:
    algo = {**A2C, "max_grad_norm": 1e6}
    settings: dict[str, Any] = {"algo": algo, "actors": 2, "learners": 2}
    still = after(1, apart(max_lag=0), **{**settings, "algo": {**algo, "learning_rate": 1e-30}})[0]
    plain = after(1, apart(max_lag=0), **settings)[0]
    wide = after(1, apart(max_lag=0, learning_rate_scale=2.0), **settings)[0]
    zero, one, two = (to_vector(r.state.params) for r in (still, plain, wide))
    np.testing.assert_allclose(two - zero, 2 * (one - zero), atol=1e-7)


def test_statistics_are_those_of_all_learners_batches() -> None:
    algo = {**A2C, **NORMALISED}
    one, two = (after(3, apart(max_lag=0), algo=algo, actors=2, learners=n)[0].state for n in (1, 2))
    assert two.obs.count == one.obs.count > 0
    np.testing.assert_allclose(two.obs.mean, one.obs.mean, atol=1e-5)
    np.testing.assert_allclose(two.obs.m2, one.obs.m2, rtol=1e-4)
    np.testing.assert_allclose(two.reward.moments.m2, one.reward.moments.m2, rtol=1e-3)


def test_weight_averaging_differs_from_gradients_and_learners_agree_afterwards() -> None:
    with running(apart(average_every=2), algo=PPO, actors=2, learners=2) as session:
        events = iter(session)
        for update in range(1, 5):
            last, other = reports(events, 1)[0], session._roles["learner-1"]
            assert other.version == last.version == update
            assert (params_hash(other.state.params) == hash_of(last)) == (update % 2 == 0)
    assert hash_of(last) != hash_of(after(4, apart(), algo=PPO, actors=2, learners=2)[-1])


@pytest.mark.parametrize(("spread", "sizes"), [(True, [2, 2, 2, 1]), (False, [4, 1, 1, 1])])
def test_actors_are_shared_out_in_ranges(spread: bool, sizes: list[int]) -> None:
    """Of queues the first learners take one more each; of windows the first takes the remainder."""
    found = assigned(7, 4, spread)
    assert [len(own) for own in found] == sizes and [a for own in found for a in own] == list(range(7))
    assert assigned(4, 4, spread) == [range(i, i + 1) for i in range(4)]
    assert assigned(5, 1, spread) == [range(5)]


@pytest.mark.parametrize("stream", ["queue", "stack"])
def test_a_learner_whose_actors_have_ended_helps_the_others(stream: str) -> None:
    """Actors 0 and 1 belong to learner 0, actor 2 to learner 1; each makes six unrolls."""
    found = after(99, apart(actor_unrolls=6, stream=stream), actors=3, learners=2)
    assert len(found) == 9, "18 unrolls, two an update, and then nothing is left"
    assert found[-1].metrics["queue/helped"] == 3
    assert found[-1].env_steps == 18 * T * B and found[-1].metrics["lag/dropped"] == 0


def whole_run(folder: Path, topology: Any, **more: Any) -> shoal.Run:
    own = {"algo": A2C, "topology": topology, "actors": 2, "envs": B, "net": {"hidden": (8,)}, **more}
    return shoal.train(
        "CartPole-v1", runtime="inline", backend="jax", report=False, quiet=True, out=folder / "run", **own
    )


@pytest.mark.parametrize("learners", [1, 2])
def test_the_budget_is_of_steps_also_where_most_of_them_are_lost(tmp_path: Path, learners: int) -> None:
    """Four actors fill windows, of which each learner reads one an update."""
    budget, more = 40 * T * B, {"actors": 4, "learners": learners, "eval_episodes": 0}
    run = whole_run(tmp_path, apart(stream="window", batch_unrolls=1), steps=budget, **more)
    assert not run.summary["stopped"] and run.summary["updates"] < 40 // learners
    assert budget <= run.summary["env_steps"] <= budget + 8 * T * B


@pytest.mark.parametrize(
    ("topology", "actors", "learners", "lost"),
    [
        ({"stream": "window", "batch_unrolls": 1}, 4, 2, "window/lost"),
        ({"full": "refuses", "batch_unrolls": 1}, 4, 2, "queue/refused"),
        ({"depth": 4, "max_lag": 1}, 2, 1, "lag/dropped"),
    ],
)
def test_steps_of_lost_unrolls_are_not_counted_as_learnt(
    tmp_path: Path, topology: Any, actors: int, learners: int, lost: str
) -> None:
    reports: list[Report] = []
    more = {"actors": actors, "learners": learners, "steps": 80 * T * B, "eval_episodes": 0}
    summary = whole_run(tmp_path, apart(**topology), callbacks=[reports.append], **more).summary
    rows = sum(summary["lags"].values())
    assert reports[-1].metrics[lost] > 0 and 0 < rows < summary["env_steps"]
    assert rows - summary["episodes"] <= summary["learnt_steps"] <= rows
    assert summary["steps_per_s"] == pytest.approx(summary["learnt_steps"] / summary["wall_s"])


def test_steps_that_are_read_again_are_counted_once(tmp_path: Path) -> None:
    topology = apart(stream="window", reread=True, batch_unrolls=1)
    summary = whole_run(tmp_path, topology, steps=40 * T * B, eval_episodes=0).summary
    assert sum(summary["lags"].values()) > summary["env_steps"], "inline, the learner never waits for the actors"
    assert summary["learnt_steps"] == summary["env_steps"] - summary["episodes"] > 0


def test_a_run_whose_actors_have_ended_is_a_whole_run(tmp_path: Path) -> None:
    run = whole_run(tmp_path, apart(actor_unrolls=6), eval_episodes=2)
    assert not run.summary["stopped"] and run.summary["env_steps"] == 12 * T * B and run.summary["eval_episodes"] == 2


def test_unrolls_that_are_too_old_are_dropped_and_counted() -> None:
    kept = after(12, apart(depth=4))
    found = after(12, apart(depth=4, max_lag=1))
    assert max(r.metrics["lag/max"] for r in kept) > 1 == max(r.metrics["lag/max"] for r in found)
    dropped = found[-1].metrics["lag/dropped"]
    assert dropped > 0 and found[-1].env_steps == (12 * 2 + dropped) * T * B
    assert kept[-1].metrics["lag/dropped"] == 0


def test_what_is_too_old_on_a_stack_leaves_the_newer_alone() -> None:
    """The newest is taken first and held, then what lies below it is dropped: the batch must not be overwritten."""
    plan = resolve(
        "CartPole-v1",
        {"backend": "jax", "algo": A2C, "topology": apart(batch_unrolls=3), "actors": 1, "envs": B},
    )
    blueprint = make_blueprint(plan, None, None)
    record = StreamSpec(producers=("a",), consumer="l", others=("l",), depth=4, record=blueprint.record, order="stack")
    place = Place(None, {"a": Silent(), "l": Silent()})
    port: Any = plain_ports({"unrolls": record}, private_arena({"unrolls": record}), place)["unrolls"]
    intake = Intake(blueprint, 0, BatchSource(port="unrolls", lanes=(0,), shared=True, max_lag=1), {"unrolls": port})
    for version in (5, 0, 6):
        slot = port.claim(0).now()
        slot["version"][...] = version
        port.push(0)
    steps = intake.batch(6)
    asked = next(steps)
    while (got := asked.now()) is not None:  # until nothing is left: two of three are new enough
        asked = steps.send(got)
    assert [int(slot["version"].min()) for _, slot in intake._held] == [6, 5]
    assert intake._held[0][1] is not intake._held[1][1] and intake.dropped == 1


def test_an_artificial_delay_is_measured() -> None:
    found = after(12, apart(delay=5))
    assert found[-1].metrics["lag/versions"] >= 5
    assert all(set(r.lags) <= set(range(8)) for r in found)


def test_a_long_lag_of_several_learners_is_exact() -> None:
    """Only the histogram ends with a bin for all longer ones."""
    found = after(80, apart(delay=70), learners=2)[-1]
    assert found.metrics["lag/max"] >= found.metrics["lag/versions"] >= 70
    assert set(found.lags) == {LAGS - 1} and sum(found.lags.values()) == 2 * T * B


def test_a_full_queue_may_refuse() -> None:
    """Four unrolls a batch from one actor whose queue holds one: the learner is slower than the actor."""
    found = after(4, apart(full="refuses", batch_unrolls=2), "threads", actors=1)
    steps = [r.env_steps for r in found]
    assert steps == sorted(steps) and all(r.metrics["queue/refused"] >= 0 for r in found)
    lost = found[-1].metrics["queue/refused"]
    assert found[-1].env_steps >= (4 * 2 + lost) * T * B


def test_a_window_holds_the_newest_and_learners_that_choose_at_random_collide() -> None:
    settings: dict[str, Any] = {"actors": 4, "learners": 2}
    found = {
        selection: after(20, apart(stream="window", selection=selection), **settings)[-1].metrics
        for selection in ("assigned", "random")
    }
    assert found["assigned"]["window/collisions"] == 0 < found["random"]["window/collisions"]
    assert found["random"]["window/reads"] >= 80


def test_a_joint_step_has_no_lag_and_everybody_waits_for_it() -> None:
    found = after(6, apart(workflow="joint"), "threads", actors=4, learners=2)
    assert all(r.lags == {0: 4 * T * B} for r in found)


def test_episodes_and_steps_of_all_actors_are_reported_once() -> None:
    found = after(30, apart(), actors=3, learners=3, algo=A2C)
    ended = [episode for r in found for episode in r.episodes]
    assert 0.5 * found[-1].env_steps < sum(e.length for e in ended) <= found[-1].env_steps + 9 * T * B
    assert all(e.ret == e.length for e in ended)


def test_a_state_travels_bit_for_bit() -> None:
    state = after(1, apart(), algo={**PPO, **NORMALISED})[0].state
    again = from_words(to_words(state), state)
    assert to_words(again).tobytes() == to_words(state).tobytes() and params_hash(again.params) == params_hash(
        state.params
    )
    assert again.step.dtype == np.int32 and int(again.step) == int(state.step) > 0


@pytest.mark.parametrize(
    ("topology", "settings", "message"),
    [
        ({}, {"actors": 2, "learners": 3}, r"--learners is 3: there must be an actor for each, and --actors is 2"),
        ({"depth": 0}, {}, r"--topology.depth is 0: expected a whole number >= 1"),
        ({"stream": "window", "depth": 4}, {}, r"--topology.depth is 4: a window holds one unroll"),
        ({"max_lag": 0, "batch_unrolls": 1}, {}, r"--topology.max-lag is 0: all 2 actors wait"),
        ({"max_lag": 0, "stream": "window"}, {}, r"--topology.max-lag is 0: no unroll may be lost"),
        ({"max_lag": 2, "delay": 3}, {}, r"every unroll would be dropped, since --topology.delay is 3"),
        ({"stream": "window", "full": "refuses"}, {}, r"a window is never full"),
        ({"reread": True}, {}, r"--topology.reread is for --topology.stream window"),
        ({"average_every": 2, "learning_rate_scale": 2.0}, {"learners": 2}, r"--topology.learning-rate-scale is 2.0"),
        ({"average_every": 2}, {}, r"--topology.average-every is 2: it needs at least --learners 2"),
        ({"learning_rate_scale": 2.0}, {}, r"--topology.learning-rate-scale is 2.0: it needs at least --learners 2"),
        ({}, {"algo": "dqn", "learners": 2}, r"learns from a replay has one learner here"),
        ({"selection": "any"}, {}, r"--topology.selection is 'any': expected one of assigned, random"),
        (
            {"max_lag": 0},
            {"actors": 5, "learners": 2},
            r"takes 2 x 2 unrolls; --actors must be a multiple of --learners",
        ),
        (
            {"max_lag": 0, "selection": "random"},
            {"learners": 2},
            r"several learners it needs --topology.selection assigned",
        ),
        ({"max_lag": 0, "average_every": 2}, {"learners": 2}, r"only learner 0 has the weights that acted"),
        ({"workflow": "joint", "selection": "random"}, {"learners": 2}, r"--topology.workflow is 'joint'"),
        ({"workflow": "joint", "stream": "window"}, {}, r"--topology.workflow is 'joint'"),
        ({"stream": "window", "reread": True, "actor_unrolls": 9}, {}, r"a window that is read again never ends"),
        ({"actor_unrolls": 1, "batch_unrolls": 3}, {}, r"2 actors end before there are the 3 unrolls of one update"),
    ],
)
def test_bad_input_is_one_clear_line(topology: Any, settings: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused, running(apart(**topology), **settings):
        pass
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_the_last_words_of_an_actor_are_heard_though_there_is_no_room_for_them(runtime: str, learners: int) -> None:
    """Windows never make an actor wait: it has ended long before its many unrolls are told."""
    unrolls, actors = 40, 2
    topology = apart(stream="window", actor_unrolls=unrolls, batch_unrolls=1)
    found = after(10**6, topology, runtime, actors=actors, learners=learners, steps=10**6)
    assert found[-1].env_steps == unrolls * actors * T * B, "each step that was made"
    lengths = sum(episode.length for report in found for episode in report.episodes)
    assert lengths > 0.7 * found[-1].env_steps, "and each episode that ended"
