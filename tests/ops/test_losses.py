"""Losses against loops in the papers' notation, and their gradients against finite differences in float64."""

from __future__ import annotations

from math import exp, log

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shoal.ops import losses

SHAPE = (7, 3)


def draws(seed: int, count: int, scale: float = 0.3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [scale * rng.normal(size=SHAPE) for _ in range(count)]


def each(f, *arrays: np.ndarray) -> np.ndarray:
    """A function of numbers, element by element."""
    return np.array([f(*numbers) for numbers in zip(*(a.ravel() for a in arrays), strict=True)]).reshape(SHAPE)


def test_ppo_clip() -> None:
    log_pi, log_mu, a = draws(0, 3)

    def oracle(lp: float, lm: float, adv: float) -> float:
        rho = exp(lp - lm)
        return -min(rho * adv, min(max(rho, 0.8), 1.2) * adv)

    np.testing.assert_allclose(losses.ppo_clip(log_pi, log_mu, a, 0.2), each(oracle, log_pi, log_mu, a), atol=1e-6)


def test_ppo_clip_has_no_gradient_beyond_the_clip_in_the_direction_of_gain() -> None:
    log_pi = jnp.log(jnp.array([1.5, 1.5, 0.5, 0.5]))
    a = jnp.array([1.0, -1.0, 1.0, -1.0])
    grad = jax.grad(lambda lp: losses.ppo_clip(lp, jnp.zeros(4), a, 0.2).sum())(log_pi)
    np.testing.assert_allclose(grad, [0.0, 1.5, -0.5, 0.0], atol=1e-6)


def test_policy_gradient_and_values() -> None:
    log_pi, a, v, v_old, target = draws(1, 5)
    np.testing.assert_allclose(losses.policy_gradient(log_pi, a), each(lambda lp, x: -lp * x, log_pi, a), atol=1e-6)
    np.testing.assert_allclose(losses.value_loss(v, target), each(lambda x, y: (x - y) ** 2 / 2, v, target), atol=1e-6)

    def clipped(x: float, old: float, y: float) -> float:
        held = min(max(x, old - 0.2), old + 0.2)
        return max((x - y) ** 2, (held - y) ** 2) / 2

    found = losses.clipped_value_loss(v, v_old, target, 0.2)
    np.testing.assert_allclose(found, each(clipped, v, v_old, target), atol=1e-6)
    assert (np.abs(found - losses.value_loss(v, target)) > 1e-3).any()  # the clip was at work somewhere


def test_approx_kl() -> None:
    log_pi, log_mu = draws(2, 2)
    oracle = each(lambda lp, lm: exp(lp - lm) - 1 - (lp - lm), log_pi, log_mu)
    np.testing.assert_allclose(losses.approx_kl(log_pi, log_mu), oracle, atol=1e-6)
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    mean = sum(m * losses.approx_kl(np.log(pi), np.log(m)) for pi, m in zip(p, q, strict=True))
    assert float(mean) == pytest.approx(sum(m * log(m / pi) for pi, m in zip(p, q, strict=True)), abs=1e-6)


def test_masked_mean_and_standardise() -> None:
    (x,) = draws(3, 1)
    valid = np.random.default_rng(3).random(SHAPE) < 0.6
    np.testing.assert_allclose(losses.masked_mean(x, valid), x[valid].mean(), atol=1e-6)
    assert float(losses.masked_mean(x, np.zeros(SHAPE, bool))) == 0.0
    wild = np.where(valid, x, 1e6)
    found = np.asarray(losses.standardise(wild, valid))
    np.testing.assert_allclose(found[valid], (x[valid] - x[valid].mean()) / x[valid].std(), rtol=2e-4, atol=1e-5)
    assert not found[~valid].any()
    assert np.isfinite(losses.standardise(np.ones(SHAPE), valid)).all()  # no spread to divide by


def test_clip_by_global_norm() -> None:
    a, b = draws(4, 2)
    tree = {"a": jnp.asarray(a, jnp.float32), "b": [jnp.asarray(b, jnp.float32)]}
    norm = np.sqrt((a**2).sum() + (b**2).sum())
    for limit in (0.5, 1e3, np.inf):
        clipped, found = losses.clip_by_global_norm(tree, limit)
        assert float(found) == pytest.approx(norm, rel=1e-5)
        peer, _ = optax.clip_by_global_norm(limit).update(tree, optax.EmptyState())
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), clipped, peer)
    still, zero = losses.clip_by_global_norm(jax.tree.map(jnp.zeros_like, tree), 0.5)
    assert float(zero) == 0 and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(still))


LEARNT = {
    "ppo_clip": (lambda x, y, z: losses.ppo_clip(x, y, z, 0.2), 2),
    "policy_gradient": (losses.policy_gradient, 1),
    "value_loss": (losses.value_loss, 1),
    "clipped_value_loss": (lambda x, y, z: losses.clipped_value_loss(x, y, z, 0.2), 2),
}


@pytest.mark.parametrize("name", LEARNT)
def test_gradients_by_finite_differences(name: str, gradient_agrees_with_differences) -> None:
    loss, others = LEARNT[name]
    valid = np.random.default_rng(5).random(SHAPE) < 0.7
    x, *rest = draws(5, 1 + others)
    gradient_agrees_with_differences(lambda x: losses.masked_mean(loss(x, *map(jnp.asarray, rest)), valid), x)


@pytest.mark.parametrize("name", LEARNT)
def test_nothing_is_learnt_through_what_is_learnt_from(name: str) -> None:
    loss, others = LEARNT[name]
    arrays = [jnp.asarray(d) for d in draws(5, 1 + others)]
    grads = jax.jit(jax.grad(lambda *a: loss(*a).sum(), argnums=tuple(range(1 + others))))(*arrays)
    assert [bool(np.asarray(g).any()) for g in grads] == [True] + [False] * others


def test_gradients_of_reductions_by_finite_differences(gradient_agrees_with_differences) -> None:
    valid = np.random.default_rng(6).random(SHAPE) < 0.7
    x, y, weight = draws(6, 3)
    gradient_agrees_with_differences(lambda x: losses.masked_mean(losses.approx_kl(x, y), valid), x)
    gradient_agrees_with_differences(lambda x: jnp.sum(losses.standardise(x, valid) * weight), x)


@pytest.mark.parametrize("name", LEARNT)
def test_an_invalid_row_has_no_effect_on_any_gradient(name: str) -> None:
    loss, others = LEARNT[name]
    x, *rest = (d.astype(np.float32) for d in draws(7, 1 + others))
    valid = np.ones(SHAPE, bool)
    valid[3] = False

    def grad(x, *rest):
        return np.asarray(jax.jit(jax.grad(lambda x: losses.masked_mean(loss(x, *rest), valid)))(x))

    def disturb(a: np.ndarray) -> np.ndarray:
        return np.where(valid, a, a + 3).astype(np.float32)

    before, after = grad(x, *rest), grad(disturb(x), *map(disturb, rest))
    assert np.array_equal(before, after) and before.any() and not before[3].any()
