"""The planner: trains the shared world model on real rows, and imagines rows that might follow them.

A planner waits only for a free slot for its imagined rows, so the learner sets its pace.
"""

from __future__ import annotations

import time
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from shoal.algos.dyna_q import CANDIDATES, DynaQ
from shoal.core.blueprint import Blueprint
from shoal.core.keys import PLANNING, key_data, resumed_at
from shoal.core.ports import Board, Pool, Slot, Stream, Table
from shoal.core.program import Context, Ports, Snapshot, Steps
from shoal.core.record import Field, Record
from shoal.core.trajectory import Array, Transitions
from shoal.core.weights import Layout, layout_of, to_vector
from shoal.learning.replay_update import row_record
from shoal.learning.soundness import Watch, is_sound, weight_norm
from shoal.nets.world_model import Scales

if TYPE_CHECKING:
    from collections.abc import Generator

VALIDATION_ROWS = 512  # held-out rows of one validation
# Metrics that a planner sends with each block; the model's errors come first.
PLAN_METRICS = (
    "model/state",
    "model/reward",
    "model/done",
    "model/loss",
    "model/disagreement",
    "time/plan",
    "time/lock",
)


class CompiledPlanner(NamedTuple):
    train: Any  # (params, moments, scales, rows [steps, members, batch, ...]) -> (params, moments, loss)
    judge: Any  # (params, scales, rows [N, ...]) -> ModelErrors
    imagine: Any  # (params, scales, actor, candidates, key data) -> Imagined


@cache
def compiled_planner(algorithm: DynaQ, explorer: bool) -> CompiledPlanner:
    """The same functions for equal algorithms."""

    def imagine(params: Any, scales: Scales, actor: Any, candidates: Transitions, key: Array) -> Any:
        return algorithm.imagine(params, scales, actor, candidates, jax.random.wrap_key_data(key), explorer)

    return CompiledPlanner(jax.jit(algorithm.train_model), jax.jit(algorithm.model_errors), jax.jit(imagine))


@cache
def model_layout(algorithm: DynaQ) -> Layout:
    """Layout of the world model's weights as one vector."""
    return layout_of(jax.eval_shape(partial(algorithm.model.init, jax.random.key(0))))


@cache
def scales_layout(algorithm: DynaQ) -> Layout:
    n = algorithm.model.inputs
    width, one = np.zeros(n, np.float32), np.zeros((), np.float32)
    return layout_of(Scales(width, width, width, width, one, one, one, width, width))


def block_record(blueprint: Blueprint, algorithm: DynaQ) -> Record:
    """Record of one round of imagination: rows, which of them are valid, and metrics."""
    rows = algorithm.config.horizon * algorithm.config.starts
    fields = [Field(f"rows/{f.name}", (rows, *f.shape), f.dtype) for f in row_record(blueprint).fields]
    return Record((*fields, Field("valid", (rows,), "bool"), Field("metrics", (len(PLAN_METRICS),), "float64")))


class Split(NamedTuple):
    """Split of a ring's rows into training and held-out ones, by slot number, so that a slot never changes sides."""

    every: int  # one slot in this many is held out

    def training(self, rng: np.random.Generator, size: int, shape: tuple[int, ...]) -> np.ndarray:
        """Training slots, drawn uniformly from `size` filled ones."""
        drawn = rng.integers(0, size - self._held(size), shape)
        return drawn + drawn // (self.every - 1) + 1

    def held_out(self, rng: np.random.Generator, size: int, shape: tuple[int, ...]) -> np.ndarray:
        """Held-out slots, drawn uniformly from `size` filled ones."""
        return rng.integers(0, self._held(size), shape) * self.every

    def _held(self, size: int) -> int:
        return -(-size // self.every)


class Planner:
    """A planner. In each round it trains the model, validates it, imagines rows, and hands them over as one block."""

    def __init__(
        self, blueprint: Blueprint, algorithm: DynaQ, lane: int, explorer: bool, ports: Ports, context: Context
    ) -> None:
        self._blueprint, self._algorithm, self._lane, self._context = blueprint, algorithm, lane, context
        self._real: Pool = ports["real"]
        self._model: Table = ports["model"]
        self._scales: Board = ports["scales"]
        self._weights: Board = ports["weights"]
        self._blocks: Stream = ports["imagined"]
        self._functions = compiled_planner(algorithm, explorer)
        self._split = Split(round(1 / algorithm.config.holdout))
        self._fields = row_record(blueprint).fields
        self._moments: Any = None
        self._watch = Watch(context)
        self._locked = 0.0
        self._warm()

    def _warm(self) -> None:
        """Compile everything before the first real rows arrive."""
        config, layout = self._algorithm.config, model_layout(self._algorithm)
        params = jax.device_put(layout.tree(np.zeros(layout.size, np.float32)))
        self._moments = jax.jit(self._algorithm.model_optimiser.init)(params)
        size = scales_layout(self._algorithm).size
        scales = scales_layout(self._algorithm).tree(np.ones(size, np.float32))
        actor = jax.device_put(self._blueprint.layout.tree(np.zeros(self._blueprint.layout.size, np.float32)))

        def rows(*shape: int) -> Transitions:
            return Transitions(**{f.name: np.zeros((*shape, *f.shape), f.dtype) for f in self._fields})

        self._functions.train(
            params, self._moments, scales, rows(config.model_gradients, config.members, config.model_batch)
        )
        self._functions.judge(params, scales, rows(VALIDATION_ROWS))
        self._functions.imagine(params, scales, actor, rows(CANDIDATES * config.starts), key_data(0))

    def run(self) -> Steps:
        # A successor continues where its lane stands.
        for number in count(self._blocks.pushed(self._lane)):
            slot = yield from self._blocks.claim(self._lane)
            slot["valid"][...] = False
            slot["metrics"][...] = np.nan
            if self._ready():
                yield from self._round(number, slot)
            self._blocks.push(self._lane)
            self._context.beat()

    def _ready(self) -> bool:
        """Whether there are enough real rows to learn from, and a policy to imagine with."""
        replay = self._algorithm.experience
        enough = max(replay.warmup, replay.batch, 2 * self._split.every)
        return int(self._real.sizes()[0]) >= enough and self._weights.latest()[0] >= 0

    def _round(self, number: int, slot: Slot) -> Generator[Any, Any, None]:
        algorithm, config, began = self._algorithm, self._algorithm.config, time.monotonic()
        path = (PLANNING, self._lane, number, *resumed_at(self._blueprint.start))
        rng = np.random.default_rng(np.random.SeedSequence(self._blueprint.seed, spawn_key=path))
        size, layout = int(self._real.sizes()[0]), model_layout(algorithm)
        scales = scales_layout(algorithm).tree(self._scales.latest()[1])
        before = self._model.pull()[1]
        shape = (config.model_gradients, config.members, config.model_batch)
        rows = self._read(self._split.training(rng, size, shape))
        params, moments, loss = self._functions.train(layout.tree(before), self._moments, scales, rows)
        learnt = to_vector(params)
        if is_sound(learnt, {"loss/model": float(loss)}):
            self._watch.good()
            self._moments = moments
            yield from self._model.push(self._lane, learnt - before)
        else:  # the model stays as it was
            self._watch.bad({"model": float(loss), "seen/rate": config.model_rate, "seen/weights": weight_norm(before)})
        params = layout.tree(self._model.pull()[1])
        errors = self._functions.judge(params, scales, self._read(self._split.held_out(rng, size, (VALIDATION_ROWS,))))
        candidates = self._read(rng.integers(0, size, CANDIDATES * config.starts))
        actor = self._blueprint.layout.tree(self._weights.latest()[1])
        made = self._functions.imagine(params, scales, actor, candidates, key_data(self._blueprint.seed, *path))
        for name, array in made.rows._asdict().items():
            flat = slot[f"rows/{name}"]
            flat[...] = np.asarray(array).reshape(flat.shape)
        slot["valid"][...] = np.asarray(made.valid).reshape(-1)
        locked, self._locked = self._model.waited - self._locked, self._model.waited
        metrics = (*errors, loss, made.disagreement, time.monotonic() - began, locked)
        slot["metrics"][...] = [float(value) for value in metrics]

    def _read(self, slots: np.ndarray) -> Transitions:
        """Copies of the rows in these slots of the only ring; reads again if any was overwritten meanwhile."""
        while True:
            rows, whole = self._real.read(slots, self._real.counts())
            if whole.all():
                return Transitions(**rows)

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        return None
