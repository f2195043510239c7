"""What recurrent DQN, TD3 and SAC learn from sequences, against loops over time and central differences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recurrent_algos import begin, drawn, make

from shoal.core.trajectory import Sequences
from shoal.nets.recurrent import CARRIES

EPS = 1e-6

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
        grads, feedback = jax.jit(algorithm.gradients)(state, batch, jax.random.key(0))

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


@pytest.mark.parametrize(("name", "cell"), [("td3", "gru"), pytest.param("sac", "lstm", marks=pytest.mark.slow)])
def test_continuous_control_against_loops_and_differences(name: str, cell: str) -> None:
    settings = {"policy_delay": 1, "smoothing": 0.0} if name == "td3" else {"target_entropy": -0.3}
    algorithm = make(name, cell, sequence=5, burn_in=2, n_step=2, **settings)
    state, batch = begin(algorithm), drawn(algorithm)
    rows = [one(batch.rows, n) for n in range(len(batch.weight))]
    params, old = state.params, state.extra["target"]
    with jax.enable_x64(True):
        grads, feedback = jax.jit(algorithm.gradients)(state, batch, jax.random.key(5))
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
