"""V-trace against a slow oracle in the paper's notation, against rlax, and against what theory says."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from shoal.ops import returns
from shoal.ops.vtrace import vtrace

jitted = jax.jit(vtrace, static_argnums=(7, 8, 9, 10))
GAMMA, LAM, RHO, C = 0.97, 0.9, 0.8, 0.7


class Steps(NamedTuple):
    log_pi: np.ndarray
    log_mu: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    value: np.ndarray
    boundary: np.ndarray
    valid: np.ndarray


def random_steps(seed: int, t: int = 19, b: int = 5, ends: bool = True) -> Steps:
    """Episodes that terminate and are truncated, each followed by its autoreset row, and now and then a dropped row."""
    rng = np.random.default_rng(seed)
    boundary, valid = np.zeros((t, b), bool), np.ones((t, b), bool)
    discount = np.ones((t, b), np.float32)
    for env in range(b if ends else 0):
        for row in range(t):
            if (row > 0 and boundary[row - 1, env]) or rng.random() < 0.07:
                valid[row, env] = False
            elif rng.random() < 0.2:
                boundary[row, env], discount[row, env] = True, rng.integers(2)

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    return Steps(-abs(normal(t, b)), -abs(normal(t, b)), normal(t, b), discount, normal(t + 1, b), boundary, valid)


def oracle(s: Steps, gamma: float, lam: float, rho_clip: float, c_clip: float) -> tuple[np.ndarray, np.ndarray]:
    """v_s = V(x_s) + sum_t gamma^(t-s) (prod_{i<t} c_i) delta_t V, each row summed anew, in float64: O(T^2)."""
    log_pi, log_mu, r, d, v = (np.asarray(x, np.float64) for x in s[:5])
    ratio = np.exp(log_pi - log_mu)
    rho, c = np.minimum(rho_clip, ratio), lam * np.minimum(c_clip, ratio)

    def follows(row: int, env: int) -> bool:
        return row + 1 < len(r) and not s.boundary[row, env] and bool(s.valid[row + 1, env])

    vs = np.where(s.valid, v[:-1], 0.0)
    advantage = np.zeros_like(r)
    for start, env in np.argwhere(s.valid):
        t, weight = start, 1.0
        while True:
            delta = rho[t, env] * (r[t, env] + gamma * d[t, env] * v[t + 1, env] - v[t, env])
            vs[start, env] += weight * delta
            if not follows(t, env):
                break
            weight *= gamma * d[t, env] * c[t, env]
            t += 1
    for t, env in np.argwhere(s.valid):
        after = vs[t + 1, env] if follows(t, env) else v[t + 1, env]
        bootstrap = lam * after + (1 - lam) * v[t + 1, env]
        advantage[t, env] = r[t, env] + gamma * d[t, env] * bootstrap - v[t, env]
    return vs, advantage


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("lam", "rho", "c"), [(1.0, 1.0, 1.0), (LAM, RHO, C), (LAM, 10.0, 1.0), (0.0, 1.0, 1.0)])
def test_against_the_oracle(seed: int, lam: float, rho: float, c: float) -> None:
    s = random_steps(seed)
    assert not s.valid.all() and (s.boundary & (s.discount == 1)).any() and (s.discount == 0).any()
    got = jitted(*s, GAMMA, lam, rho, c)
    target, advantage = oracle(s, GAMMA, lam, rho, c)
    np.testing.assert_allclose(got.target, target, atol=5e-5)
    np.testing.assert_allclose(got.advantage, advantage, atol=5e-5)
    np.testing.assert_allclose(got.rho[s.valid], np.exp(s.log_pi - s.log_mu)[s.valid], rtol=1e-5)
    assert (np.asarray(got.rho)[~s.valid] == 1).all() and not np.asarray(got.target)[~s.valid].any()


@pytest.mark.parametrize(("lam", "rho"), [(1.0, 1.0), (LAM, 0.6)])
def test_against_rlax(lam: float, rho: float) -> None:
    rlax = pytest.importorskip("rlax")
    s = random_steps(3, ends=False)
    ours = jitted(*s, GAMMA, lam, rho, 1.0)
    for env in range(s.reward.shape[1]):
        v, ratio = s.value[:, env], np.exp(s.log_pi - s.log_mu)[:, env]
        theirs = rlax.vtrace_td_error_and_advantage(
            v[:-1], v[1:], s.reward[:, env], GAMMA * s.discount[:, env], ratio, lam, rho, rho
        )
        np.testing.assert_allclose(ours.target[:, env] - v[:-1], theirs.errors, atol=2e-5)
        weighted = np.minimum(rho, ratio) * ours.advantage[:, env]
        np.testing.assert_allclose(weighted, theirs.pg_advantage, atol=2e-5)


@pytest.mark.parametrize("lam", [0.0, LAM, 1.0])
def test_on_policy_it_is_gae_and_with_lambda_1_the_n_step_return(lam: float) -> None:
    s = random_steps(5)
    s = s._replace(log_pi=s.log_mu)
    got, gae = jitted(*s, GAMMA, lam, 1.0, 1.0), returns.gae(*s[2:], GAMMA, lam)
    np.testing.assert_allclose(got.advantage, gae, atol=2e-5)
    np.testing.assert_allclose(got.target, np.where(s.valid, gae + s.value[:-1], 0), atol=2e-5)
    if lam == 1.0:
        np.testing.assert_allclose(got.target, returns.n_step(*s[2:], GAMMA, len(s.reward)), atol=5e-5)


def test_an_action_that_pi_never_takes_teaches_nothing() -> None:
    s = random_steps(6, ends=False)
    got = jitted(*s._replace(log_pi=np.full_like(s.log_pi, -80.0)), GAMMA, LAM, 1.0, 1.0)
    np.testing.assert_allclose(got.target, s.value[:-1], atol=1e-6)
    assert (np.asarray(got.rho) < 1e-20).all()


def test_invalid_rows_have_no_effect_and_nothing_has_a_gradient() -> None:
    s = random_steps(2)
    hidden = ~s.valid & np.concatenate([np.zeros((1, s.valid.shape[1]), bool), (s.discount[:-1] == 0)])
    assert hidden.any()
    changed = s._replace(
        log_pi=np.where(s.valid, s.log_pi, np.nan).astype(np.float32),
        reward=np.where(s.valid, s.reward, 1e6).astype(np.float32),
        value=np.concatenate([np.where(hidden, 1e6, s.value[:-1]), s.value[-1:]]).astype(np.float32),
    )
    for before, after in zip(jitted(*s, GAMMA, LAM, RHO, C), jitted(*changed, GAMMA, LAM, RHO, C), strict=True):
        assert np.asarray(before).tobytes() == np.asarray(after).tobytes()
    grads = jax.grad(lambda v: vtrace(*s._replace(value=v), GAMMA, LAM).target.sum())(s.value)
    assert not np.asarray(grads).any()
