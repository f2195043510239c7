"""Continuous control's maths, against loops in the papers' notation, closed forms and differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, exp, log, log1p, pi, sqrt, tanh

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import continuous_control as ops

RNG = np.random.default_rng(0)


def test_target_is_the_lower_critic_and_stops_at_the_end() -> None:
    r, q, log_pi = RNG.normal(size=5), RNG.normal(size=(2, 5)), RNG.normal(size=5)
    d, alpha = np.array([0.9, 0.0, 0.9, 0.81, 0.9]), 0.3
    expected = []
    for n in range(5):  # y = r + gamma (1 - d) (min_i Q_i - alpha log pi)
        lower = q[0][n] if q[0][n] < q[1][n] else q[1][n]
        expected.append(r[n] + d[n] * (lower - alpha * log_pi[n]))
    found = ops.q_target(r, d, q, -alpha * log_pi)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert float(found[1]) == pytest.approx(r[1])
    assert not np.any(jax.grad(lambda q: ops.q_target(r, d, q).sum())(q)), "a target has no gradient"


def test_critic_loss_against_a_loop(gradient_agrees_with_differences: Callable[..., None]) -> None:
    q, y, w = RNG.normal(size=(2, 6)), RNG.normal(size=6), RNG.uniform(0.1, 1, 6)
    expected = sum(w[n] * (y[n] - q[i][n]) ** 2 / 2 / 6 for i in range(2) for n in range(6))
    loss, errors = ops.critic_loss(q, y, w)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    sizes = [sum(abs(y[n] - q[i][n]) for i in range(2)) / 2 for n in range(6)]
    np.testing.assert_allclose(errors, sizes, rtol=1e-5, atol=1e-6)
    _, opposite = ops.critic_loss(np.array([[5.0], [-5.0]]), np.zeros(1), np.ones(1))
    assert float(opposite[0]) == 5.0, "errors of two critics do not cancel"
    gradient_agrees_with_differences(lambda q: ops.critic_loss(q, y, w)[0], q)


def test_smoothing_is_cut_twice_and_each_row_has_its_own() -> None:
    action, noise = np.array([[0.0], [0.0], [0.9], [-1.0]]), np.array([[1.0], [10.0], [10.0], [-1.0]])
    np.testing.assert_allclose(ops.smoothed_action(action, noise, 0.2, 0.5), [[0.2], [0.5], [1.0], [-1.0]], rtol=1e-6)


def slow_log_prob(mean: float, std: float, u: float) -> float:
    """The density of a = tanh(u) in the paper's notation: log N(u; mean, std) - log(1 - tanh(u)^2)."""
    return -((u - mean) ** 2) / (2 * std**2) - log(std) - log(2 * pi) / 2 - log1p(-(tanh(u) ** 2))


def test_squashed_log_probability_against_the_paper(gradient_agrees_with_differences: Callable[..., None]) -> None:
    mean, log_std, noise = RNG.normal(size=(3, 7, 2))
    with jax.enable_x64(True):
        action, found = ops.squashed_sample(mean, log_std, noise)
        u = mean + np.exp(log_std) * noise
        np.testing.assert_allclose(action, np.tanh(u))
        expected = [sum(slow_log_prob(mean[n, i], exp(log_std[n, i]), u[n, i]) for i in range(2)) for n in range(7)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    gradient_agrees_with_differences(lambda m, s: ops.squashed_sample(m, s, noise)[1].sum(), mean, log_std)


@pytest.mark.parametrize("u", [-40.0, -15.0, 15.0, 40.0])
def test_squashed_log_probability_at_the_edges(u: float) -> None:
    """Where float32's tanh is 1: log(1 - tanh(u)^2) -> log 4 - 2 |u|."""
    action, found = ops.squashed_sample(np.full((1, 1), u, np.float32), np.zeros((1, 1), np.float32), np.zeros((1, 1)))
    assert abs(float(action[0, 0])) == pytest.approx(1.0, abs=1e-6)  # the last bit is the compiler's
    assert float(found[0]) == pytest.approx(-log(2 * pi) / 2 - (log(4) - 2 * abs(u)), rel=1e-5)
    slope = jax.grad(lambda m: ops.squashed_sample(m, jnp.zeros((1, 1)), jnp.zeros((1, 1)))[1].sum())(
        np.full((1, 1), u, np.float32)
    )
    assert float(slope[0, 0]) == pytest.approx(2 * np.sign(u), rel=1e-4)


def test_squashed_density_integrates_to_one() -> None:
    a = np.linspace(-1, 1, 20_001)[1:-1]
    mean, std = 0.4, 0.8
    noise = (np.arctanh(a) - mean) / std
    with jax.enable_x64(True):
        shape = (len(a), 1)
        _, found = ops.squashed_sample(np.full(shape, mean), np.full(shape, log(std)), noise[:, None])
        assert float(np.trapezoid(np.exp(found), a)) == pytest.approx(1.0, abs=1e-4)


def test_temperature_rises_while_entropy_is_below_its_target(
    gradient_agrees_with_differences: Callable[..., None],
) -> None:
    log_pi = np.array([1.0, 2.0])  # an entropy of -1.5
    for target, sign in ((-1.0, -1), (-2.0, 1)):
        slope = jax.grad(ops.temperature_loss)(jnp.float32(0.3), log_pi, target)
        assert np.sign(float(slope)) == sign, "a step against the slope raises alpha where the entropy is too low"
    gradient_agrees_with_differences(lambda a: ops.temperature_loss(a, log_pi, -1.0), np.array(0.3))


def test_noise_has_the_deviation_and_the_memory_that_it_should() -> None:
    n = np.random.default_rng(1).normal(size=(20_000, 1, 1))

    def path(step: Callable[[jax.Array, jax.Array], jax.Array]) -> np.ndarray:
        return np.asarray(jax.lax.scan(lambda x, e: (step(x, e),) * 2, jnp.zeros((1, 1)), jnp.asarray(n))[1])[:, 0, 0]

    ar1 = path(lambda x, e: ops.autoregressive(x, e, 0.9))
    assert ar1.std() == pytest.approx(1.0, abs=0.1)
    assert np.corrcoef(ar1[1:], ar1[:-1])[0, 1] == pytest.approx(0.9, abs=0.02)
    ou = path(lambda x, e: ops.ornstein_uhlenbeck(x, e, 0.15, 0.2))
    assert ou.std() == pytest.approx(0.2 / sqrt(1 - 0.85**2), rel=0.1)
    assert np.corrcoef(ou[1:], ou[:-1])[0, 1] == pytest.approx(0.85, abs=0.02)


def test_uniform_noise_by_erf() -> None:
    """What warm-up makes of normal noise: `erf(n / sqrt 2)` is uniform in [-1, 1]."""
    found = np.sort([erf(x / sqrt(2)) for x in np.random.default_rng(2).normal(size=4_000)])
    assert np.abs(found - np.linspace(-1, 1, 4_000)).max() < 0.05
