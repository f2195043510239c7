"""Loops without a runtime: episodes out of unrolls, lanes side by side, evaluation by seed, restored leaves."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from shoal.acting.collector import Collector
from shoal.acting.episodes import EpisodeTracker
from shoal.acting.player import Broke, Ended, play
from shoal.core.blueprint import named_leaves, restore_leaves
from shoal.core.program import Context
from shoal.core.trajectory import Trajectory, as_trajectory
from shoal.experiment import resolve
from shoal.launch.compose import make_algorithm, make_blueprint
from shoal.learning.compiled_update import side_by_side
from shoal.roles.learner import Trainer

T, B = 6, 2


@pytest.fixture(scope="module")
def blueprint() -> Any:
    settings = {
        "backend": "jax",
        "actors": 1,
        "envs": B,
        "algo": {"name": "a2c", "unroll": T},
        "net": {"hidden": (8,), "cell": "gru", "cell_size": 4},
        "runtime": "inline",
        "topology": "sequential",
        "steps": 10 * T * B,
    }
    return make_blueprint(resolve("CartPole-v1", settings), None, None)


def rows(**arrays: list[list[float]]) -> dict[str, np.ndarray]:
    kinds = {"reward": np.float32}
    return {name: np.array(a, kinds.get(name, bool)) for name, a in arrays.items()}


def test_episodes_are_summed_across_unrolls() -> None:
    tracker = EpisodeTracker(1)
    first = rows(reward=[[1], [2]], boundary=[[0], [0]], valid=[[1], [1]], first=[[1], [0], [0]])
    second = rows(reward=[[4], [99], [8]], boundary=[[1], [0], [1]], valid=[[1], [0], [1]], first=[[0], [0], [1], [0]])
    assert list(tracker.take(**first)) == []
    found = list(tracker.take(**second))
    assert [(e.ret, e.length) for e in found] == [(7.0, 3), (8.0, 1)], "the autoreset row's reward is nobody's"


def test_a_dropped_episode_is_not_counted() -> None:
    lost = rows(reward=[[1], [0], [5]], boundary=[[0], [1], [1]], valid=[[0], [0], [1]], first=[[1], [0], [1], [0]])
    assert [(e.ret, e.length) for e in EpisodeTracker(1).take(**lost)] == [(5.0, 1)]


def test_a_tracker_goes_on_where_its_snapshot_was_taken() -> None:
    half = rows(reward=[[1, 2]], boundary=[[0, 0]], valid=[[1, 1]], first=[[1, 1], [0, 0]])
    end = rows(reward=[[1, 2]], boundary=[[1, 1]], valid=[[1, 1]], first=[[0, 0], [0, 0]])
    one, other = EpisodeTracker(2), EpisodeTracker(2)
    assert not list(one.take(**half))
    other.restore(one.snapshot())
    assert [e.ret for e in other.take(**end)] == [e.ret for e in one.take(**end)] == [2.0, 4.0]


def test_lanes_stand_side_by_side_in_their_order() -> None:
    def lane(value: int) -> Trajectory:
        grid, tall = np.full((T, B), value), np.full((T + 1, B), value)
        return Trajectory(tall, grid, grid, grid, grid, grid, tall, {"x": grid}, {"h": np.full((B, 3), value)}, grid)

    whole = side_by_side([lane(1), lane(2), lane(3)])
    assert (
        whole.obs.shape == (T + 1, 3 * B)
        and whole.extras["x"].shape == (T, 3 * B)
        and whole.carry["h"].shape == (3 * B, 3)
    )
    for array in (whole.action[0], whole.carry["h"][:, 0], whole.obs[-1]):
        np.testing.assert_array_equal(array, np.repeat([1, 2, 3], B))


def test_a_collector_goes_on_where_its_snapshot_was_taken(blueprint: Any) -> None:
    context = Context(name="actor-0", fault=lambda fault: pytest.fail(fault.detail))
    actor = blueprint.algorithm.actor_state(blueprint.initial_state())
    one, other, slot, again = (
        Collector(blueprint, 0, context),
        Collector(blueprint, 0, context),
        *(blueprint.record.empty() for _ in "ab"),
    )
    one.collect(actor, 0, 0, slot)
    assert slot["first"][0].all() and slot["valid"].all() and not slot["carry/h"].any()
    other.restore(one.snapshot())
    one.collect(actor, 1, 1, slot)
    other.collect(actor, 1, 1, again)
    assert slot["carry/h"].any() and (slot["version"] == 1).all() and not slot["first"][0].any()
    for name in slot:
        if name != "clock":
            np.testing.assert_array_equal(slot[name], again[name], err_msg=name)


def test_unrolls_join_without_a_gap(blueprint: Any) -> None:
    context = Context(name="actor-0", fault=lambda fault: pytest.fail(fault.detail))
    actor = blueprint.algorithm.actor_state(blueprint.initial_state())
    collector, slot, following = Collector(blueprint, 0, context), blueprint.record.empty(), blueprint.record.empty()
    collector.collect(actor, 0, 0, slot)
    collector.collect(actor, 0, 1, following)
    np.testing.assert_array_equal(slot["obs"][-1], following["obs"][0])
    np.testing.assert_array_equal(slot["first"][-1], following["first"][0])


def test_a_report_says_what_was_learnt_and_measures_the_lag(blueprint: Any) -> None:
    trainer = Trainer(blueprint, Context(name="learner", fault=lambda fault: pytest.fail(fault.detail)))
    before = named_leaves(trainer.state.params)
    slot = blueprint.record.empty()
    slot["valid"][...], slot["discount"][...], slot["reward"][...] = True, 1.0, 1.0
    slot["boundary"][2, 0], slot["discount"][2, 0] = True, 0.0
    slot["version"][...] = -2
    slot["obs"][...] = np.random.default_rng(0).normal(size=slot["obs"].shape)
    report = trainer.learn([slot], trainer.actor, 0.5)
    assert (report.version, report.env_steps) == (1, T * B)
    assert [(e.ret, e.length) for e in report.episodes] == [(3.0, 3)]
    assert report.metrics["lag/versions"] == report.metrics["lag/max"] == 2 and report.metrics["time/wait"] == 0.5
    assert any(not np.array_equal(a, before[n]) for n, a in named_leaves(report.state.params).items())
    assert as_trajectory(slot).reward.base is not None


def test_leaves_are_restored_by_name() -> None:
    tree = {"a": np.zeros(2, np.float32), "b": {"c": np.zeros((), np.int32)}}
    leaves = {"b/c": np.array(5, np.int32), "a": np.array([1, 2], np.float32), "unused": np.zeros(9)}
    restored = restore_leaves(tree, leaves)
    assert named_leaves(restored).keys() == {"a", "b/c"} and restored["b"]["c"] == 5
    np.testing.assert_array_equal(restored["a"], [1, 2])
    with pytest.raises(ValueError, match=r"'a' should have shape \(2,\), not \(3,\)"):
        restore_leaves(tree, {**leaves, "a": np.zeros(3)})
    with pytest.raises(ValueError, match="'b/c' should have shape"):
        restore_leaves(tree, {"a": np.zeros(2)})


class Counting:
    """An environment for evaluation whose return is its seed, and whose length depends on it."""

    def reset(self, seed: int) -> np.ndarray:
        self._left, self._pay = 1 + seed % 5, float(seed % 1000)
        return np.zeros(4, np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        self._left -= 1
        return np.zeros(4, np.float32), self._pay if self._left == 0 else 0.0, self._left == 0, False

    def close(self) -> None:
        return None


def test_episode_i_belongs_to_seed_i_whoever_plays_it() -> None:
    plan = resolve("CartPole-v1", {"backend": "jax", "actors": 1, "envs": 1, "net": {"hidden": (4,)}})
    algorithm = make_algorithm(plan)
    actor = algorithm.actor_state(jax.jit(algorithm.init)(jax.random.key(0)))

    def played(episodes: int, seed: int) -> list[Any]:
        todo = [(i, 0) for i in range(episodes)]
        return sorted(play(algorithm, actor, Counting, todo, min(16, episodes), seed=seed))

    many, few = played(40, seed=3), played(16, seed=3)
    assert many[:16] == few and [ended.episode for ended in many] == list(range(40))
    assert len({ended.ret for ended in many}) > 30
    assert [e.ret for e in played(5, seed=4)] != [e.ret for e in few[:5]]


class Fragile(Counting):
    """Its third life raises, its fourth shows what is not a number; each is known by the seeds that it was given."""

    lives: ClassVar[list[list[int]]] = []

    def __init__(self) -> None:
        self._life = len(self.lives)
        self.lives.append([])

    def reset(self, seed: int) -> np.ndarray:
        self.lives[self._life].append(seed)
        return super().reset(seed)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        obs, reward, terminated, truncated = super().step(action)
        if self._life == 2:
            raise RuntimeError("lost")
        return obs, float("nan") if self._life == 3 else reward, terminated, truncated


def test_a_broken_episode_begins_again_elsewhere_and_the_others_stay_as_they_are() -> None:
    plan = resolve("CartPole-v1", {"backend": "jax", "actors": 1, "envs": 1, "net": {"hidden": (4,)}})
    algorithm = make_algorithm(plan)
    actor = algorithm.actor_state(jax.jit(algorithm.init)(jax.random.key(0)))
    todo = [(i, 0) for i in range(12)]
    whole = sorted(play(algorithm, actor, Counting, todo, 4))
    marks: list[int] = []
    events = list(play(algorithm, actor, Fragile, todo, 4, mark=marks.append))
    faults = [event for event in events if isinstance(event, Broke)]
    ended = sorted(event for event in events if isinstance(event, Ended))
    assert sorted((f.episode, f.kind) for f in faults) == [(2, "env_raised"), (3, "env_nan")]
    assert "RuntimeError: lost" in next(f.detail for f in faults if f.kind == "env_raised")
    assert [e.episode for e in ended] == list(range(12))
    assert [e for e in ended if e.episode not in (2, 3)] == [e for e in whole if e.episode not in (2, 3)]
    seeds = [seed for life in Fragile.lives for seed in life]
    assert len(seeds) == len(set(seeds)) == 14, "an attempt has a start of its own"
    assert marks[::2] and set(marks[1::2]) == {-1} and set(marks[::2]) == set(range(12))
