"""Distributions against enumeration and SciPy, their samples against their probabilities."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from shoal.core.spec import ActionSpec, Binary, Categorical, Continuous
from shoal.ops import distributions as dist

BOX = Continuous((-1.0, -2.0), (1.0, 2.0))
SPECS = {
    "discrete": ActionSpec((Categorical((5,)),), scalar=True),
    "multi_discrete": ActionSpec((Categorical((3, 3)),)),
    "ragged": ActionSpec((Categorical((2, 5, 3)),)),
    "binary": ActionSpec((Binary(3),)),
    "integers": ActionSpec((Categorical((3,)), Binary(2), Categorical((2, 4)))),
    "box": ActionSpec((BOX,)),
    "mixed": ActionSpec((Categorical((4,)), BOX, Binary(2), Categorical((2, 3)), Continuous((-1.0,), (1.0,)))),
}
sample, mode, log_prob, entropy, kl = (
    jax.jit(f, static_argnums=0) for f in (dist.sample, dist.mode, dist.log_prob, dist.entropy, dist.kl)
)
MANY = 20_000  # always as many, so that each space compiles once
FINITE = [name for name, spec in SPECS.items() if spec.dtype == np.int32]


def params_of(spec: ActionSpec, seed: int, *leading: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(*leading, dist.parameter_size(spec))).astype(np.float32)


def every_action(spec: ActionSpec) -> np.ndarray:
    sizes = [s for part in spec.parts for s in (part.sizes if isinstance(part, Categorical) else [2] * part.width)]
    actions = np.array(list(product(*map(range, sizes))), np.int32)
    return actions[:, 0] if spec.scalar else actions


def oracle_log_prob(spec: ActionSpec, params: np.ndarray, action: np.ndarray) -> float:
    """One action, entry by entry, in float64."""
    params, total, at, column = params.astype(np.float64), 0.0, 0, 0
    action = np.atleast_1d(action)
    for part in spec.parts:
        if isinstance(part, Categorical):
            for size in part.sizes:
                logits = params[at : at + size]
                total += logits[int(action[column])] - np.log(np.exp(logits).sum())
                at, column = at + size, column + 1
        elif isinstance(part, Binary):
            for _ in range(part.size):
                one = 1 / (1 + np.exp(-params[at]))
                total += np.log(one if action[column] else 1 - one)
                at, column = at + 1, column + 1
        else:
            n = part.width
            for i in range(n):
                sigma = np.exp(np.clip(params[at + n + i], -5, 2))
                total += scipy.stats.norm.logpdf(action[column + i], params[at + i], sigma)
            at, column = at + 2 * n, column + n
    return total


def draw(spec: ActionSpec, params: np.ndarray, explore: float | np.ndarray = 1.0) -> np.ndarray:
    params = np.broadcast_to(params, (MANY, params.shape[-1]))
    return np.asarray(sample(spec, params, jax.random.key(0), np.broadcast_to(np.float32(explore), (MANY,))))


@pytest.mark.parametrize("name", SPECS)
def test_log_prob_against_the_oracle(name: str) -> None:
    spec = SPECS[name]
    params = params_of(spec, 0, 4, 3)
    action = draw(spec, params[0, 0])[:12].reshape(4, 3, *spec.shape)
    assert action.dtype == spec.dtype
    oracle = [[oracle_log_prob(spec, params[i, j], action[i, j]) for j in range(3)] for i in range(4)]
    np.testing.assert_allclose(log_prob(spec, params, action), oracle, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FINITE)
def test_enumeration(name: str) -> None:
    spec = SPECS[name]
    actions = every_action(spec)
    p, q = params_of(spec, 1), params_of(spec, 2)
    log_p, log_q = (
        np.asarray(log_prob(spec, np.broadcast_to(x, (len(actions), len(x))), actions), np.float64) for x in (p, q)
    )
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-5)
    assert float(entropy(spec, p)) == pytest.approx(-(np.exp(log_p) * log_p).sum(), abs=1e-4)
    assert float(kl(spec, p, q)) == pytest.approx((np.exp(log_p) * (log_p - log_q)).sum(), abs=1e-4)
    np.testing.assert_array_equal(mode(spec, p), actions[log_p.argmax()])


@pytest.mark.parametrize("name", FINITE)
def test_samples_have_the_right_frequencies(name: str) -> None:
    spec = SPECS[name]
    params, actions = params_of(spec, 3), every_action(spec)
    drawn = draw(spec, params)
    expected = np.exp(np.array([oracle_log_prob(spec, params, action) for action in actions])) * len(drawn)
    counts = np.array([(drawn == a).reshape(len(drawn), -1).all(-1).sum() for a in actions])
    assert counts.sum() == len(drawn)
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum() + 1e-9) for x in (counts, expected))
    assert scipy.stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-3


def test_samples_of_a_box_are_normal_and_unclipped() -> None:
    params = np.array([0.4, -1.5, 0.1, -0.7], np.float32)
    drawn = draw(SPECS["box"], params)
    for i in range(2):
        normal = scipy.stats.norm(params[i], np.exp(params[2 + i]))
        assert scipy.stats.kstest(drawn[:, i], normal.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03
    assert (np.abs(drawn) > 1).any()


@pytest.mark.parametrize("name", ["box", "mixed"])
def test_entropy_and_kl_agree_with_their_expectations(name: str) -> None:
    spec = SPECS[name]
    p, q = params_of(spec, 4), params_of(spec, 5)
    drawn = draw(spec, p)
    log_p, log_q = (
        np.asarray(log_prob(spec, np.broadcast_to(x, (len(drawn), len(x))), drawn), np.float64) for x in (p, q)
    )
    for terms, exact in ((-log_p, entropy(spec, p)), (log_p - log_q, kl(spec, p, q))):
        assert abs(terms.mean() - float(exact)) < 5 * terms.std() / np.sqrt(len(terms))


def test_entropy_of_a_box_against_scipy() -> None:
    params = np.array([0.4, -1.5, 0.1, -0.7], np.float32)
    exact = sum(scipy.stats.norm(0, np.exp(s)).entropy() for s in params[2:].astype(float))
    assert float(entropy(SPECS["box"], params)) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_kl_to_itself_is_zero_and_to_others_positive(name: str) -> None:
    spec = SPECS[name]
    p, q = params_of(spec, 6, 50), params_of(spec, 7, 50)
    np.testing.assert_allclose(kl(spec, p, p), 0, atol=1e-6)
    assert (np.asarray(kl(spec, p, q)) > 0).all()


@pytest.mark.parametrize("name", SPECS)
def test_explore_zero_is_the_mode_environment_by_environment(name: str) -> None:
    spec = SPECS[name]
    params = params_of(spec, 8, MANY)
    drawn, greedy = draw(spec, params, np.tile([0.0, 1.0], MANY // 2)), np.asarray(mode(spec, params))
    assert greedy.dtype == drawn.dtype == spec.dtype and greedy.shape == drawn.shape
    np.testing.assert_array_equal(drawn[::2], greedy[::2])
    assert (drawn[1::2] != greedy[1::2]).any()


def test_explore_may_be_a_number_and_leading_axes_any() -> None:
    spec = SPECS["integers"]
    params = params_of(spec, 8, 2, 3)
    drawn = sample(spec, params, jax.random.key(1), 0.0)
    assert drawn.shape == (2, 3, *spec.shape)
    np.testing.assert_array_equal(drawn, mode(spec, params))


def test_half_the_noise_is_half_the_spread() -> None:
    params = np.zeros(4, np.float32)
    half, whole = draw(SPECS["box"], params, 0.5), draw(SPECS["box"], params)
    np.testing.assert_allclose(half, 0.5 * whole, rtol=1e-6)


def test_log_std_is_held_in_its_range() -> None:
    wide, widest = np.array([0, 0, 9, -9], np.float32), np.array([0, 0, 2, -5], np.float32)
    action = np.array([1.0, 0.01], np.float32)
    for f in (lambda p: log_prob(SPECS["box"], p, action), lambda p: entropy(SPECS["box"], p)):
        assert float(f(wide)) == float(f(widest))


def test_integers_in_a_mixed_action_are_whole_and_in_range() -> None:
    spec = SPECS["mixed"]
    drawn = draw(spec, params_of(spec, 9))
    assert drawn.dtype == np.float32 and drawn.shape == (MANY, spec.width)
    for column, size in ((0, 4), (3, 2), (4, 2), (5, 2), (6, 3)):
        assert set(np.unique(drawn[:, column])) == set(range(size))


@pytest.mark.parametrize("name", SPECS)
def test_gradients_by_finite_differences(name: str, gradient_agrees_with_differences) -> None:
    spec = SPECS[name]
    p, q = (params_of(spec, seed, 2).astype(np.float64) for seed in (10, 11))
    action = draw(spec, params_of(spec, 10))[:2]
    weight = jnp.array([1.0, -0.5])  # a sum alone would hide rows that are mixed up

    def total(p, q):
        return weight @ (dist.log_prob(spec, p, action) + 0.3 * dist.entropy(spec, p) + 0.7 * dist.kl(spec, p, q))

    gradient_agrees_with_differences(total, p, q)


def test_gradients_stay_finite_at_extreme_logits() -> None:
    for name in ("discrete", "ragged", "binary"):
        spec = SPECS[name]
        params = np.full((1, dist.parameter_size(spec)), -200.0, np.float32)
        params[0, 0] = 200.0
        action = np.zeros((1, *spec.shape), np.int32)
        for f in (lambda p: dist.log_prob(spec, p, action), lambda p: dist.entropy(spec, p)):  # noqa: B023
            assert np.isfinite(jax.jit(jax.grad(lambda p: f(p).sum()))(params)).all()  # noqa: B023


def test_a_wrong_shape_is_refused() -> None:
    spec = SPECS["discrete"]
    with pytest.raises(AssertionError):
        dist.log_prob(spec, np.zeros((3, 5), np.float32), np.zeros((3, 1), np.int32))
    with pytest.raises(AssertionError):
        dist.entropy(spec, np.zeros((3, 4), np.float32))
