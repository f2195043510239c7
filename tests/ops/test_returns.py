"""Returns against a slow oracle that sums forward from every row, in float64."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import pytest

from shoal.ops import returns

gae, monte_carlo = jax.jit(returns.gae), jax.jit(returns.monte_carlo)
n_step = jax.jit(returns.n_step, static_argnums=6)

GAMMA, LAM = 0.97, 0.9


class Unroll(NamedTuple):
    reward: np.ndarray
    discount: np.ndarray
    value: np.ndarray
    boundary: np.ndarray
    valid: np.ndarray


def random_unroll(seed: int, t: int = 23, b: int = 6) -> Unroll:
    """Episodes that terminate and are truncated, each followed by its autoreset row, and now and then a dropped row."""
    rng = np.random.default_rng(seed)
    boundary, valid = np.zeros((t, b), bool), np.ones((t, b), bool)
    discount = np.ones((t, b), np.float32)
    for env in range(b):
        for row in range(t):
            autoreset, dropped = row > 0 and boundary[row - 1, env], rng.random() < 0.07
            if autoreset or dropped:
                valid[row, env] = False
            elif rng.random() < 0.2:
                boundary[row, env] = True
                discount[row, env] = rng.integers(2)
    reward, value = rng.normal(size=(t, b)), rng.normal(size=(t + 1, b))
    return Unroll(reward.astype(np.float32), discount, value.astype(np.float32), boundary, valid)


def follows(u: Unroll, row: int, env: int) -> bool:
    """Whether the row after this one continues its episode."""
    return row + 1 < len(u.reward) and not u.boundary[row, env] and bool(u.valid[row + 1, env])


def oracle(u: Unroll, weigh: str, n: int = 0) -> np.ndarray:
    """`gae`: sum of (gamma lam)^l delta_{t+l}. The others: sum of gamma^i r_{t+i}, then gamma^m V(s_{t+m})."""
    r, d, v = (np.asarray(x, np.float64) for x in (u.reward, u.discount, u.value))
    out = np.zeros_like(r)
    for t, env in np.argwhere(u.valid):
        steps = [t]
        while follows(u, steps[-1], env) and (weigh != "n_step" or len(steps) < n):
            steps.append(steps[-1] + 1)
        if weigh == "gae":
            delta = [r[k, env] + GAMMA * d[k, env] * v[k + 1, env] - v[k, env] for k in steps]
            out[t, env] = sum(
                (GAMMA * LAM) ** i * np.prod(d[t : t + i, env]) * delta_k for i, delta_k in enumerate(delta)
            )
        else:
            out[t, env] = sum(GAMMA**i * np.prod(d[t : t + i, env]) * r[k, env] for i, k in enumerate(steps))
            out[t, env] += GAMMA ** len(steps) * np.prod(d[t : steps[-1] + 1, env]) * v[steps[-1] + 1, env]
    return out


@pytest.mark.parametrize("seed", range(4))
def test_against_the_oracle(seed: int) -> None:
    u = random_unroll(seed)
    assert not u.valid.all() and (u.boundary & (u.discount == 1)).any() and (u.discount == 0).any()
    np.testing.assert_allclose(gae(*u, GAMMA, LAM), oracle(u, "gae"), atol=2e-5)
    np.testing.assert_allclose(monte_carlo(*u, GAMMA), oracle(u, "monte_carlo"), atol=2e-5)
    for n in (1, 3, 10, 50):
        np.testing.assert_allclose(n_step(*u, GAMMA, n), oracle(u, "n_step", n), atol=2e-5, err_msg=f"n={n}")


def test_they_agree_where_theory_says_so() -> None:
    u = random_unroll(9)
    full = np.asarray(monte_carlo(*u, GAMMA))
    np.testing.assert_allclose(gae(*u, GAMMA, 1.0) + u.value[:-1] * u.valid, full, atol=2e-5)
    np.testing.assert_allclose(n_step(*u, GAMMA, len(u.reward)), full, atol=2e-5)
    np.testing.assert_allclose(gae(*u, GAMMA, 0.0) + u.value[:-1] * u.valid, n_step(*u, GAMMA, 1), atol=2e-5)


def one_episode(terminated: bool) -> Unroll:
    """Four rows of one environment: two steps, the end, the autoreset row."""
    boundary = np.array([[False], [False], [True], [False]])
    discount = np.array([[1], [1], [0 if terminated else 1], [1]], np.float32)
    value = np.array([[5], [6], [7], [8], [9]], np.float32)
    return Unroll(np.ones((4, 1), np.float32), discount, value, boundary, np.array([[True], [True], [True], [False]]))


def test_a_truncated_episode_bootstraps_and_a_terminated_does_not() -> None:
    g = 0.5
    terminated, truncated = (np.asarray(monte_carlo(*one_episode(end), g))[:, 0] for end in (True, False))
    np.testing.assert_allclose(terminated, [1 + g + g * g, 1 + g, 1, 0])
    np.testing.assert_allclose(truncated, terminated + np.array([g**3, g**2, g, 0]) * 8)
    np.testing.assert_allclose(np.asarray(gae(*one_episode(True), g, LAM))[2:, 0], [1 - 7, 0])
    np.testing.assert_allclose(np.asarray(gae(*one_episode(False), g, LAM))[2:, 0], [1 + g * 8 - 7, 0])
    np.testing.assert_allclose(np.asarray(n_step(*one_episode(True), g, 2))[1:, 0], [1 + g, 1, 0])
    np.testing.assert_allclose(np.asarray(n_step(*one_episode(False), g, 2))[1:, 0], [1 + g + g * g * 8, 1 + g * 8, 0])


@pytest.mark.parametrize("seed", range(3))
def test_invalid_rows_have_no_effect(seed: int) -> None:
    u = random_unroll(seed)
    rng = np.random.default_rng(seed + 100)
    noise = rng.normal(size=u.reward.shape).astype(np.float32) * 1e3
    ended = np.concatenate([np.zeros_like(u.discount[:1], bool), u.boundary[:-1] & (u.discount[:-1] == 0)])
    changed = u._replace(
        reward=np.where(u.valid, u.reward, noise),
        discount=np.where(u.valid, u.discount, 0).astype(np.float32),
        boundary=np.where(u.valid, u.boundary, noise > 0),
        # the autoreset row of a truncated episode shows what it bootstraps from; that of a terminated one shows nothing
        value=np.concatenate([np.where(ended, noise, u.value[:-1]), u.value[-1:]]),
    )
    assert (~u.valid & ended).any() and (changed.value != u.value).any()
    for op in (lambda x: gae(*x, GAMMA, LAM), lambda x: n_step(*x, GAMMA, 4), lambda x: monte_carlo(*x, GAMMA)):
        before, after = np.asarray(op(u)), np.asarray(op(changed))
        assert before.tobytes() == after.tobytes()
        assert not before[~u.valid].any()


def test_a_truncated_row_reads_the_autoreset_observation() -> None:
    u = one_episode(terminated=False)
    moved = u._replace(value=u.value + np.array([[0], [0], [0], [1], [0]], np.float32))
    assert np.asarray(gae(*moved, 0.5, LAM) - gae(*u, 0.5, LAM))[2, 0] == 0.5


def test_a_trace_stops_before_a_dropped_row() -> None:
    reward, value = np.zeros((3, 1), np.float32), np.array([[0], [4], [0], [0]], np.float32)
    u = Unroll(reward, np.ones_like(reward), value, np.zeros((3, 1), bool), np.array([[True], [False], [True]]))
    late = u._replace(reward=np.array([[0], [0], [100]], np.float32))
    for op in (lambda x: gae(*x, 0.5, 1.0), lambda x: n_step(*x, 0.5, 3), lambda x: monte_carlo(*x, 0.5)):
        assert np.asarray(op(late))[0, 0] == 0.5 * 4  # the dropped row's observation stands in; 100 does not reach


def test_a_single_row_and_bad_shapes() -> None:
    u = random_unroll(0, t=1)
    np.testing.assert_allclose(gae(*u, GAMMA, LAM), oracle(u, "gae"), atol=1e-6)
    np.testing.assert_allclose(n_step(*u, GAMMA, 3), oracle(u, "n_step", 3), atol=1e-6)
    with pytest.raises(AssertionError):
        gae(*u._replace(value=u.value[:-1]), GAMMA, LAM)
    with pytest.raises(AssertionError):
        n_step(*u, GAMMA, 0)
