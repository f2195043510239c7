"""GA3C: agents ask predictors for actions, and trainers learn from the unrolls; queues connect them.

Babaeizadeh et al. 2017, "Reinforcement learning through asynchronous advantage actor-critic on a GPU",
https://arxiv.org/abs/1611.06256. Deviations: unrolls continue across the end of an episode, so that its last transition is
kept; a step of the adjustment that does not pay off is undone at once.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.acting.episodes import EpisodeTracker
from shoal.acting.inference import Batcher, InferenceStats, Tally, Weights
from shoal.core.blueprint import Blueprint
from shoal.core.keys import ACTING, LEARNING, key_data
from shoal.core.ports import Board, Call, Op, SharedStream, Stream
from shoal.core.program import Context, Episode, Ports, Report, Snapshot, Steps
from shoal.core.telemetry import News, NewsFormat, lags_of, mean_metrics, metric_name
from shoal.core.trajectory import as_trajectory
from shoal.core.weights import to_vector
from shoal.learning.handed_in import adopted
from shoal.learning.remote_gradients import SEEN, Known, RemoteGradients
from shoal.learning.soundness import Watch, largest, seen_in
from shoal.roles.hill_climb import Climber, Control, CoreLoad, Numbers, say

REPORT_EVERY = 0.1  # seconds: there may be thousands of gradients per second
WINDOW = 100  # episodes behind the score
SETTLING = 0.25  # share of a trial that does not count, since a role that starts working first compiles


@dataclass(frozen=True, kw_only=True)
class Ga3cSetup:
    """Division of labour, known to all of these roles."""

    blueprint: Blueprint
    start: Numbers  # of roles that work at the start
    most: Numbers  # of roles that exist
    rows: int  # of one prediction, at most
    wait: float  # seconds that a prediction waits for a fuller batch, at most
    reward_clip: float  # 0 is none
    adjust_after: float  # seconds; 0 leaves the numbers as they are
    adjust_every: float

    @property
    def gradients(self) -> RemoteGradients:
        return RemoteGradients(self.blueprint, self.reward_clip)

    @property
    def episodes(self) -> NewsFormat:
        return NewsFormat((), self.blueprint.unroll * self.blueprint.envs)


class Agent:
    """Steps its environments with the predictors' answers and pushes every unroll to the training queue."""

    def __init__(self, setup: Ga3cSetup, index: int, ports: Ports, context: Context) -> None:
        self._setup, self._index, self._context = setup, index, context
        self._call: Call = ports["predictions"]
        self._stream: SharedStream = ports["unrolls"]
        self._news: Stream = ports["episodes"]
        self._control = Control(ports["control"], setup.start)
        self._rows = setup.blueprint.make_rows(index, context)
        self._tracker = EpisodeTracker(setup.blueprint.envs)
        self._ended: deque[Episode] = deque(maxlen=10 * setup.episodes.episodes)  # not sent yet

    def run(self) -> Steps:
        blueprint, rows, lane = self._setup.blueprint, self._rows, self._index
        carry = {f"carry/{n}": np.array(a) for n, a in blueprint.algorithm.initial_carry(blueprint.envs).items()}
        while True:
            yield from self._control.until(lambda numbers: lane < numbers.agents)
            slot = yield from self._stream.claim(lane)
            rows.begin(slot)
            for name, array in carry.items():
                slot[name][...] = array
            for t in range(blueprint.unroll):
                answer = yield from self._call.ask(lane, {"obs": rows.obs, "first": rows.first, **carry})
                if t == 0:  # not before: the very first answer waits until all roles are ready
                    slot["clock"][0] = time.monotonic()
                carry = {name: answer[name] for name in carry}
                slot["version"][t] = answer["version"]
                for name, array in answer.items():
                    if name.startswith("extras/"):
                        slot[name][t] = array
                rows.step(slot, t, answer["action"])
                self._context.beat()
            slot["clock"][1] = time.monotonic()
            self._ended.extend(self._tracker.take(slot["reward"], slot["boundary"], slot["valid"], slot["first"]))
            self._stream.push(lane)
            self._send_episodes()

    def _send_episodes(self) -> None:
        format = self._setup.episodes
        if self._ended and (slot := self._news.claim(self._index).now()) is not None:
            sent = [self._ended.popleft() for _ in range(min(len(self._ended), format.episodes))]
            format.write(slot, 0, time.monotonic(), sent, {})
            self._news.push(self._index)

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        self._rows.close()


class Predictor:
    """Waits for questions, takes all that are open, and answers them in one call. It keeps no state."""

    def __init__(self, setup: Ga3cSetup, index: int, ports: Ports, context: Context) -> None:
        self._setup, self._index, self._context = setup, index, context
        self._call: Call = ports["predictions"]
        self._control = Control(ports["control"], setup.start)
        self._weights = Weights(ports["weights"], setup.blueprint.start, setup.blueprint.layout)
        self._served: Stream = ports["served"]

    def run(self) -> Steps:
        call, weights = self._call, self._weights
        yield from self._control.until(self._active)  # a predictor that is not needed yet compiles nothing
        batcher = Batcher(self._setup.blueprint, self._setup.rows, (ACTING, self._index))
        tally = Tally(self._served, self._index, batcher)
        yield from weights.first()
        batcher.begin(weights.version)
        while True:
            yield from self._control.until(self._active)
            least = -(-self._control.numbers.agents // 2)
            gather = call.gather(batcher.most, least, batcher.patience(self._setup.wait))
            gathered = yield from self._unless_idle(gather)
            if not gathered:
                continue
            weights.refresh()
            questions = [question for _, question in gathered]
            carries = [{n.removeprefix("carry/"): a for n, a in q.items() if n.startswith("carry/")} for q in questions]
            acted = batcher(weights.tree, questions, carries)
            version = np.array(weights.version)
            call.answer(
                [client for client, _ in gathered],
                [
                    {
                        "action": one.action,
                        "version": version,
                        **{f"extras/{n}": a for n, a in one.extras.items()},
                        **{f"carry/{n}": a for n, a in one.carry.items()},
                    }
                    for one in acted
                ],
            )
            tally.report()
            self._context.beat()

    def _unless_idle(self, gather: Op[Any]) -> Op[Any]:
        """The gathered questions; [] while this predictor is idle."""
        return Op(lambda: gather.attempt() if self._active(self._control.refresh()) else [], gather.wait, gather.what)

    def _active(self, numbers: Numbers) -> bool:
        return self._index < numbers.predictors

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        return None


class GradientTrainer:
    """Takes unrolls until it has a batch, and sends its gradient to the learner. It keeps no state."""

    def __init__(self, setup: Ga3cSetup, index: int, ports: Ports, context: Context) -> None:
        self._setup, self._index, self._context = setup, index, context
        unrolls: SharedStream = ports["unrolls"]
        self._stream = unrolls.end_of(index)
        self._out: Stream = ports["gradients"]
        self._control = Control(ports["control"], setup.start)
        self._gradients = setup.gradients
        self._weights = Weights(ports["params"], setup.blueprint.start, self._gradients.layout)
        self._turn = index  # the lane to look at first; it rotates, so that every lane is served

    def _compiled(self) -> Any:
        """The gradient function, compiled ahead of the data."""
        blueprint, layout = self._setup.blueprint, self._gradients.layout
        known: Known = layout.tree(np.zeros(layout.size, np.float32))
        trajectories = [as_trajectory(blueprint.record.empty())] * blueprint.batch
        return self._gradients.compute().lower(known, trajectories, key_data(0), np.float32(0)).compile()

    def run(self) -> Steps:
        blueprint, weights, news = self._setup.blueprint, self._weights, self._gradients.news
        yield from self._control.until(self._active)
        compute = self._compiled()
        # An empty message means ready: agents that started earlier would only wait, and take cores from compiling.
        hello = yield from self._out.claim(self._index)
        news.write(hello, 0, time.monotonic(), (), {})
        self._out.push(self._index)
        yield from weights.first()
        made = weights.version  # at least as many gradients as a predecessor made, so that no key is reused
        while True:
            taken: list[tuple[int, Any]] = []
            while len(taken) < blueprint.batch:
                yield from self._control.until(self._active)
                one = yield from self._next()
                if one is None:  # idle now: the unrolls in hand would be stale when it works again
                    for lane, _ in taken:
                        self._stream.release(lane)
                taken = [*taken, one] if one is not None else []
            began = time.monotonic()
            weights.refresh()
            slots = [slot for _, slot in taken]
            progress = np.float32(blueprint.progress(weights.version))
            key = key_data(blueprint.seed, LEARNING, self._index, made)
            vector, metrics = compute(weights.tree, [as_trajectory(slot) for slot in slots], key, progress)
            out = yield from self._out.claim(self._index)
            out["gradient"][...] = vector
            np.stack([slot["version"] for slot in slots], out=out["acted"])
            numbers = {name: float(value) for name, value in metrics.items()}
            if not np.isfinite(out["gradient"][0]):
                seen = largest(as_trajectory(slot) for slot in slots).tolist()
                numbers |= dict(zip(SEEN, seen, strict=True))
            steps = sum(slot["valid"].size for slot in slots)
            began = min(began, *(float(slot["clock"][0]) for slot in slots))
            news.write(out, steps, began, (), numbers)
            self._out.push(self._index)
            for lane, _ in taken:
                self._stream.release(lane)
            made += 1
            self._context.beat()

    def _next(self) -> Op[tuple[int, Any] | None]:
        """An unroll of any agent; None while this trainer is idle."""
        lanes = [(self._turn + i) % self._stream.lanes for i in range(self._stream.lanes)]
        self._turn += 1
        take = self._stream.take_any(lanes)
        return Op(lambda: take.attempt() if self._active(self._control.refresh()) else None, take.wait, take.what)

    def _active(self, numbers: Numbers) -> bool:
        return self._index < numbers.trainers

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        return None


class Applier:
    """Owns the weights: applies gradients as they arrive, publishes, adjusts the numbers, and reports."""

    def __init__(self, setup: Ga3cSetup, ports: Ports, context: Context) -> None:
        self._setup, self._blueprint = setup, setup.blueprint
        self._stream: Stream = ports["gradients"]
        self._episodes: Stream = ports["episodes"]
        self._weights: Board = ports["weights"]
        self._params: Board = ports["params"]
        self._control: Board = ports["control"]
        self._inference = InferenceStats(ports["served"])
        self._gradients = setup.gradients
        self.state = self._blueprint.initial_state()
        self.version = self._blueprint.start
        self._climber = Climber(setup.start, setup.most, self._blueprint.seed)
        self._steps, self._changes = 0, 0
        self._score: deque[float] = deque(maxlen=WINDOW)
        self._load = CoreLoad()
        self._watch = Watch(context)

    def run(self) -> Steps:
        blueprint, stream, news = self._blueprint, self._stream, self._gradients.news
        vector = np.zeros(self._gradients.size, np.float32)
        applied = self._gradients.applied().lower(self.state, vector, np.float32(0)).compile()
        for lane in range(self._setup.start.trainers):
            yield from stream.take(lane)  # its first message says that it is ready
            stream.release(lane)
        self._publish()
        began_at, spent = 0.0, 0.0
        arrived: list[News] = []
        lags: Counter[int] = Counter()
        reported = tried = measured = time.monotonic()
        rate_from, last_steps = 0, 0
        lanes, waited = list(range(stream.lanes)), 0.0
        while True:
            asked = time.monotonic()
            lane, slot = yield from stream.take_any(lanes)
            lanes = [*lanes[1:], lanes[0]]
            found, before = news.read(slot), time.monotonic()
            if not found.steps:  # a trainer's first message
                stream.release(lane)
                continue
            waited += before - asked
            if not self._steps:
                began_at = found.began
                tried = before
            progress = np.float32(blueprint.progress(self.version))
            after, known, actor, fine = applied(self.state, slot["gradient"], progress)
            if fine:
                self._watch.good()
                self.state = after
            else:
                self._watch.bad(seen_in(blueprint.algorithm, self.state, found.metrics))
                known = actor = None
            lag = lags_of(self.version, slot["acted"])
            stream.release(lane)
            lags.update(lag.tolist())
            self.version += 1
            due = self._due(time.monotonic() - reported)
            if not (due and blueprint.driven):
                self._publish(known, actor)
            self._steps += found.steps
            arrived.append(found)
            now = time.monotonic()
            spent += now - before
            if now - tried < SETTLING * self._pause():
                rate_from, measured = self._steps, now
            elif self._setup.adjust_after and now - tried >= self._pause():
                self._adjust((self._steps - rate_from) / (now - measured))
                tried = now
            if not due:
                continue
            episodes = tuple(self._new_episodes())
            times = {"time/learn": spent, "time/wait": waited, "time/collect": 0.0, "time/broadcast": 0.0}
            speed = (self._steps - last_steps) / (now - reported)
            metrics = {
                **{metric_name(name): value for name, value in mean_metrics(arrived).items() if name not in SEEN},
                **times,
                "lag/versions": sum(lag * rows for lag, rows in lags.items()) / lags.total(),
                "lag/max": float(max(lags)),
                "queue/depth": float(sum(map(stream.depth, lanes))),
                "speed/gradients": len(arrived) / (now - reported),
                **self._status(speed, episodes),
            }
            reported, last_steps, arrived, spent, waited = now, self._steps, [], 0.0, 0.0
            reply = yield Report(
                version=self.version,
                env_steps=self._steps,
                began_at=began_at,
                ended_at=now,
                episodes=episodes,
                metrics=metrics,
                state=self.state,
                lags=lags,
            )
            lags = Counter()
            if reply.brings:
                self.state = adopted(blueprint.algorithm, self.state, reply)
            if blueprint.driven:
                self._publish()

    def _due(self, seconds: float) -> bool:
        """Whether a report is due, this long after the last."""
        every, last = self._blueprint.report_every, self.version >= self._blueprint.updates
        return last or (self.version % every == 0 if every else seconds >= REPORT_EVERY)

    def _publish(self, known: Any = None, actor: Any = None) -> None:
        """Publish the newest weights to trainers and predictors: these vectors, or those of the state."""
        if known is None:
            known = to_vector(Known(self.state.params, self.state.obs))
            actor = to_vector(self._blueprint.algorithm.actor_state(self.state))
        self._params.publish(self.version, np.asarray(known))
        self._weights.publish(self.version, np.asarray(actor))

    def _pause(self) -> float:
        """Seconds until the next step of the adjustment; the first has its own setting."""
        return self._setup.adjust_every if self._changes else self._setup.adjust_after

    def _adjust(self, rate: float) -> None:
        self._changes += 1
        before = self._climber.numbers
        if self._climber.judge(rate) != before:
            say(self._control, self._changes, self._climber.numbers)

    def _new_episodes(self) -> Iterator[Episode]:
        lanes, format = range(self._episodes.lanes), self._setup.episodes
        while (found := self._episodes.take_any(lanes).now()) is not None:
            yield from format.read(found[1]).episodes
            self._episodes.release(found[0])

    def _status(self, training: float, episodes: tuple[Episode, ...]) -> dict[str, float]:
        self._score.extend(episode.ret for episode in episodes)
        served, busy = self._inference.metrics(), self._load.busy()
        status = {
            "status/score": float(np.mean(self._score)) if self._score else None,
            "status/predictions_per_s": served.get("speed/predictions"),
            "status/training_per_s": training,
            **{f"status/{name}": float(n) for name, n in self._climber.numbers._asdict().items()},
            "status/cores": busy,
        }
        return {**served, **{name: value for name, value in status.items() if value is not None}}

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        return None
