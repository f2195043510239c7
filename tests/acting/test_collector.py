"""Collectors: unrolls join, and a snapshot is where one goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.acting.collector import Collector
from shoal.core.program import Context
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint

T, B = 6, 2


@pytest.fixture(scope="module")
def blueprint() -> Any:
    settings = {
        "backend": "jax",
        "actors": 1,
        "envs": B,
        "algo": {"name": "a2c", "unroll": T},
        "net": {"hidden": (8,), "cell": "gru", "cell_size": 4},
        "runtime": "inline",
        "topology": "sequential",
        "steps": 10 * T * B,
    }
    return make_blueprint(resolve("CartPole-v1", settings), None, None)


def test_a_collector_goes_on_where_its_snapshot_was_taken(blueprint: Any) -> None:
    context = Context(name="actor-0", fault=lambda fault: pytest.fail(fault.detail))
    actor = blueprint.algorithm.actor_state(blueprint.initial_state())
    one, other, slot, again = (
        Collector(blueprint, 0, context),
        Collector(blueprint, 0, context),
        *(blueprint.record.empty() for _ in "ab"),
    )
    one.collect(actor, 0, 0, slot)
    assert slot["first"][0].all() and slot["valid"].all() and not slot["carry/h"].any()
    other.restore(one.snapshot())
    one.collect(actor, 1, 1, slot)
    other.collect(actor, 1, 1, again)
    assert slot["carry/h"].any() and (slot["version"] == 1).all() and not slot["first"][0].any()
    for name in slot:
        if name != "clock":
            np.testing.assert_array_equal(slot[name], again[name], err_msg=name)


def test_unrolls_join_without_a_gap(blueprint: Any) -> None:
    context = Context(name="actor-0", fault=lambda fault: pytest.fail(fault.detail))
    actor = blueprint.algorithm.actor_state(blueprint.initial_state())
    collector, slot, following = Collector(blueprint, 0, context), blueprint.record.empty(), blueprint.record.empty()
    collector.collect(actor, 0, 0, slot)
    collector.collect(actor, 0, 1, following)
    np.testing.assert_array_equal(slot["obs"][-1], following["obs"][0])
    np.testing.assert_array_equal(slot["first"][-1], following["first"][0])
