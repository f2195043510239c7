"""Waiting times follow what was measured."""

from __future__ import annotations

import random
import statistics

from shoal.federation.timeouts import AdaptiveTimeout, Patience, backoff


def test_median_and_deviations() -> None:
    timeout = AdaptiveTimeout(Patience(deviations=4.0, least=0.01, most=100.0))
    assert timeout.seconds == 100.0, "nothing is known yet"
    seen = [1.0, 1.2, 0.8, 5.0, 1.5]
    for seconds in seen:
        timeout.observe(seconds)
    middle = statistics.median(seen)
    spread = statistics.median(abs(x - middle) for x in seen)
    assert abs(timeout.seconds - (middle + 4.0 * spread)) < 1e-9


def test_a_miss_doubles_it_until_an_exchange_succeeds() -> None:
    timeout = AdaptiveTimeout(Patience(least=1.0, most=100.0))
    for _ in range(5):
        timeout.observe(0.01)
    assert timeout.seconds == 1.0
    timeout.missed()
    timeout.missed()
    assert timeout.seconds == 4.0
    timeout.observe(0.01)
    assert timeout.seconds == 1.0


def test_it_stays_within_its_bounds_and_forgets() -> None:
    timeout = AdaptiveTimeout(Patience(least=1.0, most=10.0, window=8))
    for _ in range(8):
        timeout.observe(1000.0)
    assert timeout.seconds == 10.0
    for _ in range(8):
        timeout.observe(0.001)
    assert timeout.seconds == 1.0


def test_pauses_grow_to_a_limit_and_differ() -> None:
    generator = random.Random(0)
    for attempt in range(100):
        pause = backoff(attempt, generator)
        limit = min(5.0, 0.25 * 2.0**attempt)
        assert limit / 2 <= pause <= limit
    assert len({backoff(10, generator) for _ in range(20)}) == 20
