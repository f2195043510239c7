"""SEED: actors that only step environments, and an inference role that acts for them and assembles their unrolls.

Espeholt et al. 2020, "SEED RL", https://arxiv.org/abs/1910.06591.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

from shoal.acting.inference import Batcher, InferenceStats, Tally, Weights
from shoal.core.blueprint import Blueprint
from shoal.core.ports import NOT_YET, Call, Op, Slot, Stream
from shoal.core.program import Context, Ports, Report, Snapshot, Steps
from shoal.core.record import Field, Record
from shoal.core.trajectory import trajectory_record
from shoal.roles.learner import OneOfEach

ROW = ("reward", "discount", "boundary", "valid")


def question_record(blueprint: Blueprint) -> Record:
    """Record of an actor's question: its observation, and the result of its last action."""
    spec, envs = blueprint.algorithm.task.spec, blueprint.envs
    return Record(
        (
            Field("obs", (envs, *spec.obs.shape), spec.obs.dtype.name),
            Field("first", (envs,), "bool"),
            Field("reward", (envs,), "float32"),
            Field("discount", (envs,), "float32"),
            Field("boundary", (envs,), "bool"),
            Field("valid", (envs,), "bool"),
            Field("lost", (envs,), "bool"),  # no row of this episode may be learnt from
            Field("run", (), "int64"),  # identifies the actor's process: its successor has another
        )
    )


def answer_record(blueprint: Blueprint) -> Record:
    action = blueprint.algorithm.task.spec.action
    return Record((Field("action", (blueprint.envs, *action.shape), action.dtype.name),))


class EnvActor:
    """Requests an action, takes it, and sends the result with the next question. Holds neither weights nor recurrent state."""

    def __init__(self, blueprint: Blueprint, index: int, ports: Ports, context: Context) -> None:
        self._blueprint, self._index, self._context = blueprint, index, context
        self._call: Call = ports["inference"]
        self._rows = blueprint.make_rows(index, context)
        # Rows are written into a slot as in other actors, and sent one by one.
        self._slot = trajectory_record(blueprint.algorithm.task.spec, blueprint.unroll, blueprint.envs).empty()

    def run(self) -> Steps:
        rows, slot, run = self._rows, self._slot, np.array(secrets.randbits(62))
        nothing = np.zeros(self._blueprint.envs, bool)
        rows.begin(slot)
        question = {"obs": rows.obs, "first": rows.first, "run": run}
        for t in cycle(range(self._blueprint.unroll)):
            answer = yield from self._call.ask(self._index, question)
            if t == 0:
                rows.begin(slot)
            held = slot["valid"][t - 1].copy() if t else nothing
            rows.step(slot, t, answer["action"])
            self._context.beat()
            # An observation that is not finite invalidates rows that were sent already.
            lost = held & ~slot["valid"][t - 1]
            question = {"obs": rows.obs, "first": rows.first, "lost": lost, "run": run}
            question |= {name: slot[name][t] for name in ROW}

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        self._rows.close()


class Lane:
    """One actor's unfinished unroll, and the policy's recurrent state for its environments."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._run = -1
        self._t = 0  # the next row
        self._since = np.zeros(blueprint.envs, np.int64)  # the row of this unroll in which the running episode began
        self._new = True  # the running episodes are unknown
        self.slot: Slot | None = None
        self.forget()

    def forget(self) -> None:
        self.carry = {n: np.array(a) for n, a in self._blueprint.algorithm.initial_carry(self._blueprint.envs).items()}

    def take_in(self, question: Slot) -> bool:
        """Write the result of the last action. Returns True if the unroll is complete.

        The first question of an actor or of its successor, or after the inference role was restarted, has no such result.
        """
        if question["run"] != self._run:
            self._run, self._t, self._new = int(question["run"]), 0, True
            self.forget()
            return False
        slot, t = self.slot, self._t
        assert slot is not None, "an actor asks again only after an answer"
        for name in ROW:
            slot[name][t] = question[name]
        slot["obs"][t + 1], slot["first"][t + 1] = question["obs"], question["first"]
        for env in np.flatnonzero(question["lost"]):
            slot["valid"][self._since[env] : t, env] = False
        self._since[question["first"]] = t + 1
        self._t = t + 1
        if self._t < self._blueprint.unroll:
            return False
        slot["clock"][1] = time.monotonic()
        self.slot = None
        return True

    def begin(self, slot: Slot) -> None:
        """Use `slot` for the next unroll."""
        self.slot, self._t = slot, 0

    def open(self, question: Slot) -> None:
        """Write the first observation of an unroll, if row 0 is next."""
        assert self.slot is not None
        if self._t == 0:
            self.slot["clock"][0] = time.monotonic()
            # After a predecessor's death in the middle of an episode, the rest counts as an episode of its own.
            self.slot["obs"][0], self.slot["first"][0] = question["obs"], question["first"] | self._new
            self._new = False
            for name, array in self.carry.items():
                self.slot[f"carry/{name}"][...] = array
            self._since[:] = 0

    def act(self, action: np.ndarray, extras: dict[str, np.ndarray], version: int) -> None:
        assert self.slot is not None
        self.slot["action"][self._t] = action
        for name, array in extras.items():
            self.slot[f"extras/{name}"][self._t] = array
        self.slot["version"][self._t] = version


class Inference:
    """Gathers questions, answers them with the newest weights, and fills each actor's lane with its unrolls."""

    def __init__(self, blueprint: Blueprint, rows: int, wait: float, ports: Ports, context: Context) -> None:
        self._context, self._wait = context, wait
        self._call: Call = ports["inference"]
        self._stream: Stream = ports["unrolls"]
        self._weights = Weights(ports["weights"], blueprint.start, blueprint.layout)
        self._batcher = Batcher(blueprint, rows or blueprint.actors * blueprint.envs, (0,))
        self._least = -(-blueprint.actors // 2)
        self._tally = Tally(ports["news"], 0, self._batcher)
        self._lanes = [Lane(blueprint) for _ in range(blueprint.actors)]
        self._stalled: dict[int, Slot] = {}  # {client: question} whose lane has no empty slot yet

    def run(self) -> Steps:
        yield from self._weights.first()
        self._batcher.begin(self._weights.version)
        while True:
            ready = yield from self._next()
            self._weights.refresh()
            lanes = [self._lanes[client] for client, _ in ready]
            for lane, (_, question) in zip(lanes, ready, strict=True):
                lane.open(question)
            acted = self._batcher(
                self._weights.tree, [question for _, question in ready], [lane.carry for lane in lanes]
            )
            # Answer first, so that the actors step while the rest is written.
            self._call.answer([client for client, _ in ready], [{"action": one.action} for one in acted])
            for lane, one in zip(lanes, acted, strict=True):
                lane.act(one.action, one.extras, self._weights.version)
                lane.carry = one.carry
            self._tally.report()
            self._context.beat()

    def _next(self) -> Op[list[tuple[int, Slot]]]:
        """Questions whose lanes have room: those that waited for it, or else new ones."""
        gather = self._call.gather(self._batcher.most, self._least, self._batcher.patience(self._wait))

        def attempt() -> Any:
            if ready := [client for client in self._stalled if self._room(client)][: self._batcher.most]:
                return [(client, self._stalled.pop(client)) for client in ready]
            gathered = gather.now()
            if gathered is None:
                return NOT_YET
            self._stalled |= gathered
            for client, question in gathered:
                if self._lanes[client].take_in(question):
                    self._stream.push(client)
            ready = [client for client, _ in gathered if self._room(client)]
            return [(client, self._stalled.pop(client)) for client in ready] or NOT_YET

        return Op(attempt, gather.wait, gather.what)

    def _room(self, client: int) -> bool:
        """Whether the lane has a slot, or gets one now."""
        lane = self._lanes[client]
        if lane.slot is None:
            slot = self._stream.claim(client).now()
            if slot is None:
                return False
            lane.begin(slot)
        return True

    def snapshots(self) -> Snapshot:
        return {}

    def close(self) -> None:
        return None


class InferredUnrolls(OneOfEach):
    """The feed of `seed`: one unroll from every actor, filled by the inference role, and that role's statistics."""

    def __init__(self, blueprint: Blueprint, ports: Ports, context: Context) -> None:
        super().__init__(blueprint, ports, context)
        self._inference = InferenceStats(ports["news"])

    def complete(self, report: Report) -> Report:
        report = super().complete(report)
        return replace(report, metrics={**report.metrics, **self._inference.metrics()})
