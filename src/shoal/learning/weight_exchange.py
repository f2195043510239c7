"""Exchanges between a worker and the shared weights: one class for each consistency.

An exchange pulls the newest weights (`pull`), and turns an unroll into a change of them (`learn`), which may have to wait.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import cache
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState
from shoal.core.blueprint import Blueprint
from shoal.core.keys import GOSSIP, key_data
from shoal.core.ports import NOT_YET, Op, Stream, Table
from shoal.core.program import Ports
from shoal.core.record import Field, Record
from shoal.core.trajectory import Array, Trajectory
from shoal.learning.gradient_steps import CycleMetrics, Gradient, GradientSteps, ReplayGradients, compiled_steps
from shoal.learning.replay_update import blank_minibatches, explore_metrics, learn
from shoal.learning.shared_layout import SharedLayout
from shoal.learning.soundness import SOUND, Watch, is_sound, seen_in
from shoal.learning.update import Update


class Unroll(NamedTuple):
    """An unroll to learn from, and the number of its update."""

    trajectory: Trajectory
    acted: Any
    version: int
    progress: float


class Learnt(NamedTuple):
    state: LearnerState
    metrics: dict[str, float]
    lag: int  # changes of the weights between the pull and this push


Learning = Generator[Op[Any], Any, Learnt]


class WeightExchange(Protocol):
    def waited(self) -> float:
        """Seconds so far that this worker's changes have waited for a lock or for room in a queue."""

    def pull(self) -> np.ndarray: ...

    def learn(self, state: LearnerState, unroll: Unroll) -> Learning: ...


class Central:
    """One vector for all workers. `hogwild` adds the update's change in place; `lock` adds it atomically."""

    def __init__(self, table: Table, worker: int, layout: SharedLayout, update: Update, wild: bool, mask: Any) -> None:
        self._table, self._worker, self._layout, self._update = table, worker, layout, update
        self._wild, self._mask = wild, mask
        self._version, self._old = 0, np.zeros(0, np.float32)

    def waited(self) -> float:
        return self._table.waited

    def pull(self) -> np.ndarray:
        self._version, self._old = self._table.pull()
        return self._old

    def learn(self, state: LearnerState, unroll: Unroll) -> Learning:
        state, _, metrics = self._update(state, unroll.acted, [unroll.trajectory], unroll.version, unroll.progress)
        old, new, pulled = self._old, self._layout.pack(state), self._version
        if self._mask is not None:
            np.copyto(new, old, where=~self._mask)
        if self._wild:
            count = yield from self._table.push(self._worker, new - old)
        else:
            # If no other worker pushed since our pull, theta' itself is what the same update on the newest weights would give.
            count = yield from self._table.change(
                [0], lambda versions, rows: [new if versions[0] == pulled else rows[0] + (new - old)]
            )
        return Learnt(state, metrics, count - 1 - pulled)


class Stepwise:
    """One vector for all workers, and a push after every few gradients on a replay, each computed on the newest weights.

    If all gradients of an unroll were one push, the weights would miss everything that others push meanwhile: with four
    workers or more, DQN then diverges.
    """

    def __init__(
        self,
        table: Table,
        worker: int,
        layout: SharedLayout,
        gradients: ReplayGradients,
        together: int,
        wild: bool,
        blueprint: Blueprint,
        watch: Watch,
    ) -> None:
        self._table, self._worker, self._layout, self._gradients, self._wild = table, worker, layout, gradients, wild
        self._algorithm, self._watch, self._together = blueprint.algorithm, watch, together
        vector, own = np.zeros(layout.width, np.float32), layout.without_shared(layout.blank())
        drawn = blank_minibatches(blueprint, together)
        step = compiled_gradients(blueprint.algorithm, layout.vectors > 0)
        self._step = step.lower(vector, own, drawn, key_data(0)).compile()

    def waited(self) -> float:
        return self._table.waited

    def pull(self) -> np.ndarray:
        return self._table.pull()[1]

    def learn(self, state: LearnerState, unroll: Unroll) -> Learning:
        gradients = self._gradients
        state, due = gradients.take(state, unroll.acted, unroll.trajectory, unroll.version, unroll.progress)
        own, lag, losses = self._layout.without_shared(state), 0, {}
        for first in range(0, due, self._together):
            pulled, old = self._table.pull()
            vector, after, losses, errors = self._step(old, own, *gradients.minibatches(first))
            if not losses.pop(SOUND):  # nothing is pushed, and further gradients would use the same weights
                state = self._layout.unpack(old, own)
                self._watch.bad(seen_in(self._algorithm, state, losses, [unroll.trajectory]))
                break
            new, own = np.asarray(vector), after
            if self._wild:
                count = yield from self._table.push(self._worker, new - old)
            else:
                count = yield from self._table.change(
                    [0],
                    lambda versions, rows, new=new, old=old, pulled=pulled: [  # type: ignore[misc]
                        new if versions[0] == pulled else rows[0] + (new - old)
                    ],
                )
            lag = count - 1 - pulled
            gradients.learnt(first, errors)
        else:
            if due:
                self._watch.good()
        metrics = {**explore_metrics(unroll.acted), "replay/gradients": float(own.step)}
        return Learnt(own, {**gradients.named(losses), **metrics}, lag)


@cache
def compiled_gradients(algorithm: Algorithm, share: bool) -> Any:
    """(shared vector, own part, minibatches [count, batch, ...], key data) -> (shared vector, own part, metrics, errors).

    One gradient after another, each applied. The metrics include the verdict, `SOUND`.
    """
    layout = SharedLayout(algorithm, share)

    def step(vector: Array, own: LearnerState, drawn: Any, key: Array) -> Any:
        after, _, metrics, errors = learn(algorithm, layout.unpack(vector, own), drawn, key)
        return layout.flat(after), layout.without_shared(after), metrics, errors

    return jax.jit(step)


class Gossip:
    """One row per worker and no central one: after each update two workers average their rows (AD-PSGD).

    Lian et al. 2018, https://arxiv.org/abs/1710.06952: the pair is averaged, then the worker's own change is added to its row.
    """

    def __init__(self, table: Table, worker: int, layout: SharedLayout, update: Update, seed: int, mask: Any) -> None:
        self._table, self._worker, self._layout, self._update = table, worker, layout, update
        self._seed, self._mask = seed, mask
        self._version, self._old = 0, np.zeros(0, np.float32)

    def waited(self) -> float:
        return self._table.waited

    def pull(self) -> np.ndarray:
        self._version, self._old = self._table.pull(self._worker)
        return self._old

    def learn(self, state: LearnerState, unroll: Unroll) -> Learning:
        state, _, metrics = self._update(state, unroll.acted, [unroll.trajectory], unroll.version, unroll.progress)
        old, new, pulled = self._old, self._layout.pack(state), self._version
        if self._mask is not None:
            np.copyto(new, old, where=~self._mask)
        mine, others = self._worker, self._table.rows - 1
        if not others:
            count = yield from self._table.change(
                [mine], lambda versions, rows: [new if versions[0] == pulled else rows[0] + (new - old)]
            )
            return Learnt(state, metrics, count - 1 - pulled)
        pick = int(key_data(self._seed, GOSSIP, mine, unroll.version)[0] % others)
        neighbour = pick + (pick >= mine)

        def meet(_: Any, rows: Any) -> Any:
            mean = (rows[0] + rows[1]) * np.float32(0.5)
            return [mean + (new - old), mean]

        count = yield from self._table.change([mine, neighbour], meet)
        return Learnt(state, metrics, count - 1 - pulled)


class Sharded:
    """Gradients go to the slices' servers through bounded queues; weights are pulled from what the servers publish."""

    def __init__(
        self,
        ports: Ports,
        worker: int,
        layout: SharedLayout,
        gradients: GradientSteps,
        blueprint: Blueprint,
        watch: Watch,
    ) -> None:
        self._algorithm, self._watch = blueprint.algorithm, watch
        self._table: Table = ports["weights"]
        self._shards = self._table.rows
        self._streams: list[Stream] = [ports[f"gradients-{shard}"] for shard in range(self._shards)]
        self._worker, self._layout, self._gradients = worker, layout, gradients
        self._settle = compiled_steps(blueprint.algorithm).settle
        self._slice = layout.slice_size(self._shards)
        self._version, self._waited, self._metrics = 0, 0.0, CycleMetrics()

    def waited(self) -> float:
        return self._waited

    def pull(self) -> np.ndarray:
        pulled = [self._table.pull(shard, self._slice) for shard in range(self._shards)]
        self._version = pulled[0][0]
        return np.concatenate([vector for _, vector in pulled])[: self._layout.size]

    def learn(self, state: LearnerState, unroll: Unroll) -> Learning:
        """Each gradient is computed on the newest weights that the servers have published by then."""
        taken, due = self._gradients.take(state, unroll.acted, unroll.trajectory, unroll.version, unroll.progress)
        state, lag, bad, depths, sent = taken, 0, dict[str, float](), [self._depth()], True
        for index in range(due):
            if index:
                state = self._settle(state, self._layout.unpack(self.pull(), state).params)
            gradient = self._gradients.gradient(state, index)
            if not is_sound(gradient.vector, gradient.metrics):  # it is not sent, and the next one would be no better
                self._watch.bad(seen_in(self._algorithm, state, gradient.metrics, [unroll.trajectory]))
                sent, bad = False, gradient.metrics
                break
            self._metrics.add(gradient)
            if gradient.errors is not None:
                self._gradients.learnt(index, gradient.errors[None])
            if gradient.stop:
                sent = False
                break
            lag = (
                self._table.pull(0, 0)[0]
                - self._version
                + sum(map(self._streams[0].depth, range(self._streams[0].lanes)))
            )
            depths.append(self._depth())
            yield from self._send(gradient, unroll.progress)
            self._watch.good()
        if due and sent:  # a gradient that was not sent is not counted
            state = self._settle(state, self._layout.unpack(self.pull(), state).params)
        metrics = {**(self._metrics.take() if due else {}), **bad, "queue/depth": float(np.mean(depths))}
        return Learnt(state, metrics, lag)

    def _depth(self) -> float:
        return float(np.mean([stream.depth(self._worker) for stream in self._streams]))

    def _send(self, gradient: Gradient, progress: float) -> Generator[Op[Any], Any, None]:
        padded = np.zeros(self._slice * self._shards, np.float32)
        padded[: gradient.vector.size] = gradient.vector
        for stream, part in zip(self._streams, padded.reshape(self._shards, self._slice), strict=True):
            room = stream.claim(self._worker)
            slot: Any = room.attempt()
            if slot is NOT_YET:
                asked = time.monotonic()
                slot = yield from room
                self._waited += time.monotonic() - asked
            slot["gradient"][...] = part
            slot["progress"][0] = progress
            slot["moved"][...] = True if gradient.moved is None else gradient.moved
            stream.push(self._worker)


def gradient_record(size: int, groups: int) -> Record:
    """Record of a slice of a gradient on its way to a server. `moved`: the parameter groups that it moves."""
    return Record(
        (Field("gradient", (size,), "float32"), Field("progress", (1,), "float32"), Field("moved", (groups,), "bool"))
    )
