"""Learning from a replay, without a runtime: what is kept, how many gradients fall due, what is drawn, what a pool adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_envs import Picture

from shoal.core.blueprint import named_leaves
from shoal.core.errors import BadInput
from shoal.core.program import Context
from shoal.core.trajectory import as_trajectory
from shoal.core.weights import params_hash
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.gradient_steps import ReplayGradients
from shoal.learning.replay_update import ReplayMemory, ReplayUpdate, check_memory, gradients_a_call, row_record, rows_of
from shoal.learning.soundness import Watch
from shoal.replay import Rings

WATCH = Watch(Context(name="learner", fault=lambda fault: pytest.fail(fault.detail)))

T, B = 6, 3


def make(**settings: Any) -> Any:
    loose = {
        "backend": "jax",
        "actors": 1,
        "envs": B,
        "algo": {
            "name": "dqn",
            "unroll": T,
            "batch_size": 8,
            "capacity": 60,
            "warmup": 0,
            "every": 4,
            "reward_scale": 1,
            "n_step": 1,
            **settings,
        },
        "net": {"hidden": (8,)},
        "runtime": "inline",
        "topology": "sequential",
        "steps": 100 * T * B,
    }
    return make_blueprint(resolve("CartPole-v1", loose), None, None)


def unroll(blueprint: Any, seed: int = 0) -> Any:
    rng, slot = np.random.default_rng(seed), blueprint.record.empty()
    slot["obs"][...] = rng.normal(size=slot["obs"].shape)
    slot["reward"][...] = 1000 * seed + np.arange(T * B).reshape(T, B)  # names each row
    slot["action"][...] = rng.integers(0, 2, (T, B))
    slot["valid"][...], slot["discount"][...] = True, 1.0
    slot["valid"][2, 1] = False
    return as_trajectory(slot)


def run(
    blueprint: Any, rounds: int, update: ReplayUpdate | None = None, start: int = 0
) -> tuple[Any, list[float], Any]:
    """(state, gradients after each round, the update)."""
    update = update or ReplayUpdate(blueprint, WATCH)
    state = blueprint.initial_state()
    actor, counts = blueprint.algorithm.actor_state(state), []
    for version in range(start, start + rounds):
        state, actor, metrics = update(state, actor, [unroll(blueprint, version)], version, version / 100)
        counts.append(metrics["replay/gradients"])
    return state, counts, update


def test_gradients_follow_the_steps_in_calls_of_one_size() -> None:
    """18 steps a round at one gradient for four steps: four a call, and what is left over makes a fifth call in time."""
    blueprint = make()
    assert gradients_a_call(blueprint) == 4
    _, counts, _ = run(blueprint, 9)
    assert counts == [4, 8, 12, 16, 20, 24, 28, 36, 40], "9 x 18 steps earn 40.5"


def test_repeats_multiply_the_gradients_of_a_round() -> None:
    """18 steps a round at three gradients for four steps: 13 a call."""
    blueprint = make(repeats=3)
    assert gradients_a_call(blueprint) == 13
    _, counts, _ = run(blueprint, 3)
    assert counts == [13, 26, 39], "3 x 18 steps earn 40.5"
    memory = ReplayGradients(blueprint, ReplayMemory(blueprint), WATCH)
    state, dues = blueprint.initial_state(), []
    for version in range(3):
        state, due = memory.take(
            state, blueprint.algorithm.actor_state(state), unroll(blueprint, version), version, 0.0
        )
        dues.append(due)
    assert dues == [13, 14, 13]


def test_fewer_steps_than_a_gradient_costs_are_saved_up() -> None:
    blueprint = make(every=40)
    assert gradients_a_call(blueprint) == 1
    _, counts, _ = run(blueprint, 7)
    assert counts == [0, 0, 1, 1, 2, 2, 3]


def test_nothing_is_learnt_before_the_warm_up_and_nothing_is_owed_for_it() -> None:
    blueprint = make(warmup=40, every=18)
    _, counts, update = run(blueprint, 5)
    assert counts == [0, 0, 1, 2, 3], "17 valid rows a round: 51 after the third"
    assert update.memory.size() == 60, "the capacity"


def test_big_rows_make_smaller_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    blueprint = make(every=1)
    size = sum(field.nbytes for field in row_record(blueprint).fields)
    assert gradients_a_call(blueprint) == 18
    monkeypatch.setattr("shoal.learning.replay_update.CALL_BYTES", 5 * 8 * size + 1)
    assert gradients_a_call(blueprint) == 5
    assert run(blueprint, 3)[1] == [15, 35, 50], "15, 30 + 3 left over, ..."


def test_pictures_are_learnt_from_one_gradient_at_a_time() -> None:
    """Convolutions inside a compiled loop are slow on CPU."""
    algo = {"name": "dqn", "unroll": T, "batch_size": 8, "capacity": 60, "warmup": 0, "every": 4}
    loose = {"actors": 1, "envs": B, "algo": algo, "net": {"hidden": (8,), "conv": ("4x4/4",)}, "runtime": "inline"}
    blueprint = make_blueprint(resolve(Picture(), {**loose, "backend": "jax", "topology": "sequential"}), None, None)
    assert gradients_a_call(blueprint) == 1
    update, state, slot = ReplayUpdate(blueprint, WATCH), blueprint.initial_state(), blueprint.record.empty()
    slot["valid"][...] = True
    state, _, metrics = update(state, blueprint.algorithm.actor_state(state), [as_trajectory(slot)], 0, 0.0)
    assert metrics["replay/gradients"] == 4, "18 steps"


def test_rows_that_are_not_valid_are_never_drawn() -> None:
    blueprint = make()
    memory, tr = ReplayMemory(blueprint), unroll(blueprint)
    _, kept = blueprint.algorithm.prepare(blueprint.initial_state(), None, tr, None)
    flat = type(kept.rows)(*(np.asarray(a).reshape(-1, *a.shape[2:]) for a in kept.rows))
    assert memory.insert(flat, np.asarray(kept.valid).reshape(-1)) == 17 == memory.size()
    drawn = memory.sample(200, 0.0, 0).drawn.rows
    assert set(drawn.reward.ravel().tolist()) == set(range(18)) - {2 * B + 1}
    row = {float(r): i for i, r in enumerate(flat.reward) if i != 2 * B + 1}
    picked = np.array([row[r] for r in drawn.reward.ravel().tolist()])
    for name, array in zip(flat._fields, flat, strict=True):
        np.testing.assert_array_equal(getattr(drawn, name).reshape(-1, *array.shape[1:]), array[picked])


@pytest.mark.parametrize("replay", ["uniform", "prioritized"])
def test_half_and_half_is_the_whole(replay: str) -> None:
    """What a snapshot holds is all that the next rounds need, besides the state."""
    blueprint = make(replay=replay, warmup=20)
    whole, _, _ = run(blueprint, 8)
    half, _, before = run(blueprint, 4)
    saved = {"replay": {name: a.copy() for name, a in before.snapshots()["replay"].arrays.items()}}
    fields = {name: getattr(blueprint, name) for name in blueprint.__dataclass_fields__}
    again = type(blueprint)(**{**fields, "snapshots": saved})
    update = ReplayUpdate(again, WATCH)
    state, actor = half, blueprint.algorithm.actor_state(half)
    for version in range(4, 8):
        state, actor, _ = update(state, actor, [unroll(blueprint, version)], version, version / 100)
    assert params_hash(state.params) == params_hash(whole.params) != params_hash(half.params)


def test_errors_become_priorities() -> None:
    blueprint = make(replay="prioritized", alpha=1.0)
    _, _, update = run(blueprint, 1)
    memory = update.memory
    batch = memory.sample(50, 0.0, 7)
    memory.feedback(batch.indices, np.where(batch.drawn.rows.reward == 3.0, 10.0, 1e-3))
    after = memory.sample(50, 0.0, 8).drawn.rows.reward
    assert (after == 3.0).mean() > 0.9 > (batch.drawn.rows.reward == 3.0).mean()


def test_weights_even_out_with_the_budget() -> None:
    blueprint = make(replay="prioritized", beta=0.0)
    _, _, update = run(blueprint, 1)
    first, last = (update.memory.sample(20, progress, 1).drawn.weight for progress in (0.0, 1.0))
    assert (first == 1).all() and last.min() < 0.9


@pytest.mark.parametrize(("replay", "replacement"), [("uniform", True), ("uniform", False), ("prioritized", True)])
def test_smaller_minibatches_are_drawn_from_all_rows(replay: str, replacement: bool) -> None:
    _, _, update = run(make(replay=replay, replacement=replacement, alpha=0.0), 4)
    memory = update.memory
    batch = memory.sample(300, 0.0, 7, batch=2)
    assert batch.indices.shape == batch.drawn.weight.shape == (300, 2)
    assert set(batch.indices.ravel().tolist()) == set(range(memory.size()))


class TestPool:
    """Two workers that remember together."""

    @pytest.fixture
    def workers(self) -> Any:
        blueprint = make(replay="prioritized")
        pool = Rings.over(Rings.record(row_record(blueprint), 2, 30).empty())
        return blueprint, pool, [ReplayMemory(blueprint, pool=pool, worker=i) for i in range(2)]

    def rows(self, blueprint: Any, start: int, count: int) -> tuple[Any, np.ndarray]:
        tr = unroll(blueprint)
        _, kept = blueprint.algorithm.prepare(blueprint.initial_state(), None, tr, None)
        arrays = {f: np.zeros((count, *np.shape(a)[2:]), a.dtype) for f, a in kept.rows._asdict().items()}
        arrays["reward"][...] = np.arange(start, start + count)
        return type(kept.rows)(**arrays), np.ones(count, bool)

    def test_each_writes_its_own_and_draws_from_all(self, workers: Any) -> None:
        blueprint, _, (one, other) = workers
        one.insert(*self.rows(blueprint, 0, 10))
        assert not set(other.sample(50, 0.0, 0).drawn.rows.reward.ravel()) - set(range(10))
        other.insert(*self.rows(blueprint, 100, 20))
        for memory in (one, other):
            assert memory.size() == 30
            drawn = memory.sample(100, 0.0, 1).drawn.rows.reward
            assert set(drawn.ravel().tolist()) == {*range(10), *range(100, 120)}

    def test_workers_draw_differently_and_their_priorities_are_their_own(self, workers: Any) -> None:
        blueprint, _, (one, other) = workers
        one.insert(*self.rows(blueprint, 0, 30))
        a, b = one.sample(20, 0.0, 0), other.sample(20, 0.0, 0)
        assert a.indices.tobytes() != b.indices.tobytes()
        one.feedback(a.indices, np.where(a.drawn.rows.reward == 5, 100.0, 1e-4))
        assert (one.sample(20, 0.0, 1).drawn.rows.reward == 5).mean() > 0.5
        assert (other.sample(20, 0.0, 1).drawn.rows.reward == 5).mean() < 0.2

    def test_rows_that_are_overwritten_while_they_are_read_are_replaced(self, workers: Any) -> None:
        blueprint, pool, (one, other) = workers
        one.insert(*self.rows(blueprint, 0, 30))
        read = pool.read

        def meanwhile(indices: np.ndarray, counts: np.ndarray) -> Any:
            one.insert(*self.rows(blueprint, 1000, 10))
            return read(indices, counts)

        pool.read = meanwhile
        drawn = other.sample(20, 0.0, 0)
        assert drawn.drawn.rows.reward.shape == (20, 8)
        assert set(drawn.drawn.rows.reward.ravel().tolist()) == set(range(10, 30))
        assert (drawn.indices == drawn.drawn.rows.reward).all(), "the indices name what was handed out"

    def test_its_rows_are_not_part_of_a_workers_snapshot(self, workers: Any) -> None:
        blueprint, _, (one, _) = workers
        one.insert(*self.rows(blueprint, 0, 30))
        one.sample(1, 0.0, 0)
        assert not any(name.startswith("rows/") for name in one.snapshot())


def test_another_runs_weights_bring_their_target_along() -> None:
    blueprint = make(target_every=3)
    state, _, _ = run(blueprint, 2)
    loose = {"backend": "jax", "actors": 1, "envs": B, "algo": {"name": "dqn", "unroll": T}, "net": {"hidden": (8,)}}
    begun = make_blueprint(resolve("CartPole-v1", loose), None, named_leaves(state)).initial_state()
    assert params_hash(begun.params) == params_hash(state.params)
    assert params_hash(begun.extra) == params_hash(state.extra) != params_hash(blueprint.initial_state().params)
    assert int(begun.step) == int(state.step) > 0, "it counts as trained"


def test_a_replay_that_does_not_fit_is_refused_with_both_numbers() -> None:
    blueprint = make(capacity=2**20)
    size = 2**20 * sum(field.nbytes for field in row_record(blueprint).fields)
    check_memory(blueprint, size)
    with pytest.raises(BadInput, match=r"--algo.capacity is 1048576: .* would take 0.0 GiB, and 0.0 GiB are free"):
        check_memory(blueprint, size - 1)
    with pytest.raises(BadInput, match=r"--algo.capacity is 1000000000000: rows .* GiB are free"):
        make(capacity=10**12)


def test_a_replay_beyond_the_limit_is_not_part_of_checkpoints() -> None:
    size = sum(field.nbytes for field in row_record(make()).fields) * 60 / 2**30
    for limit, saved in ((1.01 * size, True), (0.99 * size, False)):
        _, _, update = run(make(save_limit=limit), 1)
        assert ("replay" in update.snapshots()) == saved


def test_workers_with_a_memory_each_share_out_what_is_kept_and_what_is_waited_for() -> None:
    blueprint = make(warmup=30)
    alone, one = ReplayMemory(blueprint), ReplayMemory(blueprint, workers=2)
    rows = row_record(blueprint)
    drawn = type(rows_of(blueprint))(**{f.name: np.zeros((20, *f.shape), f.dtype) for f in rows.fields})
    for memory in (alone, one):
        memory.insert(drawn, np.ones(20, bool))
    assert not alone.ready() and one.ready()
    for _ in range(5):
        alone.insert(drawn, np.ones(20, bool))
        one.insert(drawn, np.ones(20, bool))
    assert alone.size() == 60 and one.size() == 30
