"""Statistics that workers share: each adds its unroll's, and only what is finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.core.algorithm import LearnerState
from shoal.core.program import TableSpec
from shoal.core.trajectory import Trajectory, as_trajectory
from shoal.core.weights import to_vector
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.shared_layout import SharedLayout
from shoal.learning.shared_statistics import SharedStatistics
from shoal.ops import statistics
from shoal.runtimes.inline import inline_ports

T, B = 8, 4


def make() -> tuple[Any, Any, SharedStatistics]:
    """(a blueprint, the table, a worker's view of it)."""
    algo = {"name": "a2c", "unroll": T, "normalise_obs": True}
    settings = {"algo": algo, "actors": 1, "envs": B, "net": {"hidden": (8,)}, "backend": "jax"}
    blueprint = make_blueprint(resolve("CartPole-v1", {**settings, "topology": "shared_params"}), None, None)
    layout = SharedLayout(blueprint.algorithm, True)
    spec = TableSpec(workers=("worker-0",), size=layout.statistics_size, consistency="lock")
    table = inline_ports({"statistics": spec}, ["worker-0"])["statistics"]
    return blueprint, table, SharedStatistics(table, layout)


def unroll(blueprint: Any, largest: float) -> Trajectory:
    slot = blueprint.record.empty()
    slot["obs"][...] = np.random.default_rng(0).uniform(-1, 1, slot["obs"].shape)
    slot["obs"][3, 1, 2] = largest
    slot["valid"][...] = True
    return as_trajectory(slot)


def seen(state: LearnerState, trajectory: Trajectory) -> LearnerState:
    """The state of a worker that has learnt from this unroll."""
    assert state.obs is not None
    return state._replace(obs=statistics.update_moments(state.obs, trajectory.obs[:-1], trajectory.valid))


def push(shared: SharedStatistics, state: LearnerState, trajectory: Trajectory) -> None:
    steps = shared.push(state, trajectory)
    op = next(steps)
    try:
        steps.send(op.now())
    except StopIteration:
        return
    raise AssertionError("one change of the table is one operation")


def test_statistics_that_are_not_finite_stay_out_of_the_table() -> None:
    blueprint, table, shared = make()
    calm, glaring = unroll(blueprint, 1.0), unroll(blueprint, 1e20)
    state = seen(shared.pull(blueprint.initial_state()), calm)
    push(shared, state, calm)
    before = table.pull()[1]
    np.testing.assert_array_equal(before, to_vector(state.obs))
    spoilt = seen(state, glaring)
    assert not np.isfinite(to_vector(spoilt.obs)).all()
    push(shared, spoilt, glaring)
    np.testing.assert_array_equal(table.pull()[1], before)
    push(shared, seen(spoilt, calm), calm)  # of a worker that has not pulled since
    after = table.pull()[1]
    assert np.isfinite(after).all() and after[0] == 2 * T * B
    np.testing.assert_allclose(after[1:5], before[1:5], rtol=1e-5)
