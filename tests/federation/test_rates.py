"""Rates of children, and their order in the panel and the metrics."""

from __future__ import annotations

import numpy as np
import pytest
from parents import connected, make_hub

from shoal.federation import state
from shoal.federation.courier import Update
from shoal.federation.ledger import SHOWN, Ledger
from shoal.federation.rates import MOST, SECONDS, Rates


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rates = Rates()
    assert rates.of("one", 0.0) == 0.0
    for second in range(61):
        rates.add("one", 100 if second < 30 else 500, float(second))
        assert rates.of("one", float(second)) == pytest.approx(0 if not second else 100, abs=401)
    assert rates.of("one", 60.0) == rates.of("one") == 500.0
    assert rates.of("one", 60.0 + SECONDS - 1.0) == 500.0
    assert rates.of("one", 61.0 + SECONDS) == 0.0, "it has stopped"
    for index in range(10 * MOST):
        rates.add("two", 7, index / 1000)
    assert rates.of("two") == pytest.approx(7000.0)


def test_the_status_has_the_rate_of_each_child() -> None:
    hub = make_hub()
    one = connected(hub, "one")
    connected(hub, "two")
    for second in range(4):
        one.now = float(second)
        one.courier.answered(one.request(*one.courier.push(Update(np.ones(8, np.float32), 0, steps=250))))  # type: ignore[arg-type]
    rates = {child["child"]: child["steps_per_s"] for child in hub.report(at=3.0)["children"]}
    assert rates == {"one": 250.0, "two": 0.0}
    assert {child["steps_per_s"] for child in hub.report(at=100.0)["children"]} == {0.0}


def test_connected_children_come_first_and_then_those_with_the_most_pushes() -> None:
    now = state.start(np.zeros(2))
    for number in range(2 * SHOWN):
        now = state.left(state.joined(now, f"a{number:02}"), f"a{number:02}")
    for name, pushes in (("x", 3), ("y", 7), ("z", 3)):
        now = state.joined(now, name)
        now = now._replace(children={**now.children, name: now.children[name]._replace(pushes=pushes)})
    ledger = Ledger()
    assert [child.name for child in ledger.children(now, 0.0)][:4] == ["y", "x", "z", "a00"]
    shown = {
        name.split("/")[1] for name in ledger.metrics(now, 0.0, seconds=1.0, rejected=0) if name.startswith("child/")
    }
    assert {"x", "y", "z"} <= shown and len(shown) == SHOWN
