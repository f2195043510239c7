"""CPU times of an actor's unroll, a learner's update and an exchange between learners, for the model in `learners`.

CPU time, because other work on the machine changes it little. Waiting and the wake-up of another process are not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from shoal.acting.collector import Collector
from shoal.core.ports import Op
from shoal.core.program import Context, Fault, GroupSpec
from shoal.core.trajectory import as_trajectory
from shoal.core.weights import layout_of
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning.joint_update import JointUpdate, Together, statistics_of
from shoal.learning.soundness import Watch
from shoal.learning.update import make_update
from shoal.roles.joint_learner import COUNTS, LAGS
from shoal.runtimes.groups import MemoryGroup
from shoal.runtimes.memory import Place
from shoal.studies.learners import Times

METRICS = 24  # numbers that learners exchange after an update, besides counts and lags: about as many as A2C reports
WARM = 3  # calls before the first that counts


class _Alone:
    """A group of one learner that remembers the sizes of the vectors it was given."""

    members = 1

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def mean(self, member: int, vector: np.ndarray) -> Op[np.ndarray]:
        self.sizes.append(vector.size)
        return Op(lambda: vector)


def measure_times(env: str, settings: Mapping[str, Any], learners: Iterable[int], repeats: int) -> Times:
    """Times of one unroll, one update on it, and its exchange between these numbers of learners."""
    chosen = {"topology": "actor_learner", "topology.batch_unrolls": 1, "actors": 1, "steps": 10_000, **settings}
    plan = resolve(env, chosen)
    blueprint = make_blueprint(plan, None, None)
    context = Context(name="actor-0", fault=_raise)
    collector, slot = Collector(blueprint, 0, context), blueprint.record.empty()
    state = blueprint.initial_state()
    actor = jax.device_put(blueprint.algorithm.actor_state(state))
    trajectories = [as_trajectory(slot)]
    unroll = _timed(lambda: collector.collect(actor, 0, 0, slot), repeats)
    single, group = make_update(blueprint, Watch(context)), _Alone()
    joint = JointUpdate(blueprint, 0, Together(), group, Watch(context))
    alone = _timed(lambda: single(state, None, trajectories, 0, 0.0), repeats)
    together = _timed(lambda: _finish(joint(state, None, trajectories, 0, 0.0)), repeats)
    sizes = group.sizes[: len(group.sizes) // (repeats + WARM)]
    words = layout_of(statistics_of(state)).size  # gathered: one part for each learner
    beside = (1, METRICS + len(COUNTS) + LAGS)  # whether all have data, and the metrics
    exchange = {
        n: sum(_exchange(n, size * n if size == words else size, repeats) for size in (*sizes, *beside))
        for n in learners
        if n > 1
    }
    spread = float(np.mean([np.std(np.log(took)) for took in (unroll, alone, together)]))
    medians = [float(np.median(took)) for took in (unroll, alone, together)]
    return Times(medians[0], medians[1], medians[2], exchange, spread)


def _timed(call: Callable[[], Any], repeats: int) -> np.ndarray:
    ready: Any = jax.block_until_ready
    for _ in range(WARM):
        ready(call())
    took = []
    for _ in range(repeats):
        began = time.process_time()
        ready(call())
        took.append(time.process_time() - began)
    return np.asarray(took)


def _finish(steps: Generator[Op[Any], Any, Any]) -> Any:
    """Run a generator whose operations never have to wait."""
    answer = None
    while True:
        try:
            answer = steps.send(answer).attempt()
        except StopIteration as end:
            return end.value


def _exchange(members: int, size: int, repeats: int) -> float:
    """One member's part of a mean over vectors of this size."""
    spec = GroupSpec(members=members, size=size)
    group = MemoryGroup(spec, bytearray(MemoryGroup.nbytes(spec)), 0, Place(None, {}))
    vector = np.ones(size, np.float32)

    def round_() -> None:
        for op in [group.mean(member, vector) for member in range(members)]:
            op.attempt()

    return float(np.median(_timed(round_, repeats))) / members


def _raise(fault: Fault) -> None:
    raise RuntimeError(fault.detail)
