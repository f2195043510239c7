"""Sequences as rows of a replay: how they are cut, and what recurrent DQN, TD3 and SAC learn from them, against loops over time."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos import ALGOS, sequences
from shoal.core.algorithm import Drawn, Task
from shoal.core.errors import BadInput
from shoal.core.spec import ActionSpec, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Sequences, Trajectory
from shoal.learning.compiled_update import apply
from shoal.nets.continuous import CONTINUOUS_NETS, ContinuousNetConfig
from shoal.nets.q_network import QNetConfig, QNetwork
from shoal.nets.recurrent import CARRIES

T, B, WIDTH, SIZE, HIDDEN = 8, 4, 2, 2, 3
DISCRETE = EnvSpec("test", ObsSpec((WIDTH,)), ActionSpec((Categorical((2,)),), scalar=True))
BOX = EnvSpec("test", ObsSpec((WIDTH,)), ActionSpec((Continuous((-1.0,), (1.0,)),)))
EPS = 1e-6


@cache
def make(name: str, cell: str = "lstm", dueling: bool = False, **settings: Any) -> Any:
    entry: Any = ALGOS[name]
    shape: dict[str, Any] = {"hidden": (HIDDEN,), "activation": "tanh", "cell": cell, "cell_size": SIZE}
    if name in ("dqn", "dyna_q"):
        net: Any = QNetwork(QNetConfig(**shape, dueling=dueling), DISCRETE)
    else:
        net = CONTINUOUS_NETS[entry.net_name](ContinuousNetConfig(**shape), BOX)
    config = entry.Config(
        **{
            "unroll": T,
            "batch_size": 32,
            "capacity": 1_000,
            "warmup": 0,
            "gamma": 0.9,
            "max_grad_norm": 1e9,
            **settings,
        }
    )
    return entry(config, Task(spec=net.spec, envs=B), net)


def begin(algorithm: Any) -> Any:
    """Weights in float64 that are not symmetric, and targets that differ from them."""
    state, rng = algorithm.init(jax.random.key(1)), np.random.default_rng(2)

    def loud(tree: Any) -> Any:
        return jax.tree.map(lambda p: np.asarray(p, np.float64) + 0.5 * rng.normal(size=p.shape), tree)

    return state._replace(params=loud(state.params), extra=loud(state.extra))


def trajectory(algorithm: Any, seed: int = 0) -> Trajectory:
    """Column 0 terminates at row 2, column 1 is truncated at row 4, column 2 begins with an episode."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(T + 1, B, WIDTH))
    action = rng.integers(0, 2, (T, B)).astype(np.int32) if algorithm.task.spec is DISCRETE else None
    boundary, discount = np.zeros((T, B), bool), np.ones((T, B))
    valid, first = np.ones((T, B), bool), np.zeros((T + 1, B), bool)
    for row, column in ((2, 0), (4, 1)):
        boundary[row, column] = True
        valid[row + 1, column], discount[row + 1, column] = False, 0.0
        first[row + 2, column] = True
    discount[2, 0], first[0, 2] = 0.0, True
    carry = {name: rng.normal(size=(B, *a.shape[1:])) for name, a in algorithm.initial_carry(B).items()}
    size = sum(carry[name].shape[-1] for name in algorithm.net.initial_carry(1))
    extras = {sequences.MEMORY: rng.normal(size=(T, B, size))} if algorithm.recurrent else {}
    return Trajectory(
        obs,
        rng.uniform(-1, 1, (T, B, 1)) if action is None else action,
        rng.normal(size=(T, B)) * valid,
        discount,
        boundary,
        valid,
        first,
        extras,
        carry,
        np.zeros((T, B), np.int32),
    )


def drawn(algorithm: Any, seed: int = 0) -> Drawn:
    """All sequences of an unroll, as one minibatch with weights."""
    kept = algorithm.prepare(begin(algorithm), None, trajectory(algorithm, seed), jax.random.key(0))[1]
    flat = [np.asarray(x).reshape(-1, *x.shape[2:]) for x in kept.rows]
    rows = Sequences(*(x.astype(np.float64) if x.dtype == np.float32 else x for x in flat))
    return Drawn(rows, np.linspace(0.2, 1.0, len(rows.reward)))


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
        rows, valid = algorithm.prepare(algorithm.init(jax.random.key(0)), None, tr, jax.random.key(0))[1]
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


# The oracle: one number at a time, in the papers' notation.


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def advance(cell: dict[str, np.ndarray], x: np.ndarray, carry: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One step of an LSTM or GRU."""
    driven, kept = x @ cell["w_x"] + cell["b"], carry["h"] @ cell["w_h"]
    if "c" in carry:
        i, f, g, o = np.split(driven + kept, 4)
        c = sigmoid(f + 1.0) * carry["c"] + sigmoid(i) * np.tanh(g)
        return {"h": sigmoid(o) * np.tanh(c), "c": c}
    (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(driven, 3), np.split(kept, 3)
    z = sigmoid(z_x + z_h)
    return {"h": (1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * carry["h"]}


def layer(params: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return x @ params["w"] + params["b"]


def remember(live: Any, fixed: Any, inputs: Any, cell: Any, row: Sequences, carry: Any, burn_in: int) -> list[Any]:
    """(input, h) of each step of one sequence. The carry that leaves the burn-in is made by `fixed`, which has no gradient."""
    found, apart = [], carry
    for t in range(len(row.first)):
        if t == burn_in:
            carry = apart
        if row.first[t]:
            carry, apart = ({name: np.zeros_like(a) for name, a in c.items()} for c in (carry, apart))
        carry = advance(cell(live), inputs(live, row.obs[t]), carry)
        if t < burn_in:
            apart = advance(cell(fixed), inputs(fixed, row.obs[t]), apart)
        found.append((row.obs[t], carry["h"]))
    return found


def carry_of(algorithm: Any, row: Sequences) -> dict[str, np.ndarray]:
    names = sorted(CARRIES[algorithm.net.config.cell])
    return dict(zip(names, np.split(row.memory, len(names)), strict=True))


def one(rows: Sequences, n: int) -> Sequences:
    return Sequences(*(x[n] for x in rows))


def q_values(algorithm: Any, live: Any, fixed: Any, row: Sequences) -> np.ndarray:
    def inputs(params: Any, obs: np.ndarray) -> np.ndarray:
        return np.tanh(layer(params["q"]["trunk"]["hidden0"], obs))

    def cell(params: Any) -> Any:
        return params["q"]["trunk"]["cell"]

    seen = remember(live, fixed, inputs, cell, row, carry_of(algorithm, row), algorithm.burn_in)
    own = live["q"]
    out = np.stack([layer(own["head"], h) for _, h in seen])
    if not algorithm.net.config.dueling:
        return out
    return np.stack([layer(own["value"], h) for _, h in seen]) + out - out.mean(-1, keepdims=True)


def dqn_targets(algorithm: Any, state: Any, rows: list[Sequences]) -> list[dict[int, float]]:
    """{step: target} of the learnt steps of each sequence."""
    found = []
    for row in rows:
        new, old = (q_values(algorithm, p, p, row) for p in (state.params, state.extra["target"]))
        targets = {}
        for t in np.flatnonzero(row.learnt):
            after = t + row.length[t]
            best = np.argmax((new if algorithm.config.double else old)[after])
            targets[int(t)] = row.reward[t] + row.discount[t] * old[after][best]
        found.append(targets)
    return found


def agrees(found: Any, loss: Any, params: Any) -> None:
    """Gradients against central differences of `loss` in every coordinate."""
    leaves, tree = jax.tree.flatten(jax.tree.map(np.array, params))
    for leaf, gradient in zip(leaves, jax.tree.leaves(found), strict=True):
        for at in np.ndindex(leaf.shape):
            before = leaf[at]
            ends = []
            for sign in (1, -1):
                leaf[at] = before + sign * EPS
                ends.append(loss(jax.tree.unflatten(tree, leaves)))
            leaf[at] = before
            np.testing.assert_allclose(gradient[at], (ends[0] - ends[1]) / (2 * EPS), rtol=2e-4, atol=2e-7)


@pytest.mark.parametrize(
    ("cell", "settings"),
    [
        ("lstm", {"sequence": 5, "burn_in": 2, "n_step": 3, "dueling": True}),
        ("gru", {"burn_in": 3, "double": False, "loss": "mse", "priority_max": 0.5}),
    ],
)
def test_dqn_against_loops_and_differences(cell: str, settings: dict[str, Any]) -> None:
    algorithm = make("dqn", cell, **settings)
    state, batch = begin(algorithm), drawn(algorithm)
    with jax.enable_x64(True):
        grads, feedback = algorithm.gradients(state, batch, jax.random.key(0))

    rows = [one(batch.rows, n) for n in range(len(batch.weight))]
    targets = dqn_targets(algorithm, state, rows)

    def errors(params: Any) -> list[np.ndarray]:
        q = [q_values(algorithm, params, state.params, row) for row in rows]
        return [np.array([y - q[n][t][rows[n].action[t]] for t, y in targets[n].items()]) for n in range(len(rows))]

    def loss(params: Any) -> float:
        huber, each = algorithm.config.loss == "huber", []
        for n, td in enumerate(errors(params)):
            straight = huber & (np.abs(td) > 1)
            each += [*(batch.weight[n] * np.where(straight, np.abs(td) - 0.5, 0.5 * td**2))]
        return float(sum(each) / len(each))

    np.testing.assert_allclose(feedback.metrics["value"], loss(state.params), rtol=1e-6)
    eta = algorithm.config.priority_max
    sizes = [np.abs(td) for td in errors(state.params)]
    np.testing.assert_allclose(feedback.td, [eta * s.max() + (1 - eta) * s.mean() for s in sizes], rtol=1e-6)
    agrees(grads, loss, state.params)


def seen_by(algorithm: Any, group: str, live: Any, fixed: Any, row: Sequences) -> np.ndarray:
    """What trunks see, [L+1, ...]: the observation and the memory, which is empty at first for critics."""
    carry = carry_of(algorithm, row)
    if group == "critic":
        carry = {name: np.zeros_like(a) for name, a in carry.items()}
    steps = remember(live, fixed, lambda _, obs: obs, lambda part: part["cell"], row, carry, algorithm.burn_in)
    return np.stack([np.concatenate(step) for step in steps])


def trunk(params: Any, x: np.ndarray) -> np.ndarray:
    return layer(params["head"], np.tanh(layer(params["trunk"]["hidden0"], x)))


def q_of(critic: Any, seen: np.ndarray, action: np.ndarray) -> np.ndarray:
    """[C]."""
    x = np.concatenate([seen, action])
    return np.array([trunk(critic[name], x)[0] for name in ("q0", "q1")])


def sample(policy: Any, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, float]:
    mean, log_std = np.split(trunk(policy, seen), 2)
    log_std = np.clip(log_std, -10, 2)
    u = mean + np.exp(log_std) * noise
    log_pi = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2)
    return np.tanh(u), float(log_pi.sum())


@pytest.mark.parametrize(("name", "cell"), [("td3", "gru"), ("sac", "lstm")])
def test_continuous_control_against_loops_and_differences(name: str, cell: str) -> None:
    settings = {"policy_delay": 1, "smoothing": 0.0} if name == "td3" else {"target_entropy": -0.3}
    algorithm = make(name, cell, sequence=5, burn_in=2, n_step=2, **settings)
    state, batch = begin(algorithm), drawn(algorithm)
    rows = [one(batch.rows, n) for n in range(len(batch.weight))]
    params, old = state.params, state.extra["target"]
    with jax.enable_x64(True):
        grads, feedback = algorithm.gradients(state, batch, jax.random.key(5))
        keys = jax.random.split(jax.random.key(5))
        noises = [np.asarray(jax.random.normal(key, (5, len(rows), 1), jnp.float64)) for key in keys]
    alpha = np.exp(params["temperature"]["log"]) if name == "sac" else 0.0

    def targets(n: int) -> list[float]:
        row, newest = rows[n], params["policy"] if name == "sac" else old["policy"]
        mine = seen_by(algorithm, "policy", newest, newest, row)
        theirs = seen_by(algorithm, "critic", old["critic"], old["critic"], row)
        found = []
        for t in range(5):
            after = t + row.length[t]
            if name == "sac":
                action, log_pi = sample(newest, mine[after], noises[0][t, n])
            else:
                action, log_pi = np.tanh(trunk(newest, mine[after])), 0.0
            q = q_of(old["critic"], theirs[after], action).min()
            found.append(row.reward[t] + row.discount[t] * (q - alpha * log_pi))
        return found

    y = [targets(n) for n in range(len(rows))]

    def errors(critic: Any) -> list[list[np.ndarray]]:
        found = []
        for n, row in enumerate(rows):
            seen = seen_by(algorithm, "critic", critic, params["critic"], row)
            found.append([y[n][t] - q_of(critic, seen[t], row.action[t]) for t in np.flatnonzero(row.learnt)])
        return found

    def critic_loss(critic: Any) -> float:
        each = [batch.weight[n] * 0.5 * (e**2).sum() for n, steps in enumerate(errors(critic)) for e in steps]
        return float(sum(each) / len(each))

    theirs = [seen_by(algorithm, "critic", params["critic"], params["critic"], row) for row in rows]

    def policy_loss(policy: Any) -> float:
        each = []
        for n, row in enumerate(rows):
            mine = seen_by(algorithm, "policy", policy, params["policy"], row)
            for t in np.flatnonzero(row.learnt):
                if name == "sac":
                    action, log_pi = sample(policy, mine[t], noises[1][t, n])
                    each.append(alpha * log_pi - q_of(params["critic"], theirs[n][t], action).min())
                else:
                    each.append(-q_of(params["critic"], theirs[n][t], np.tanh(trunk(policy, mine[t])))[0])
        return float(sum(each) / len(each))

    np.testing.assert_allclose(feedback.metrics["value"], critic_loss(params["critic"]), rtol=1e-6)
    np.testing.assert_allclose(feedback.metrics["policy"], policy_loss(params["policy"]), rtol=1e-6)
    sizes = [np.array([np.abs(e).mean() for e in steps]) for steps in errors(params["critic"])]
    np.testing.assert_allclose(feedback.td, [0.9 * s.max() + 0.1 * s.mean() for s in sizes], rtol=1e-6)
    agrees(grads["critic"], critic_loss, params["critic"])
    agrees(grads["policy"], policy_loss, params["policy"])


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sac"])
class TestEveryAlgorithm:
    def test_acting_carries_the_memory_and_forgets_with_the_episode(self, name: str) -> None:
        algorithm = make(name, sequence=4, burn_in=1)
        actor = algorithm.actor_state(jax.tree.map(jnp.asarray, algorithm.init(jax.random.key(0))))
        obs, none, key = np.ones((B, WIDTH), np.float32), np.zeros(B, np.float32), jax.random.key(0)
        carry = algorithm.initial_carry(B)
        first = np.array([True, False, True, False])
        _, extras, after = algorithm.act(actor, obs, carry, ~first, key, none)
        assert np.all(extras[sequences.MEMORY] == 0) and set(after) == set(carry)
        _, extras, again = algorithm.act(actor, obs, after, first, key, none)
        np.testing.assert_array_equal(extras[sequences.MEMORY], sequences.packed({n: after[n] for n in ("h", "c")}))
        assert np.array_equal(again["h"][0], after["h"][0]) and not np.array_equal(again["h"][1], after["h"][1])
        assert make(name).act(actor, obs, carry, first, key, none)[1] == {}, "sequences begin with the unroll"

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
        one, two = (algorithm.gradients(state, b, key)[0] for b in (batch, other))
        for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True):
            np.testing.assert_array_equal(a, b)
        assert apply(algorithm, state, one).step == 1

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
