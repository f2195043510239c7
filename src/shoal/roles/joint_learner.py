"""Several learners acting as one: each takes its own unrolls, all hold the same weights, the first publishes and reports.

They synchronise in a Group. Before each update they agree whether all have data; a learner that finds none anywhere ends
training for all. When a learner dies, its successor breaks the group: all abandon the current update, meet again, and
continue from the state and the totals that the first learner published last.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.blueprint import Blueprint
from shoal.core.errors import BadInput
from shoal.core.ports import Board, Group, GroupBroken, Op
from shoal.core.program import Context, Episode, Ports, Reply, Report, Snapshot, Steps
from shoal.core.telemetry import is_maximum, lags_of
from shoal.core.trajectory import as_trajectory
from shoal.core.weights import from_words, layout_of, moved, to_vector, to_words, words_of
from shoal.learning.handed_in import adopted
from shoal.learning.intake import BatchSource, Intake
from shoal.learning.joint_update import JointUpdate, Together
from shoal.learning.soundness import Watch
from shoal.roles.async_actor_learner import FOREVER, ActorNews, last_report

LAGS = 64  # bins of the histogram of lags; the last one holds all larger lags
COUNTS = ("unrolls", "dropped", "helped", "news_steps")  # summed over learners; only the first gets the actors' news


class JointLearner:
    """Learner number `index`; number 0 is the main role."""

    def __init__(
        self,
        blueprint: Blueprint,
        index: int,
        source: BatchSource,
        together: Together,
        lockstep: bool,
        ports: Ports,
        context: Context,
    ) -> None:
        self._blueprint, self._index, self._lockstep, self._source = blueprint, index, lockstep, source
        self._context = context
        self._board: Board = ports["weights"]
        self._states: Board = ports["states"]
        self._agreed: Board = ports["totals"]
        self._group: Group = ports["learners"]
        self._handed: Board | None = ports.get("handed")  # from the first to the others, in a driven run
        self._intake = Intake(blueprint, index, source, ports)
        self._update = JointUpdate(blueprint, index, together, self._group, Watch(context))
        self._actor_news = ActorNews(blueprint, ports) if index == 0 else None
        self.version = blueprint.start
        self.state = blueprint.initial_state()
        self._names: tuple[str, ...] = ()  # of the metrics, in the order of the vector that carries them
        self._began_at = 0.0
        self._last: Report | None = None
        self._totals = np.zeros(len(COUNTS))  # over all learners and all updates
        self._rounds = 0  # counted in the totals
        # This learner's share of the totals after the last rounds: a broken round is counted by the next.
        self._counted = {0: np.zeros(len(COUNTS))}

    def run(self) -> Steps:
        acted = self._acted()
        self._update.compile(self.state, acted)
        if self._index == 0:
            self._publish()
            self._agreed.publish(0, self._totals.view(np.float32))
        yield from self._meet()
        while True:
            try:
                report = yield from self._round()
                if report is None:
                    yield from self._end()
                    return
                reply = Reply()
                if self._index == 0:
                    self._last = report
                    reply = yield report
                if self._handed is not None:
                    yield from self._adopt(reply, self._handed)
            except GroupBroken:
                self._intake.drop()
                yield from self._meet()

    def _adopt(self, reply: Reply, handed: Board) -> Generator[Op[Any], Any, None]:
        """Agree on a driver's reply, which only the first learner has; then publish and free the slots, as an undriven round does.

        Learners that average their weights only periodically differ from the reported weights: they move by the same difference.
        """
        if self._index == 0:
            if reply.leaves:
                raise BadInput("several learners adopt only weights and statistics, not the optimiser's moments")
            if reply.brings:
                reported = to_vector(self.state.params)
                self.state = adopted(self._blueprint.algorithm, self.state, reply)
                others = reply.statistics or jax.tree.map(np.zeros_like, self.state.obs)
                handed.publish(self.version, to_vector((reported, self.state.params, others)))
            self._publish()
        given = yield from self._group.mean(self._index, np.array([reply.brings], np.float32))
        if given[0] > 0 and self._index != 0:
            mine, vector = to_vector(self.state.params), handed.latest()[1]
            old, new = vector[: 2 * mine.size].reshape(2, -1)
            others = layout_of(self.state.obs).tree(vector[2 * mine.size :])
            statistics = others if others is not None and others.count > 0 else None
            self.state = adopted(
                self._blueprint.algorithm, self.state, Reply(weights=moved(mine, old, new), statistics=statistics)
            )
        self._intake.release()

    def _end(self) -> Steps:
        """Finish when no data is left. The first waits for the actors' last news; the others wait until the run ends."""
        if self._actor_news is None:
            yield from self._board.read(FOREVER)
            return
        before = self._actor_news.steps
        episodes = yield from self._actor_news.rest()
        more = self._actor_news.steps - before if self._source.lossy else 0
        if self._last is not None and (episodes or more):
            yield last_report(self._last, self._last.env_steps + more, episodes)

    def _acted(self) -> Any:
        """The weights that act on the next batch: in lockstep the newest, else None."""
        return self._blueprint.algorithm.actor_state(self.state) if self._lockstep else None

    def _publish(self) -> None:
        self._states.publish(self.version, to_words(self.state))
        self._board.publish(self.version, to_vector(self._blueprint.algorithm.actor_state(self.state)))

    def _meet(self) -> Generator[Op[Any], Any, None]:
        """Wait for all, then take the state that the first published last. It publishes the next only after all have met."""
        while True:
            try:
                yield from self._group.mean(self._index, np.zeros(1, np.float32))
                break
            except GroupBroken:  # another successor joined meanwhile
                continue
        self.version, vector = self._states.latest()
        self.state = jax.tree.map(jnp.asarray, from_words(vector, self.state))
        # This learner may have finished a round of counts that the first had not, or the other way round.
        self._rounds, totals = self._agreed.latest()
        self._totals = totals.view(np.float64).copy()

    def _round(self) -> Generator[Op[Any], Any, Report | None]:
        """One common update; None if no data is left."""
        blueprint, intake, group, now = self._blueprint, self._intake, self._group, time.monotonic
        asked = now()
        slots = yield from intake.batch(self.version)
        waited = now() - asked
        all_have = yield from group.mean(self._index, np.array([slots is not None], np.float32))
        if all_have[0] < 1 or slots is None:
            intake.drop()
            return None
        self._context.beat()
        began = now()
        self._began_at = self._began_at or min(float(slot["clock"][0]) for slot in slots)
        progress = blueprint.progress(self.version, self._steps())
        state, metrics = yield from self._update(
            self.state, self._acted(), [as_trajectory(slot) for slot in slots], self.version, progress
        )
        lags = np.maximum(lags_of(self.version, *(slot["version"] for slot in slots)), 0)
        binned = np.bincount(np.minimum(lags, LAGS - 1), minlength=LAGS)
        metrics |= {
            "lag/versions": float(lags.mean()),
            "lag/max": float(lags.max()),
            "time/collect": float(np.mean([slot["clock"][1] - slot["clock"][0] for slot in slots])),
            "time/learn": now() - began,
            "time/wait": waited,
            **intake.metrics(),
        }
        self.state, self.version = state, self.version + 1
        published = now()
        if self._index == 0 and self._handed is None:
            self._publish()
        broadcast = now() - published
        episodes = self._actor_news.listen() if self._actor_news is not None else ()
        news_steps = self._actor_news.steps if self._actor_news is not None else 0
        so_far = np.array([intake.taken, intake.dropped, intake.helped, news_steps], np.float64)
        counts = so_far - self._counted.get(self._rounds, 0.0)  # a successor has not been counted yet
        self._counted = {self._rounds: so_far - counts, self._rounds + 1: so_far}
        # After the first has published: a learner that leaves this round may free slots, and actors must find the new weights.
        joint = yield from self._reduced(metrics, binned, counts.tolist())
        self._rounds += 1
        if self._index == 0:
            self._agreed.publish(self._rounds, self._totals.view(np.float32))
        if self._handed is None:
            intake.release()
        return self._report({**joint, "time/broadcast": broadcast}, episodes)

    def _reduced(
        self, metrics: dict[str, float], lags: np.ndarray, counts: list[float]
    ) -> Generator[Op[Any], Any, dict[str, float]]:
        """All learners' metrics, as means or maxima; lags and counts are added to this learner's totals."""
        self._names = self._names or tuple(sorted(metrics))
        learners, largest = self._blueprint.learners, [name for name in self._names if is_maximum(name)]
        maxima = np.zeros((learners, len(largest)))  # one row per learner, so that the sum keeps all of them
        maxima[self._index] = [metrics[name] for name in largest]
        mine = [*(metrics[name] for name in self._names), *maxima.ravel(), *counts, *lags.tolist()]
        mean = yield from self._group.mean(self._index, np.array(mine, np.float32))
        numbers, rest = mean[: len(self._names)], mean[len(self._names) :] * np.float32(learners)
        rows, rest = rest[: maxima.size].reshape(maxima.shape), rest[maxima.size :]
        self._totals = self._totals + np.rint(rest[: len(COUNTS)])
        self._lags = np.rint(rest[len(COUNTS) :]).astype(int)
        found = dict(zip(self._names, numbers.tolist(), strict=True))
        return found | dict(zip(largest, rows.max(axis=0).tolist(), strict=True))

    def _steps(self) -> int:
        """Environment steps so far; all learners know the same number."""
        unrolls, news_steps = (int(self._totals[COUNTS.index(name)]) for name in ("unrolls", "news_steps"))
        return news_steps if self._source.lossy else unrolls * self._blueprint.unroll * self._blueprint.envs

    def _report(self, metrics: dict[str, float], episodes: tuple[Episode, ...]) -> Report:
        lags, totals = self._lags, dict(zip(COUNTS, self._totals.tolist(), strict=True))
        seen = np.flatnonzero(lags)
        # Maxima travel as a share of their sum, in single precision: a whole number is whole again after rounding.
        metrics |= {"lag/max": float(round(metrics["lag/max"])), "lag/dropped": totals["dropped"]}
        if self._actor_news is not None:
            metrics["queue/refused"] = float(self._actor_news.refused)
        if self._source.ends:
            metrics["queue/helped"] = totals["helped"]
        return Report(
            version=self.version,
            env_steps=self._steps(),
            began_at=self._began_at,
            ended_at=time.monotonic(),
            episodes=episodes,
            metrics=metrics,
            state=self.state,
            lags={int(lag): int(lags[lag]) for lag in seen},
        )

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        return None


TOTALS_SIZE = 2 * len(COUNTS)  # four-byte words, so that the totals are sent bit for bit


def state_size(blueprint: Blueprint) -> int:
    """The length of a learner's state on the board `states`."""
    return words_of(blueprint.initial_state())
