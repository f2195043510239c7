"""Workers on shared parameters, and the monitor that reports for them. Each worker acts, learns and pushes by itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import numpy as np

from shoal.acting.collector import Collector
from shoal.acting.episodes import EpisodeTracker
from shoal.core.algorithm import LearnerState
from shoal.core.blueprint import Blueprint
from shoal.core.config import Fraction, Positive
from shoal.core.keys import resumed_at
from shoal.core.ports import NOT_YET, Op, Pool, Roster, Slot, Stream, Table
from shoal.core.program import Context, Episode, Part, Ports, Reply, Report, Snapshot, Steps
from shoal.core.telemetry import News, NewsFormat, mean_metrics
from shoal.core.trajectory import Array, as_trajectory
from shoal.core.weights import to_vector
from shoal.learning.gradient_steps import ReplayGradients, make_gradient_steps
from shoal.learning.handed_in import adopted, with_others
from shoal.learning.replay_update import REPLAY, OneRing, ReplayMemory, is_saved
from shoal.learning.shared_layout import SharedLayout
from shoal.learning.shared_statistics import SharedStatistics, if_finite
from shoal.learning.soundness import Watch
from shoal.learning.update import make_update
from shoal.learning.weight_exchange import Central, Gossip, Sharded, Stepwise, Unroll, WeightExchange

REPORT_SECONDS = 0.1  # between two reports, at least: handling a report takes cores from the workers
OVERDUE = 0.5  # seconds after which a report no longer waits for news that has come
STALE = 16  # gradients on a replay that all workers together may have in flight
OWN_METRICS = (
    "lag/versions",
    "lag/max",
    "queue/depth",
    "time/collect",
    "time/learn",
    "time/lock",
    "time/wait",
    "time/barrier",
)


@dataclass(frozen=True, kw_only=True)
class SharedParamsConfig:
    """Asynchronous workers on shared parameters."""

    consistency: Literal["hogwild", "lock", "sharded", "gossip"] = "hogwild"
    """how updates combine: added in place without a lock; one at a time; applied by servers, one per slice; neighbours average"""
    shards: Positive = 2
    """sharded: the number of servers; each owns a slice of the weights"""
    queue: Positive = 2
    """sharded: gradients of each worker that may wait at a server"""
    moments: Literal["shared", "own"] | None = None
    """the optimiser's moments: one set that all share, or one per worker; by default shared if each push is one gradient and
    follows a pull"""
    pull: Literal["unrolls", "episode"] = "unrolls"
    """when a worker takes the newest weights: every `pull_every` unrolls, or after an unroll in which an episode ended"""
    pull_every: Positive = 1
    """unrolls between two pulls"""
    epsilon: Fraction = 0.0
    """share of actions that are replaced by random ones, on top of the policy's own noise"""
    barrier: bool = False
    """workers wait for each other whenever one of their episodes has ended"""
    split: bool = False
    """every second worker trains only the value function, and the others only the policy"""
    replay: Literal["local", "global"] = "local"
    """for algorithms with a replay: one per worker, or one that all write to and draw from"""

    push_every: Positive | None = None
    """for algorithms with a replay: gradients between two pushes; by default 16 divided by the number of workers"""

    def gradients_a_push(self, blueprint: Blueprint) -> int:
        """Gradients per push for an algorithm with a replay. In a push of k, the weights lack up to k from every other worker."""
        if self.push_every is not None:
            return self.push_every
        # Inside a loop, XLA's convolutions on CPU take several times as long.
        return 1 if blueprint.algorithm.task.spec.obs.is_image else max(1, STALE // blueprint.actors)

    def share_moments(self, blueprint: Blueprint) -> bool:
        if self.moments is not None:
            return self.moments == "shared"
        if self.consistency in ("sharded", "gossip"):
            return self.consistency == "sharded"
        return self.one_at_a_time(blueprint) and self.pulls_first(blueprint)

    def one_at_a_time(self, blueprint: Blueprint) -> bool:
        """Whether each push is one gradient: only then do changes of the moments add up. A push of several gradients forgets
        most of the old moments; if three workers did so at once, the sum would be minus twice the old moments."""
        if blueprint.algorithm.replays:
            return blueprint.actors == 1 or self.gradients_a_push(blueprint) == 1
        cut = blueprint.algorithm.minibatches
        return cut.epochs * cut.parts == 1

    def pulls_first(self, blueprint: Blueprint) -> bool:
        """Whether each push follows a pull: only then do changes of the moments add up. Several pushes based on one pull each
        forget the same share of the same moments; with Adam, 20 of them add minus twice those moments."""
        # Several workers with replays pull before each push, whatever the options say.
        stepwise = blueprint.algorithm.replays and blueprint.actors > 1
        return stepwise or (self.pull == "unrolls" and self.pull_every == 1)


class Worker:
    """A worker. In each turn it pulls weights, acts for an unroll, learns from it, pushes the change and sends its news."""

    def __init__(
        self,
        config: SharedParamsConfig,
        news: NewsFormat,
        blueprint: Blueprint,
        index: int,
        ports: Ports,
        context: Context,
    ) -> None:
        self._config, self._format, self._blueprint, self._index = config, news, blueprint, index
        self._roster: Roster = ports["roster"]
        self._news: Stream = ports["news"]
        self._own: Table = ports["own"]
        self._layout = SharedLayout(blueprint.algorithm, config.share_moments(blueprint))
        self._statistics = SharedStatistics(ports["statistics"], self._layout) if "statistics" in ports else None
        # The number of this worker's unrolls is known only in an exact resume; otherwise timing had decided it.
        exact = f"worker-{index}" in blueprint.snapshots
        self._collector = Collector(blueprint, index, context, () if exact else resumed_at(blueprint.start))
        self._tracker = EpisodeTracker(blueprint.envs)
        self._slot = blueprint.record.empty()
        self._open = jax.jit(self._opened)
        self._words: np.ndarray | None = None  # the own part of a saved state to resume from
        if f"worker-{index}" in blueprint.snapshots:
            self._words = blueprint.snapshots[f"worker-{index}"]["own"]
            self._tracker.restore(blueprint.snapshots[f"episodes-{index}"])
        self._exchange = self._make_exchange(ports, Watch(context))

    def _make_exchange(self, ports: Ports, watch: Watch) -> WeightExchange:
        config, blueprint, index, layout = self._config, self._blueprint, self._index, self._layout
        mine, memory = blueprint, None
        if blueprint.algorithm.replays:
            # This worker's own parts: its sampler's state, if its rows are restored to the same slots.
            pool: Pool = ports["replay"]
            rows, known = blueprint.snapshots.get(REPLAY), blueprint.snapshots.get(f"{REPLAY}-{index}")
            found = {} if rows is None or known is None or not pool.fits(rows) else {REPLAY: known}
            mine = replace(blueprint, snapshots=found) if rows is not None else blueprint
            if config.replay == "global":
                memory = ReplayMemory(mine, pool=pool, worker=index)
            else:
                memory = ReplayMemory(mine, pool=OneRing(pool, index), worker=index, workers=blueprint.actors)
        blank = layout.blank()
        state, actor = self._open(layout.pack(blank), layout.without_shared(blank))
        if config.consistency == "sharded":
            steps = make_gradient_steps(mine, memory, watch)
            if memory is None:  # compile by a dry run, which a replay would remember
                state, _ = steps.take(state, actor, as_trajectory(self._slot), 0, 0.0)
                steps.gradient(state, 0)
            self._learning: Any = steps
            return Sharded(ports, index, layout, steps, blueprint, watch)
        wild = config.consistency == "hogwild"
        if memory is not None and blueprint.actors > 1 and config.consistency != "gossip":
            together = config.gradients_a_push(blueprint)
            self._learning = gradients = ReplayGradients(mine, memory, watch, together)
            return Stepwise(ports["weights"], index, layout, gradients, together, wild, blueprint, watch)
        self._learning = update = make_update(mine, watch, memory)
        update.compile(state, actor, 1)
        mask = layout.mask(critic=index % 2 == 1) if config.split else None
        if config.consistency == "gossip":
            return Gossip(ports["weights"], index, layout, update, blueprint.seed, mask)
        return Central(ports["weights"], index, layout, update, wild, mask)

    def _opened(self, vector: Array, state: LearnerState) -> tuple[LearnerState, Any]:
        """A state with the weights of a pulled vector, and its acting part; one call, since there are many small arrays."""
        state = self._layout.unpack(vector, state)
        return state, self._blueprint.algorithm.actor_state(state)

    def run(self) -> Steps:
        blueprint, index, roster, now = self._blueprint, self._index, self._roster, time.monotonic
        # Assume that turns before this program began were shared out evenly.
        first = (blueprint.start + blueprint.actors - 1 - index) // blueprint.actors
        state, vector, actor, since = self._layout.blank(), np.zeros(0), None, 0
        met = 0.0  # seconds at the last barrier
        exchange, collector = self._exchange, self._collector
        while True:
            asked = now()
            news = yield from self._news.claim(index)
            number = yield from roster.turn(index)
            waited = now() - asked
            if actor is None:
                words = self._own.pull(index)[1] if self._words is None else self._words
                state = self._layout.unpack_own(words, state)
            if actor is None or self._due(since):
                vector, since = exchange.pull(), 0
                if self._statistics is not None:
                    state = self._statistics.pull(state)
                state, actor = self._open(vector, self._layout.without_shared(state))
            else:
                state, _ = self._open(vector, self._layout.without_shared(state))
            collector.collect(actor, number, first + roster.turns(index), self._slot)
            before, locked = now(), exchange.waited()
            unroll = Unroll(as_trajectory(self._slot), actor, number, blueprint.progress(number))
            learnt = yield from exchange.learn(state, unroll)
            state, since = learnt.state, since + 1
            if self._statistics is not None:
                yield from self._statistics.push(state, unroll.trajectory)
            kept = self._layout.pack_own(state)
            yield from self._own.change([index], lambda _, rows, kept=kept: [kept])  # type: ignore[misc]
            took, locked = now() - before, exchange.waited() - locked
            times = {"time/learn": took - locked, "time/lock": locked, "time/wait": waited, "time/barrier": met}
            self._write_news(news, {**learnt.metrics, **times, "lag/versions": learnt.lag, "lag/max": learnt.lag})
            self._news.push(index)
            roster.finish(index)
            # Hold no turn here, so that a waiter cannot block shutdown.
            before = now()
            if self._config.barrier and self._ended():
                yield from roster.meet(index)
            met = now() - before

    def _due(self, since: int) -> bool:
        if self._config.pull == "unrolls":
            return since >= self._config.pull_every
        return self._ended()

    def _ended(self) -> bool:
        """Whether an episode ended in the last unroll."""
        return bool((self._slot["boundary"] & self._slot["valid"]).any())

    def _write_news(self, news: Slot, metrics: dict[str, float]) -> None:
        slot = self._slot
        episodes = self._tracker.take(slot["reward"], slot["boundary"], slot["valid"], slot["first"])
        began, ended = slot["clock"].tolist()
        self._format.write(news, slot["reward"].size, began, episodes, {**metrics, "time/collect": ended - began})

    def snapshots(self) -> Snapshot:
        index = self._index
        return {
            f"actor-{index}": Part(self._collector.snapshot()),
            f"episodes-{index}": Part(self._tracker.snapshot()),
            f"worker-{index}": Part({"own": self._own.pull(index)[1]}),
            **{f"{name}-{index}": Part(part.arrays) for name, part in self._learning.snapshots().items()},
        }

    def close(self) -> None:
        self._collector.close()


class Monitor:
    """Fills the tables, opens the roster, and turns the workers' news into reports. It steps no environment."""

    def __init__(
        self, config: SharedParamsConfig, news: NewsFormat, blueprint: Blueprint, ports: Ports, context: Context
    ) -> None:
        self._config, self._format, self._blueprint, self._ports = config, news, blueprint, ports
        self._layout = SharedLayout(blueprint.algorithm, config.share_moments(blueprint))
        self._weights: Table = ports["weights"]
        self._own: Table = ports["own"]
        self._roster: Roster = ports["roster"]
        self._news: Stream = ports["news"]
        self._began_at: float | None = None
        self._version = blueprint.start
        self._last: Report | None = None

    def run(self) -> Steps:
        self._fill(self._blueprint.initial_state())
        self._roster.open()
        news: list[News] = []
        lanes, reported = list(range(self._blueprint.actors)), time.monotonic()
        while True:
            came = yield from self._next(lanes)
            if came is not None:
                lane, slot = came
                news.append(self._format.read(slot))
                self._news.release(lane)
                lanes.append(lanes.pop(lanes.index(lane)))
                if self._began_at is None:
                    self._began_at = news[0].began
            version = self._blueprint.start + self._roster.finished()
            if came is not None and not self._overdue(version, reported) and any(map(self._news.depth, lanes)):
                continue
            if self._due(version, reported) and (news or came is None):
                self._last = self._report(version, news) if news else self._late_report(version)
                reply = yield self._last
                if reply.brings:
                    yield from self._adopt(self._last.state, reply)
                news, reported = [], time.monotonic()

    def _adopt(self, state: LearnerState, reply: Reply) -> Generator[Op[Any], Any, None]:
        """Move the shared weights from those reported to those handed in; changes pushed by workers meanwhile are kept."""
        before = self._rows(self._layout.pack(state))
        after = self._rows(self._layout.pack(adopted(self._blueprint.algorithm, state, reply)))
        for row, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from self._weights.move(old, new, row)
        if reply.statistics is not None and "statistics" in self._ports:

            def by(_: Any, rows: Any) -> Any:
                mine: Any = self._layout.unpack_statistics(rows[0], state).obs
                return [if_finite(to_vector(with_others(mine, reply.statistics)), rows[0])]

            yield from self._ports["statistics"].change([0], by)

    def _due(self, version: int, reported: float) -> bool:
        if version <= self._version:
            return False
        every = self._blueprint.report_every
        waited = version - self._version >= every if every else time.monotonic() - reported >= REPORT_SECONDS
        return waited or version >= self._blueprint.updates

    def _overdue(self, version: int, reported: float) -> bool:
        """Whether a report waits no longer for news that has come: fast workers always send more. The last one holds all news."""
        by_clock = not self._blueprint.report_every and time.monotonic() - reported >= OVERDUE
        return by_clock and version < self._blueprint.updates

    def _late_report(self, version: int) -> Report:
        """The report of a turn whose news was already in the previous report, because it was sent before the turn was finished."""
        assert self._last is not None
        before = self._last
        metrics = {name: value for name, value in before.metrics.items() if not name.startswith("time/")}
        steps = (version - self._blueprint.start) * self._blueprint.steps_per_update
        new: dict[str, Any] = {"version": version, "env_steps": steps, "metrics": metrics, "state": self.state()}
        self._version = version
        return replace(before, episodes=(), lags={}, **new)

    def _next(self, lanes: list[int]) -> Op[tuple[int, Slot] | None]:
        """The next news; or None once all turns are done and all news is taken, if the last version is not yet reported."""
        take = self._news.take_any(lanes)

        def attempt() -> Any:
            done = self._blueprint.start + self._roster.finished() >= self._blueprint.updates
            came = take.attempt()
            return None if came is NOT_YET and done and self._version < self._blueprint.updates else came

        return Op(attempt, take.wait, take.what)

    def _fill(self, state: LearnerState) -> None:
        layout = self._layout
        for row, vector in enumerate(self._rows(layout.pack(state))):
            self._weights.put(vector, row)
        own = layout.pack_own(state)
        for worker in range(self._blueprint.actors):
            self._own.put(own, worker)
        if "statistics" in self._ports:
            self._ports["statistics"].put(layout.pack_statistics(state))
        if "replay" in self._ports and REPLAY in self._blueprint.snapshots:
            self._ports["replay"].restore(self._blueprint.snapshots[REPLAY])

    def _rows(self, vector: np.ndarray) -> np.ndarray:
        """The table's rows for these shared weights: one slice each, or a full copy each."""
        if self._config.consistency == "sharded":
            return self._layout.to_shards(vector, self._weights.rows)
        return np.broadcast_to(vector, (self._weights.rows, vector.size))

    def state(self) -> LearnerState:
        """The current state: the shared part, and the first worker's own part."""
        layout, rows = self._layout, range(self._weights.rows)
        if self._config.consistency == "sharded":
            vector = layout.from_shards(np.stack([self._weights.pull(row)[1] for row in rows]))
        elif self._config.consistency == "gossip":
            vector = np.stack([self._weights.pull(row)[1] for row in rows]).mean(axis=0, dtype=np.float32)
        else:
            vector = self._weights.pull()[1]
        state = layout.unpack(vector, layout.unpack_own(self._own.pull(0)[1], layout.blank()))
        if "statistics" in self._ports:
            state = layout.unpack_statistics(self._ports["statistics"].pull()[1], state)
        return state

    def _report(self, version: int, news: list[News]) -> Report:
        blueprint, rounds = self._blueprint, len(news) / self._blueprint.actors
        metrics = mean_metrics(news)
        # Seconds that one worker spent on its unrolls since the last report.
        metrics |= {name: value * rounds for name, value in metrics.items() if name.startswith("time/")}
        metrics["table/lost"] = self._weights.lost()
        self._version = version
        episodes: tuple[Episode, ...] = tuple(episode for one in news for episode in one.episodes)
        lags: Counter[int] = Counter()
        for one in news:
            lags[round(one.metrics["lag/versions"])] += one.steps
        return Report(
            version=version,
            env_steps=(version - blueprint.start) * blueprint.steps_per_update,
            began_at=self._began_at or 0.0,
            ended_at=max(one.ended for one in news),
            episodes=episodes,
            metrics=metrics,
            state=self.state(),
            lags=lags,
        )

    def snapshots(self) -> Snapshot:
        if "replay" not in self._ports or not is_saved(self._blueprint):
            return {}
        return {REPLAY: Part(self._ports["replay"].snapshot(), lasts=True)}

    def close(self) -> None:
        return None
