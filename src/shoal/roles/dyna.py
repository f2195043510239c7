"""The learning side of `dyna`: learns from real unrolls as DQN does, and from imagined rows at a controlled ratio.

Real rows are in a pool that the planners read; imagined rows are in a memory of the learner's own. The two are never mixed in
memory, and only steps and episodes of real unrolls are counted.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from shoal.algos.dyna_q import DynaQ
from shoal.core.algorithm import ActorState, Drawn, LearnerState
from shoal.core.blueprint import Blueprint
from shoal.core.keys import LEARNING, PLANNING, key_data
from shoal.core.ports import Board, Op, Slot, Stream, Table
from shoal.core.program import Context, Ports, Report, Snapshot
from shoal.core.telemetry import metric_name
from shoal.core.trajectory import Trajectory, Transitions
from shoal.core.weights import to_vector
from shoal.learning.replay_update import (
    Batch,
    ReplayMemory,
    ReplayUpdate,
    compiled_replay,
    gradients_a_call,
    learn,
    row_record,
)
from shoal.learning.soundness import SOUND, Watch, seen_in
from shoal.process.compile_ahead import compile_ahead
from shoal.replay import Rings, make_sampler
from shoal.roles.learner import OneOfEach
from shoal.roles.planner import PLAN_METRICS, model_layout


class ImaginedMemory:
    """The newest imagined rows. With sweeping, they are drawn in proportion to their error, new ones first."""

    def __init__(self, blueprint: Blueprint, algorithm: DynaQ) -> None:
        config = algorithm.config
        kind: Any = "prioritized" if config.sweeping else "uniform"
        self._replay = algorithm.experience._replace(kind=kind, sampler="seeded", capacity=config.imagined)
        self._seed, self._sweeping = blueprint.seed, config.sweeping
        self._rows = Rings.over(Rings.record(row_record(blueprint), 1, config.imagined).empty())
        self._sampler = make_sampler(self._replay, 1, config.imagined)

    def insert(self, slot: Slot) -> int:
        """Keep the valid rows of a planner's block. Returns their number."""
        valid, first = slot["valid"], int(self._rows.counts()[0])
        kept = {name: slot[f"rows/{name}"][valid] for name in Transitions._fields}
        self._rows.write(0, kept)
        new = np.arange(first, first + int(valid.sum()))[-self._rows.slots :]
        self._sampler.note(new % self._rows.slots)
        return int(valid.sum())

    def size(self) -> int:
        return int(self._rows.sizes()[0])

    def ready(self) -> bool:
        return self.size() >= self._replay.batch

    def sample(self, count: int, batch: int, version: int, call: int) -> Batch:
        """`count` minibatches of `batch` rows."""
        path = (PLANNING, LEARNING, version, call)
        rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=path))
        # No importance weights: imagined rows are chosen on purpose, so there is no sampling bias to correct.
        picked = self._sampler.draw(rng, self._rows.sizes(), count, batch, 0.0)
        rows, _ = self._rows.read(picked.indices, self._rows.counts())
        return Batch(Drawn(Transitions(**rows), np.ones_like(picked.weights)), picked.indices)

    def feedback(self, indices: np.ndarray, td: np.ndarray) -> None:
        if self._sweeping:
            self._sampler.feedback(indices, td)


class DynaUpdate:
    """A real round, then imagined gradients: `ratio` for each real one, fewer if the model errs."""

    def __init__(self, blueprint: Blueprint, algorithm: DynaQ, ports: Ports, context: Context) -> None:
        self._blueprint, self._algorithm = blueprint, algorithm
        self._watch = Watch(context)  # of imagined gradients; real ones have another
        self._blocks: Stream = ports["imagined"]
        # Only the learner writes there, so it saves the rows together with their priorities.
        self._real = ReplayUpdate(blueprint, Watch(context), ReplayMemory(blueprint, pool=ports["real"], keeps=True))
        self.imagined = ImaginedMemory(blueprint, algorithm)
        self._learn = compiled_replay(blueprint.algorithm).learn
        self._count = gradients_a_call(blueprint)
        self._mixed = round(algorithm.config.mix * algorithm.config.batch_size)  # real rows among the imagined ones
        self._owed = 0.0
        self._plan_metrics: dict[str, float] = {}  # the planners' newest metrics
        self._rows = 0  # valid imagined rows since the last update
        self._unread: list[np.ndarray] = []  # the planners' metrics since the last update
        self._gradients = 0

    def compile(self, state: LearnerState, acted: Any, lanes: int) -> None:
        self._real.compile(state, acted, lanes)
        shape = (self._count, self._algorithm.config.batch_size)
        rows = {f.name: np.zeros((*shape, *f.shape), f.dtype) for f in row_record(self._blueprint).fields}
        drawn = Drawn(Transitions(**rows), np.ones(shape, np.float32))
        self._learn = compile_ahead(learn, self._blueprint.algorithm, state, drawn, key_data(0))

    def __call__(
        self, state: LearnerState, acted: Any, trajectories: Sequence[Trajectory], version: int, progress: float
    ) -> tuple[LearnerState, ActorState, dict[str, float]]:
        before = int(state.step)
        state, actor, metrics = self._real(state, acted, trajectories, version, progress)
        rows = self._news()
        ratio = self._algorithm.ratio(progress, self.error) if self._plan_metrics else 0.0
        self._owed += (int(state.step) - before) * ratio
        calls = int(self._owed // self._count) if self.imagined.ready() else 0
        self._owed -= calls * self._count
        if not self.imagined.ready():
            self._owed = 0.0  # nothing to learn from yet: missed gradients are not made up later
        losses: dict[str, float] = {}
        for call in range(calls):
            key = key_data(self._blueprint.seed, PLANNING, LEARNING, version, call)
            found = self._imagined_gradients(state, version, call, progress, key)
            if found is None:
                calls = call
                break
            state, actor, raw = found
            losses = {metric_name(name): float(value) for name, value in raw.items()}
        self._gradients += calls * self._count
        error = {"model/error": self.error} if self._plan_metrics else {}
        imagined = {
            "imagined/ratio": ratio,
            "imagined/rows": float(rows),
            "imagined/gradients": float(self._gradients),
            **({"imagined/td": losses["loss/td"]} if losses else {}),
        }
        return state, actor, {**metrics, **self._plan_metrics, **error, **imagined}

    def _imagined_gradients(
        self, state: LearnerState, version: int, call: int, progress: float, key: np.ndarray
    ) -> tuple[LearnerState, ActorState, dict[str, Any]] | None:
        """One call, on minibatches whose share `mix` is real and the rest imagined; None if the result is not finite."""
        real, memory = self._mixed, self._real.memory
        batch = self.imagined.sample(self._count, self._algorithm.config.batch_size - real, version, call)
        drawn = batch.drawn
        if real:
            beside = memory.sample(self._count, progress, version, PLANNING, call, batch=real)
            drawn = jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), beside.drawn, drawn)
        after, actor, losses, errors = self._learn(state, drawn, key)
        if not losses.pop(SOUND):
            self._watch.bad(seen_in(self._blueprint.algorithm, state, losses))
            return None
        self._watch.good()
        td = np.asarray(errors)
        self.imagined.feedback(batch.indices, td[:, real:])
        if real and self._algorithm.config.replay == "prioritized":
            memory.feedback(beside.indices, td[:, :real])
        return after, actor, losses

    @property
    def error(self) -> float:
        """The model's error on held-out real rows: the largest of the errors of state, reward and end."""
        return max(self._plan_metrics[name] for name in PLAN_METRICS[:3])

    def take_in(self, lane: int, block: Slot) -> None:
        """Keep a planner's imagined rows and its metrics."""
        self._rows += self.imagined.insert(block)
        self._unread.append(block["metrics"].copy())
        self._blocks.release(lane)

    def _news(self) -> int:
        """Take the blocks that are ready. Returns the number of valid rows since the last update."""
        while (taken := self._blocks.take_any(range(self._blocks.lanes)).now()) is not None:
            self.take_in(*taken)
        known = [metrics for metrics in self._unread if not np.isnan(metrics).any()]
        if known:
            self._plan_metrics = dict(zip(PLAN_METRICS, np.mean(known, axis=0).tolist(), strict=True))
        rows, self._rows, self._unread = self._rows, 0, []
        return rows

    def snapshots(self) -> Snapshot:
        return self._real.snapshots()


class PlannedUnrolls(OneOfEach):
    """The feed of `dyna`: one unroll of the real actor, and the blocks that planners have imagined meanwhile.

    It waits for `rounds` blocks per update. The planners' current model becomes part of the state that is reported and saved.
    """

    update: DynaUpdate

    def __init__(self, algorithm: DynaQ, rounds: float, blueprint: Blueprint, ports: Ports, context: Context) -> None:
        super().__init__(blueprint, ports, context)
        self._algorithm, self._rounds = algorithm, rounds
        self._scales: Board = ports["scales"]
        self._model: Table = ports["model"]
        self._blocks: Stream = ports["imagined"]
        self.update = DynaUpdate(blueprint, algorithm, ports, context)
        self._model.put(to_vector(blueprint.initial_state().extra["model"]))

    def batch(self, version: int) -> Generator[Op[Any], Any, Sequence[Slot] | None]:
        slots = yield from super().batch(version)
        for _ in range(self._due(version)):
            lane, block = yield from self._blocks.take_any(range(self._blocks.lanes))
            self.update.take_in(lane, block)
        return slots

    def _due(self, version: int) -> int:
        """The number of blocks to wait for at this update, so that it averages `rounds` per update."""
        return int((version + 1) * self._rounds) - int(version * self._rounds)

    def announce(self, version: int, state: LearnerState) -> None:
        """Publish the scales before the weights, so that a reader of the weights finds the units of their rows."""
        self._scales.publish(version, to_vector(self._algorithm.scales(state)))

    def complete(self, report: Report) -> Report:
        report = super().complete(report)
        model = jax.device_put(model_layout(self._algorithm).tree(self._model.pull()[1]))
        state: LearnerState = report.state
        return replace(report, state=state._replace(extra={**state.extra, "model": model}))
