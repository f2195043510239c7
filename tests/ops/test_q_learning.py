"""Q-learning's maths, against loops in the paper's notation and against rlax."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from shoal.ops import q_learning

GAMMA = 0.9


def unroll(seed: int, t: int = 12, b: int = 5) -> tuple[np.ndarray, ...]:
    """Rewards, discounts, boundaries and valid rows, with ends of both kinds and their autoreset rows, and a dropped step."""
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(t, b)).astype(np.float32)
    boundary, valid, discount = np.zeros((t, b), bool), np.ones((t, b), bool), np.ones((t, b), np.float32)
    for column in range(b):
        row = int(rng.integers(0, 4))
        while row < t:
            boundary[row, column] = True
            discount[row, column] = float(rng.integers(0, 2))
            if row + 1 < t:
                valid[row + 1, column], discount[row + 1, column] = False, 0.0
            row += int(rng.integers(2, 7))
    valid[7, 0] = False
    return reward, discount, boundary, valid


def oracle(
    reward: np.ndarray, discount: np.ndarray, boundary: np.ndarray, valid: np.ndarray, n: int, t: int
) -> tuple[float, float, int]:
    """(R, discount, steps) of the window that begins at row t of one column, step by step."""
    total, product, steps = 0.0, 1.0, 0
    while steps < n and t + steps < len(reward) and valid[t + steps]:
        total += product * reward[t + steps]
        product *= GAMMA * discount[t + steps]
        steps += 1
        if boundary[t + steps - 1]:
            break
    return total, product, steps


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_of_n_steps_against_a_loop(n: int, seed: int) -> None:
    reward, discount, boundary, valid = unroll(seed)
    total, product, length = q_learning.n_step_rows(reward, discount, boundary, valid, GAMMA, n)
    assert valid.sum() > 30 and (~valid).sum() > 5
    for t, b in zip(*np.nonzero(valid), strict=True):
        column = (reward[:, b], discount[:, b], boundary[:, b], valid[:, b])
        expected = oracle(*column, n, t)
        np.testing.assert_allclose((total[t, b], product[t, b], length[t, b]), expected, rtol=1e-5, atol=1e-6)


def test_a_window_ends_with_its_episode_and_with_the_unroll() -> None:
    reward = np.array([[1.0], [2.0], [4.0], [0.0], [8.0], [16.0]], np.float32)
    boundary = np.array([[0], [0], [1], [0], [0], [0]], bool)
    valid = np.array([[1], [1], [1], [0], [1], [1]], bool)
    for terminated, left in ((1.0, GAMMA), (0.0, 0.0)):
        discount = np.ones((6, 1), np.float32)
        discount[2] = terminated
        total, product, length = q_learning.n_step_rows(reward, discount, boundary, valid, GAMMA, 3)
        np.testing.assert_allclose(
            np.asarray(total)[:, 0][[0, 1, 2, 4, 5]], [1 + 1.8 + 3.24, 2 + 3.6, 4, 8 + 14.4, 16], rtol=1e-6
        )
        np.testing.assert_allclose(np.asarray(product)[:, 0][[1, 2, 4, 5]], [GAMMA * left, left, 0.81, 0.9], rtol=1e-6)
        assert length[:, 0].tolist() == [3, 2, 1, 0, 2, 1], "obs[3] is the last of the first episode"


def batch(seed: int = 0, n: int = 20, a: int = 4) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    q_tm1, q_t, selector = (rng.normal(size=(n, a)).astype(np.float32) for _ in range(3))
    discount = (rng.random(n) < 0.7).astype(np.float32) * np.float32(GAMMA)
    return q_tm1, rng.integers(0, a, n), rng.normal(size=n).astype(np.float32), discount, q_t, selector


def test_errors_against_rlax() -> None:
    rlax = pytest.importorskip("rlax")
    args = batch()
    double = jax.vmap(rlax.double_q_learning)(*args)
    np.testing.assert_allclose(q_learning.td_error(*args), double, rtol=1e-5, atol=1e-6)
    q_tm1, a, r, discount, q_t, _ = args
    plain = jax.vmap(rlax.q_learning)(q_tm1, a, r, discount, q_t)
    np.testing.assert_allclose(q_learning.td_error(q_tm1, a, r, discount, q_t, q_t), plain, rtol=1e-5, atol=1e-6)


def test_the_target_has_no_gradient() -> None:
    q_tm1, a, r, discount, q_t, selector = batch()

    def total(q_tm1: np.ndarray, q_t: np.ndarray, selector: np.ndarray) -> jax.Array:
        return q_learning.td_error(q_tm1, a, r, discount, q_t, selector).sum()

    chosen, target, choice = jax.grad(total, argnums=(0, 1, 2))(q_tm1, q_t, selector)
    assert not np.asarray(target).any() and not np.asarray(choice).any()
    np.testing.assert_array_equal(chosen, -np.eye(4, dtype=np.float32)[a])


@pytest.mark.parametrize("delta", [1.0, 0.5])
def test_huber(delta: float) -> None:
    error = np.linspace(-3, 3, 61, dtype=np.float32)
    expected = [0.5 * e * e if abs(e) <= delta else delta * (abs(e) - delta / 2) for e in error]
    np.testing.assert_allclose(q_learning.huber(error, delta), expected, rtol=1e-5, atol=1e-6)
    slope = jax.vmap(jax.grad(lambda e: q_learning.huber(e, delta)))(error)
    np.testing.assert_allclose(slope, np.clip(error, -delta, delta), rtol=1e-5, atol=1e-6)
