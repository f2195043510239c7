"""Sequences as rows of a replay: how they are cut, and what acting and learning take from them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from recurrent_algos import WIDTH, B, T, begin, drawn, make, trajectory

from shoal.algos import sequences
from shoal.core.errors import BadInput
from shoal.core.trajectory import Sequences
from shoal.learning.compiled_update import apply


class TestCutting:
    @pytest.mark.parametrize(
        ("unroll", "length", "burn_in", "expected"),
        [
            (8, 8, 2, (0,)),
            (8, 4, 0, (0, 4)),
            (8, 4, 2, (0, 2, 4)),
            (8, 5, 1, (0, 3)),
            (9, 4, 1, (0, 3, 5)),
            (1, 1, 0, (0,)),
        ],
    )
    def test_sequences_overlap_by_the_burn_in_and_cover_the_unroll(
        self, unroll: int, length: int, burn_in: int, expected: tuple[int, ...]
    ) -> None:
        assert sequences.starts(unroll, length, burn_in) == expected
        learnt = {start + t for start in expected for t in range(burn_in, length)}
        assert learnt == set(range(burn_in, unroll))

    @pytest.mark.parametrize(("length", "burn_in", "n"), [(8, 2, 1), (5, 2, 3)])
    def test_a_sequence_is_a_slice_of_the_unroll_with_the_memory_that_acted(
        self, length: int, burn_in: int, n: int
    ) -> None:
        algorithm = make("dqn", sequence=length, burn_in=burn_in, n_step=n, reward_scale=2.0)
        tr = trajectory(algorithm)
        state = jax.jit(algorithm.init)(jax.random.key(0))
        rows, valid = jax.jit(algorithm.prepare)(state, None, tr, jax.random.key(0))[1]
        assert rows.obs.shape == (len(algorithm.starts), B, length + 1, WIDTH) and np.all(valid)
        for k, start in enumerate(algorithm.starts):
            for b in range(B):
                row = Sequences(*(np.asarray(x)[k, b] for x in rows))
                np.testing.assert_allclose(row.obs, tr.obs[start : start + length + 1, b], rtol=1e-6)
                before = tr.extras[sequences.MEMORY][start, b]
                if len(algorithm.starts) == 1:
                    before = np.concatenate([tr.carry["c"][b], tr.carry["h"][b]])
                np.testing.assert_allclose(row.memory, before, rtol=1e-6)
                begun = False
                for t in range(length):
                    begun |= bool(tr.first[start + t, b])
                    assert row.learnt[t] == (tr.valid[start + t, b] and (begun or t >= burn_in))
                    total, product, steps = 0.0, 1.0, 0
                    while steps < n and t + steps < length and tr.valid[start + t + steps, b]:
                        at = (start + t + steps, b)
                        total, product = total + product * 2.0 * tr.reward[at], product * 0.9 * tr.discount[at]
                        steps += 1
                        if tr.boundary[at]:
                            break
                    if row.learnt[t]:
                        assert row.length[t] == steps >= 1
                        np.testing.assert_allclose((row.reward[t], row.discount[t]), (total, product), rtol=1e-5)

    def test_memory_is_packed_and_unpacked(self) -> None:
        carry = {"h": np.arange(6.0).reshape(3, 2), "c": np.arange(12.0).reshape(3, 2, 2)}
        memory = sequences.packed(carry)
        assert memory.shape == (3, 6)
        found = sequences.unpacked(memory, {name: a[:1] for name, a in carry.items()})
        assert all(np.array_equal(found[name], carry[name]) for name in carry)

    def test_sizes_count_steps(self) -> None:
        replay = make("dqn", sequence=4, burn_in=1, batch_size=32, capacity=1_000, warmup=10).experience
        assert (replay.batch, replay.capacity, replay.warmup, replay.sequence) == (8, 250, 3, 4)
        assert make("dqn").experience.sequence == T and make("dqn").burn_in == T // 4

    def test_a_priority_is_between_the_largest_error_and_the_mean(self) -> None:
        td = np.array([[1.0, -2.0, 9.0], [-3.0, 4.0, 5.0]])
        learnt = np.array([[True, True, False], [True, False, False]])
        np.testing.assert_allclose(sequences.priority(td, learnt, 0.9), [0.9 * 3 + 0.1 * 2, 2.0, 0.0], rtol=1e-6)
        np.testing.assert_allclose(np.mean(sequences.share(learnt) * np.abs(td)), (1 + 3 + 2) / 3, rtol=1e-6)


NAMES = ["dqn", "ddpg", "td3", "sac"]
COMPILED = ["dqn", pytest.param("ddpg", marks=pytest.mark.slow), "td3", "sac"]  # td3 computes all of ddpg's


class TestEveryAlgorithm:
    @pytest.mark.parametrize("name", COMPILED)
    def test_acting_carries_the_memory_and_forgets_with_the_episode(self, name: str) -> None:
        algorithm = make(name, sequence=4, burn_in=1)
        actor = algorithm.actor_state(jax.jit(algorithm.init)(jax.random.key(0)))
        obs, none, key = np.ones((B, WIDTH), np.float32), np.zeros(B, np.float32), jax.random.key(0)
        carry = algorithm.initial_carry(B)
        first = np.array([True, False, True, False])
        act = jax.jit(algorithm.act)
        _, extras, after = act(actor, obs, carry, ~first, key, none)
        assert np.all(extras[sequences.MEMORY] == 0) and set(after) == set(carry)
        _, extras, again = act(actor, obs, after, first, key, none)
        np.testing.assert_array_equal(extras[sequences.MEMORY], sequences.packed({n: after[n] for n in ("h", "c")}))
        assert np.array_equal(again["h"][0], after["h"][0]) and not np.array_equal(again["h"][1], after["h"][1])
        shapes = jax.eval_shape(make(name).act, actor, obs, carry, first, key, none)
        assert shapes[1] == {}, "sequences begin with the unroll"

    @pytest.mark.parametrize("name", COMPILED)
    def test_what_is_not_learnt_from_has_no_effect(self, name: str) -> None:
        """Rewards and actions of the burn-in and of the autoreset row; its observation only ends the memory's episode."""
        algorithm = make(name, burn_in=2)
        state, batch = jax.tree.map(lambda x: np.asarray(x, np.float32), begin(algorithm)), drawn(algorithm)
        batch = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, batch)
        learnt = batch.rows.learnt
        reward = np.where(learnt, batch.rows.reward, 99.0).astype(np.float32)
        shape = (slice(None), slice(None), *[None] * (batch.rows.action.ndim - 2))
        action = np.where(learnt[shape], batch.rows.action, 0).astype(batch.rows.action.dtype)
        other = batch._replace(rows=batch.rows._replace(reward=reward, action=action))
        key = jax.random.key(0)

        @jax.jit
        def learn(state: Any, batch: Any) -> Any:
            gradients = algorithm.gradients(state, batch, key)[0]
            return gradients, apply(algorithm, state, gradients).step

        (one, step), (two, _) = (learn(state, b) for b in (batch, other))
        for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True):
            np.testing.assert_array_equal(a, b)
        assert step == 1

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"sequence": 9}, r"--algo.sequence is 9: .*at most --algo.unroll 8$"),
            ({"sequence": 4, "burn_in": 4}, r"--algo.burn-in is 4: .* sequences of 4 steps; at most 3$"),
            ({"sequence": 4, "n_step": 5}, r"--algo.n-step is 5: .*at most --algo.sequence 4$"),
            ({"cell": "none", "sequence": 4}, r"--algo.sequence is 4: only recurrent nets .*\(--net.cell lstm\)$"),
            ({"cell": "none", "burn_in": 0}, r"--algo.burn-in is 0: only recurrent nets .*\(--net.cell lstm\)$"),
        ],
    )
    def test_bad_settings_are_refused_in_one_line(self, name: str, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(BadInput, match=message):
            make(name, **settings)


def test_a_world_model_takes_no_memory() -> None:
    with pytest.raises(BadInput, match=r"--net.cell: dyna_q's world model imagines single steps.*use dqn"):
        make("dyna_q")
