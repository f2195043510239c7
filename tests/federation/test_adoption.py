"""What a child makes of the parent's weights."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.federation.adoption import adopt, adopts_now, contribution

RNG = np.random.default_rng(0)
PUSHED, PARENT = (RNG.normal(size=20).astype(np.float32) for _ in range(2))


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_without_overlap_it_is_the_published_rule(beta: float) -> None:
    slow = [(1 - beta) * float(c) + beta * float(p) for c, p in zip(PUSHED, PARENT, strict=True)]
    np.testing.assert_allclose(adopt(PUSHED, PUSHED.copy(), PARENT, beta), slow, rtol=1e-5, atol=1e-6)


def test_its_ends_are_exact() -> None:
    assert adopt(PUSHED, PUSHED, PARENT, 0.0).tobytes() == PUSHED.tobytes()
    assert adopt(PUSHED, PUSHED.copy(), PARENT, 1.0).tobytes() == PARENT.tobytes()
    assert adopt(PUSHED, PUSHED, PUSHED, 0.3).tobytes() == PUSHED.tobytes()


def test_what_was_learnt_on_the_way_is_kept() -> None:
    learnt = np.full(20, 0.25, np.float32)
    np.testing.assert_allclose(adopt(PUSHED + learnt, PUSHED, PARENT, 1.0), PARENT + learnt, rtol=1e-5, atol=1e-6)
    assert adopt(PUSHED + learnt, PUSHED, PARENT, 0.0).tobytes() == (PUSHED + learnt).tobytes()


def test_rounds_are_adopted_when_they_are_new() -> None:
    assert adopts_now("always", 3, 3) and adopts_now("newer", 4, 3) and not adopts_now("newer", 3, 3)


def test_what_is_pushed() -> None:
    assert contribution("weights", PUSHED, PARENT) is PUSHED
    np.testing.assert_array_equal(contribution("delta", PUSHED, PARENT), PUSHED - PARENT)
