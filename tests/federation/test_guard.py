"""Tokens, rates, sizes, strikes."""

from __future__ import annotations

import hmac

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.federation.guard import ANY, Bucket, Guard, Limits, Scale, Tokens, check_scale, scale_of
from shoal.federation.wire import Violation


def test_a_token_admits_its_child_alone() -> None:
    tokens = Tokens()
    pi, anyone = tokens.issue("pi"), tokens.issue()
    tokens.check(pi, "pi")
    tokens.check(anyone, "laptop")
    for secret, child in ((pi, "laptop"), ("x" * 43, "pi"), ("", "pi"), (pi + "x", "pi")):
        with pytest.raises(Violation, match="no valid token"):
            tokens.check(secret, child)
    with pytest.raises(Violation, match="this token is not valid here"):
        tokens.check("x" * 43, ANY)


def test_the_shared_token_does_not_admit_a_child_that_has_its_own() -> None:
    tokens = Tokens()
    anyone = tokens.issue()
    tokens.check(anyone, "pi")
    pi = tokens.issue("pi")
    tokens.check(pi, "pi")
    tokens.check(anyone, "laptop")
    tokens.check(anyone, ANY)
    with pytest.raises(Violation, match="'pi' has a token of its own; the shared one does not admit it"):
        tokens.check(anyone, "pi")
    tokens.revoke("pi")
    tokens.check(anyone, "pi")


def test_a_revoked_token_admits_nobody() -> None:
    tokens = Tokens()
    pi, laptop = tokens.issue("pi"), tokens.issue("laptop")
    assert tokens.revoke("pi") == 1 and tokens.revoke("pi") == 0
    with pytest.raises(Violation):
        tokens.check(pi, "pi")
    tokens.check(laptop, "laptop")
    again = tokens.issue("pi")
    tokens.check(again, "pi")


def test_tokens_survive_a_file_without_their_secrets() -> None:
    tokens = Tokens()
    pi, laptop = tokens.issue("pi"), tokens.issue("laptop")
    tokens.revoke("laptop")
    text = tokens.to_json()
    assert pi.encode() not in text
    back = Tokens.from_json(text)
    back.check(pi, "pi")
    with pytest.raises(Violation):
        back.check(laptop, "laptop")
    with pytest.raises(BadInput, match="not a token file"):
        Tokens.from_json(b"[1]")


def test_secrets_are_not_kept() -> None:
    tokens = Tokens()
    secret = tokens.issue()
    assert secret not in repr(tokens.tokens) and len(secret) >= 43
    assert tokens.tokens[0].child == ANY


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, by `compare_digest`, whichever fits."""
    tokens = Tokens()
    secrets = [tokens.issue(f"c{i}") for i in range(5)]
    calls = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: calls.append(1) or real(a, b))
    tokens.check(secrets[0], "c0")
    assert len(calls) == 5


def test_a_short_token_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 16"):
        Tokens().admit("secret")


def test_a_bucket_lets_bursts_through_and_then_the_rate() -> None:
    bucket = Bucket(10.0, 0.0)
    assert all(bucket.take(1.0, 0.0) == 0.0 for _ in range(20))
    assert bucket.take(1.0, 0.0) == pytest.approx(0.1)
    assert bucket.take(1.0, 0.1) == 0.0
    assert bucket.take(1.0, 0.1) > 0
    assert bucket.take(1000.0, 100.0) == 0.0, "what is larger than the bucket passes when that is full"
    assert bucket.take(1.0, 100.0) > 90


def test_the_scale_of_a_vector() -> None:
    for factor in (1e-30, 1.0, 1e30):
        vector = (np.array([3.0, -4.0]) * factor).astype(np.float32)
        scale = scale_of(vector)
        assert scale.largest == pytest.approx(4.0 * factor, rel=1e-5)
        assert scale.rms == pytest.approx(12.5**0.5 * factor, rel=1e-5)
    assert scale_of(np.zeros(3, np.float32)) == (0.0, 0.0) == scale_of(np.zeros(0, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 499, 999])
def test_one_bad_value_is_enough(bad: float, at: int) -> None:
    vector = np.ones(1000, np.float32)
    vector[at] = bad
    with pytest.raises(Violation, match="1 of 1000") as refused:
        scale_of(vector)
    assert refused.value.reason == "non-finite"


@pytest.mark.parametrize("size", [1e-2, 1.0, 30.0])
def test_a_million_fold_is_refused_and_a_tenfold_is_not(size: float) -> None:
    parent = np.random.default_rng(0).normal(scale=size, size=100).astype(np.float32)
    known = scale_of(parent)
    check_scale("weights", scale_of(parent * 10), known, 1e3)
    one = parent.copy()
    one[3] = 1e6 * np.abs(parent).max()
    for hostile in (parent * np.float32(1e6), one):
        with pytest.raises(Violation, match="at most"):
            check_scale("weights", scale_of(hostile), known, 1e3)


def test_weights_may_leave_zero() -> None:
    check_scale("weights", scale_of(np.full(5, 0.5, np.float32)), Scale(0.0, 0.0), 1e3)


def test_strikes_lead_to_quarantine_and_may_be_forgiven() -> None:
    guard = Guard(Limits(strikes=3), Tokens())
    secret = guard.tokens.issue()
    for _ in range(2):
        guard.count(Violation("non-finite", "x"), "pi")
    for reason in ("rate", "slow", "reference", "base"):
        guard.count(Violation(reason, "happens to anybody"), "pi")
    guard.admit(secret, "pi")
    guard.count(Violation("magnitude", "x"), "pi")
    with pytest.raises(Violation, match="quarantined after 3 strikes"):
        guard.admit(secret, "pi")
    guard.admit(secret, "laptop")
    guard.forgive("pi")
    guard.admit(secret, "pi")
    assert guard.refused == {"non-finite": 2, "rate": 1, "slow": 1, "reference": 1, "base": 1, "magnitude": 1}


def test_nobody_collects_strikes_for_another() -> None:
    guard = Guard(Limits(), Tokens())
    for _ in range(100):
        guard.count(Violation("malformed", "x"))
    assert not guard.strikes and guard.refused["malformed"] == 100


def test_the_rate_of_pushes() -> None:
    guard = Guard(Limits(pushes_per_second=5.0), Tokens())
    for _ in range(10):
        guard.pace("pi", 100, 0.0)
    with pytest.raises(Violation, match="5 pushes a second") as refused:
        guard.pace("pi", 100, 0.0)
    assert refused.value.retry_after == pytest.approx(0.2) and not refused.value.fatal
    guard.pace("laptop", 100, 0.0)
    guard.pace("pi", 100, 0.25)


@pytest.mark.parametrize("name", ["connections", "strikes", "hello_seconds", "ratio"])
def test_limits_must_be_above_zero(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is 0"):
        Limits(**{name: 0})
