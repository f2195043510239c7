"""Many learners and many more actors than a machine has cores: a discrete-event model of `actor_learner`, fed with measured times.

Every role has a core of its own. An actor makes one unroll after another, and waits while its queue is full. Each learner takes
one unroll from the queues of its own actors; when all learners hold one, they compute their gradients, exchange them and go on
together. Times vary by a lognormal factor of mean 1, so a joint update waits for its slowest learner.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.core.config import NonNegativeFloat, Positive, build
from shoal.core.errors import BadInput
from shoal.studies.compare import GridsConfig, Tell, grids

UPDATE = -1  # the number of the event "a joint update ends"; actors have numbers from 0


class Times(NamedTuple):
    """Durations in seconds.

    `joint` is a learner's own part of an update with others; `exchange` is the time that the exchange adds, by number of learners.
    """

    unroll: float
    alone: float
    joint: float
    exchange: Mapping[int, float]
    spread: float = 0.0  # standard deviation of the logarithm of a time


class Simulated(NamedTuple):
    seconds: float  # until the last update has ended
    made: int  # unrolls that actors finished
    learnt: int
    waiting: int  # unrolls that were finished and not learnt from at the end
    busy: float  # share of the time in which learners computed or exchanged


def simulate(
    *, actors: int, learners: int, unrolls: int, times: Times, depth: int = 1, latency: float = 0.0, seed: int = 0
) -> Simulated:
    """Learn from `unrolls` unrolls, rounded up to whole updates. `latency` is added to each update of several learners."""
    if learners > actors:
        raise BadInput(f"{learners} learners: there must be an actor for each, and there are {actors}")
    factors = _Factors(times.spread, seed)
    owner = _owners(actors, learners)
    queues: list[deque[int]] = [
        deque() for _ in range(learners)
    ]  # of each learner: actors, in the order of their pushes
    queued, blocked = [0] * actors, [False] * actors
    held = [False] * learners
    events = [(times.unroll * factors.next(), actor) for actor in range(actors)]
    heapq.heapify(events)
    now = busy = 0.0
    made = learnt = 0
    updating = False
    while True:
        if not updating:
            for learner in range(learners):
                if held[learner] or not queues[learner]:
                    continue
                actor = queues[learner].popleft()
                held[learner], queued[actor] = True, queued[actor] - 1
                if blocked[actor]:  # its finished unroll takes the free place
                    blocked[actor] = False
                    queues[learner].append(actor)
                    queued[actor] += 1
                    heapq.heappush(events, (now + times.unroll * factors.next(), actor))
            if all(held):
                if learners == 1:
                    took = times.alone * factors.next()
                else:
                    slowest = max(factors.next() for _ in range(learners))
                    took = times.joint * slowest + times.exchange[learners] + latency
                heapq.heappush(events, (now + took, UPDATE))
                busy, updating = busy + took, True
        now, actor = heapq.heappop(events)
        if actor == UPDATE:
            updating, held = False, [False] * learners
            learnt += learners
            if learnt >= unrolls:
                break
            continue
        made += 1
        if queued[actor] < depth:
            queues[owner[actor]].append(actor)
            queued[actor] += 1
            heapq.heappush(events, (now + times.unroll * factors.next(), actor))
        else:
            blocked[actor] = True
    return Simulated(now, made, learnt, sum(queued) + sum(blocked), busy / now)


def _owners(actors: int, learners: int) -> list[int]:
    """The learner of each actor: ranges of equal size, the remainder one each to the first learners."""
    each, more = divmod(actors, learners)
    return [learner for learner in range(learners) for _ in range(each + (learner < more))]


class _Factors:
    """Lognormal factors of mean 1, drawn in blocks."""

    def __init__(self, spread: float, seed: int) -> None:
        self._spread, self._rng = spread, np.random.default_rng(seed)
        self._drawn: list[float] = []

    def next(self) -> float:
        if not self._spread:
            return 1.0
        if not self._drawn:
            self._drawn = self._rng.lognormal(-0.5 * self._spread**2, self._spread, 4096).tolist()
        return self._drawn.pop()


@dataclass(frozen=True, kw_only=True)
class LearnersConfig:
    """Measured grids, and numbers of learners and actors that are simulated with times of this machine."""

    env: str
    """environment"""
    steps: Positive
    """environment steps of each measured run"""
    seeds: Positive = 3
    """measured runs of each combination, and simulations with different random times"""
    grids: tuple[dict[str, Any], ...] = ()
    """the measured runs, as in the runner `compare:grids`; none: only the simulation"""
    timed: dict[str, Any]
    """settings of `shoal train` whose unroll, update and exchange are timed"""
    simulated: tuple[tuple[Positive, Positive], ...]
    """pairs of learners and actors; each is compared with one learner and as many actors"""
    unrolls: Positive = 10_000
    """unrolls of a simulation"""
    latency_ms: tuple[NonNegativeFloat, ...] = (0.0,)
    """milliseconds that a network adds to each joint update"""
    repeats: Positive = 100
    """measurements of each time"""


def learners(size: Mapping[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Measured grids and the simulated extension as one experiment of `shoal reproduce`."""
    from shoal.studies.learner_times import measure_times  # late: it starts JAX in this process

    config = build(LearnersConfig, size)
    shared = {name: getattr(config, name) for name in GridsConfig.__dataclass_fields__ if hasattr(config, name)}
    found = grids(shared, folder, tell) if config.grids else {"rows": [], "figures": [], "notes": []}
    times = measure_times(config.env, config.timed, {pair[0] for pair in config.simulated}, config.repeats)
    rows = [
        _row(config, times, many, actors, latency)
        for many, actors in config.simulated
        for latency in (config.latency_ms if many > 1 else (0.0,))
    ]
    exchanges = ", ".join(f"{1e3 * s:.2f} of {n}" for n, s in sorted(times.exchange.items()))
    note = (
        f"times of the simulation, medians of {config.repeats}, CPU time of one core in ms: an unroll {1e3 * times.unroll:.2f}, "
        f"an update alone {1e3 * times.alone:.2f}, with others {1e3 * times.joint:.2f}, exchange between learners {exchanges}; "
        f"spread (standard deviation of the logarithm) {times.spread:.2f}"
    )
    return {**found, "rows": [*found["rows"], *rows], "notes": [*found["notes"], note]}


def _row(config: LearnersConfig, times: Times, many: int, actors: int, latency: float) -> dict[str, Any]:
    """One line of the simulated table: gains over one learner with as many actors, with the same random numbers."""
    values: dict[str, list[float]] = {name: [] for name in ("seconds", "throughput", "less_time", "busy")}
    for seed in range(config.seeds):
        one, all_ = (
            simulate(actors=actors, learners=n, unrolls=config.unrolls, times=times, latency=latency / 1e3, seed=seed)
            for n in (1, many)
        )
        # Per unroll: whole updates round the number of unrolls up.
        ratio = (all_.seconds / all_.learnt) / (one.seconds / one.learnt)
        values["seconds"].append(all_.seconds)
        values["throughput"].append(100 * (1 / ratio - 1))
        values["less_time"].append(100 * (1 - ratio))
        values["busy"].append(100 * all_.busy)
    name = f"{many} learners, {actors} actors" if many > 1 else f"1 learner, {actors} actors"
    if latency:
        name += f", {latency:g} ms a joint update on the network"
    return {"keys": {"simulated": name}, "values": values, "runs": []}


RUNNERS: dict[str, Callable[[Mapping[str, Any], Path, Tell], dict[str, Any]]] = {"learners": learners}
