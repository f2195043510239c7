"""Batched inference: answers the questions of many actors in few calls, with statistics."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.acting.compiled_act import compiled_act
from shoal.core.blueprint import Blueprint
from shoal.core.keys import ACTING, key_data, resumed_at
from shoal.core.ports import Board, Stream
from shoal.core.program import Steps
from shoal.core.record import Field, Record
from shoal.core.telemetry import News, NewsFormat
from shoal.core.weights import Layout

WORTH = 4.0  # wait at most this many call durations for a fuller batch, which saves calls
REPORT_EVERY = 0.2  # seconds between two pieces of news
RECENT = 10  # pieces of news over which a rate is averaged
SILENT = 2.0  # seconds without news after which a server counts as idle
SERVED = NewsFormat(("calls", "rows"), 0)


class Acted(NamedTuple):
    """The answer of `Batcher` to one question; the first axis of every array is its B environments."""

    action: np.ndarray
    extras: dict[str, np.ndarray]
    carry: dict[str, np.ndarray]


class Batcher:
    """`act` on several questions at once, padded to one of a few compiled sizes.

    A call takes at most `rows` rows: a larger question is split, smaller ones are combined. The duration of calls determines
    how long to wait for a fuller batch. Keys count up from call to call; `begin` sets the version they start at, so that
    neither a resumed run nor a successor reuses a predecessor's keys.
    """

    def __init__(self, blueprint: Blueprint, rows: int, path: tuple[int, ...]) -> None:
        algorithm, spec = blueprint.algorithm, blueprint.algorithm.task.spec
        self._envs, self._layout = blueprint.envs, blueprint.layout
        self.most = max(1, min(rows // blueprint.envs, blueprint.actors))  # questions that a batch holds
        self._sizes = call_sizes(blueprint.envs, min(rows, self.most * blueprint.envs))
        space = self._sizes[-1] * -(-self.most * blueprint.envs // self._sizes[-1])
        self._obs = np.zeros((space, *spec.obs.shape), spec.obs.dtype)
        self._first = np.ones(space, bool)
        self._carry = {n: np.array(a) for n, a in algorithm.initial_carry(space).items()}
        # Put on the device once: a call with NumPy arrays would transfer them each time.
        self._explore = {size: jax.device_put(np.ones(size, np.float32)) for size in self._sizes}
        self._act = compiled_act(algorithm)
        self._path = (blueprint.seed, ACTING, *path)
        self.begin(0)
        self.calls = self.rows = 0
        self.took = 0.0  # seconds per call, a moving mean
        actor = jax.device_put(self._layout.tree(np.zeros(self._layout.size, np.float32)))
        for size in self._sizes:
            self._call(actor, 0, size)

    def begin(self, version: int) -> None:
        """Start a new sequence of keys, for calls from this version of the weights on."""
        self._key = jax.device_put(key_data(*self._path, *resumed_at(version)))

    def patience(self, longest: float) -> float:
        """Seconds to wait for a fuller batch, at most `longest`."""
        return min(longest, WORTH * self.took)

    def __call__(
        self, actor: Any, questions: Sequence[Mapping[str, np.ndarray]], carries: Sequence[Mapping[str, np.ndarray]]
    ) -> list[Acted]:
        envs, began = self._envs, time.monotonic()
        for i, (question, carry) in enumerate(zip(questions, carries, strict=True)):
            rows = slice(i * envs, (i + 1) * envs)
            self._obs[rows], self._first[rows] = question["obs"], question["first"]
            for name, array in self._carry.items():
                array[rows] = carry[name]
        total, calls = len(questions) * envs, []
        for start in range(0, total, self._sizes[-1]):
            rows_left = min(total - start, self._sizes[-1])
            calls.append(self._call(actor, start, next(size for size in self._sizes if size >= rows_left)))
            self.calls += 1
        self.rows += total
        action, extras, carry = calls[0] if len(calls) == 1 else jax.tree.map(lambda *a: np.concatenate(a), *calls)
        self.took += 0.1 * (time.monotonic() - began - self.took)
        return [
            Acted(
                action[i : i + envs],
                {n: a[i : i + envs] for n, a in extras.items()},
                {n: a[i : i + envs] for n, a in carry.items()},
            )
            for i in range(0, total, envs)
        ]

    def _call(self, actor: Any, start: int, size: int) -> Any:
        rows = slice(start, start + size)
        carry = {n: a[rows] for n, a in self._carry.items()}
        t = np.int32(self.calls % 2**31)
        acted = self._act(actor, self._obs[rows], carry, self._first[rows], self._key, t, self._explore[size])
        return jax.tree.map(np.asarray, acted)


def call_sizes(envs: int, most: int) -> list[int]:
    """Numbers of rows for which a call is compiled: one question's, doubled until `most` rows fit."""
    sizes = [min(envs, most)]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


class Weights:
    """The newest weights of a board, on the device. `refresh` copies only if there is a newer version."""

    def __init__(self, board: Board, start: int, layout: Layout) -> None:
        self._board, self._start, self._layout = board, start, layout
        self.version = -1
        self.tree: Any = None

    def first(self) -> Steps:
        """Wait for the first weights."""
        with contextlib.suppress(LookupError):  # the board is already several versions further
            yield from self._board.read(self._start) if self._board.latest()[0] < 0 else ()
        self._put(*self._board.latest())

    def refresh(self) -> None:
        try:
            newer = self._board.read(self.version + 1).now() is not None
        except LookupError:  # the board is already several versions further
            newer = True
        if newer:
            self._put(*self._board.latest())

    def _put(self, version: int, vector: np.ndarray) -> None:
        self.version, self.tree = version, jax.device_put(self._layout.tree(vector))


class Tally:
    """Reports the numbers of calls and rows to the main role from time to time."""

    def __init__(self, stream: Stream, lane: int, batcher: Batcher) -> None:
        self._stream, self._lane, self._batcher = stream, lane, batcher
        # The time before the first batch does not count: the other roles were still starting.
        self._reported, self._at = (0, 0), 0.0

    def report(self) -> None:
        """Report if it is time. Called after every batch."""
        now = time.monotonic()
        if not self._at:
            self._reported, self._at = (self._batcher.calls, self._batcher.rows), now
        if now - self._at < REPORT_EVERY:
            return
        slot = self._stream.claim(self._lane).now()
        if slot is None:
            return
        calls, rows = self._batcher.calls, self._batcher.rows
        SERVED.write(slot, 0, self._at, (), {"calls": calls - self._reported[0], "rows": rows - self._reported[1]})
        self._stream.push(self._lane)
        self._reported, self._at = (calls, rows), now


class InferenceStats:
    """The main role's end of `Tally`: the mean batch, and predictions per second of all servers together."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._recent: list[deque[News]] = [deque(maxlen=RECENT) for _ in range(stream.lanes)]

    def metrics(self) -> dict[str, float]:
        """Metrics from each server's recent news; a server that has been silent for long counts as idle."""
        while (found := self._stream.take_any(range(self._stream.lanes)).now()) is not None:
            lane, slot = found
            self._recent[lane].append(SERVED.read(slot))
            self._stream.release(lane)
        calls = rows = rate = 0.0
        for recent in self._recent:
            if recent and time.monotonic() - recent[-1].ended < SILENT:
                predicted = sum(news.metrics["rows"] for news in recent)
                calls, rows = calls + sum(news.metrics["calls"] for news in recent), rows + predicted
                rate += predicted / max(recent[-1].ended - recent[0].began, 1e-6)
        return {"inference/batch": rows / calls, "speed/predictions": rate} if calls else {}


def question_record(blueprint: Blueprint) -> Record:
    """Record of one step's question: the observations, and the policy's recurrent state."""
    spec, carry = blueprint.algorithm.task.spec, [f for f in blueprint.record.fields if f.name.startswith("carry/")]
    obs = Field("obs", (blueprint.envs, *spec.obs.shape), spec.obs.dtype.name)
    return Record((obs, Field("first", (blueprint.envs,), "bool"), *carry))


def answer_record(blueprint: Blueprint) -> Record:
    """Record of one step's answer: the result of `act`, and the version of the weights that acted."""
    kept = [f for f in blueprint.record.fields if f.name == "action" or f.name.startswith("extras/")]
    carry = [f for f in blueprint.record.fields if f.name.startswith("carry/")]
    steps = [Field(f.name, f.shape[1:], f.dtype) for f in kept]
    return Record((*steps, *carry, Field("version", (), "int32")))
