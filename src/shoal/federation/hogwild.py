"""Averaging without a lock (Hogwild!): pushes change one vector in place, on several threads at once; pulls get snapshots.

The hub still belongs to one thread, which admits and counts pushes: a push begins there (`begin`), is decoded, checked and averaged
on any other thread (`Job.run`), and is counted on the hub's thread again (`end`). Two pushes may overwrite each other's change of a
weight; in return, nothing waits. With one push at a time the result equals that of the lock, bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation import state, wire
from shoal.federation.rules import RULES
from shoal.federation.rules.rule import Contribution, InPlace
from shoal.federation.state import Arrival
from shoal.federation.wire import Message, Violation

if TYPE_CHECKING:
    from shoal.federation.hub import Hub

AGAIN = 0.05  # seconds after which a child repeats a push whose first copy is still being averaged


def check_in_place(rule: str) -> None:
    """Raise `BadInput` for a rule that needs rounds or a buffer."""
    able = [name for name, each in RULES.items() if issubclass(each, InPlace)]
    if rule not in able:
        raise BadInput(
            f"--consistency hogwild and --rule {rule}, which gathers pushes first; in place work {' and '.join(able)}"
        )


class _Mixed(NamedTuple):
    """The result of a push on its thread."""

    arrival: Arrival
    far: float  # its distance from the parent's weights, or the length of the change
    weights: np.ndarray  # [P] a snapshot taken after it was averaged
    number: int  # of the snapshot: a higher one contains all that the lower ones contain


class Job:
    """One push in progress. `run` does the work, once, on any thread; an error is kept for `Unlocked.end`."""

    def __init__(
        self, child: str, header: wire.Push, tau: int, keeps: bool, now: float, work: Callable[[], _Mixed]
    ) -> None:
        self.child, self.header, self.tau, self.keeps, self.begun = child, header, tau, keeps, now
        self._work = work
        self.done: _Mixed | Exception = RuntimeError("this job was not run")

    def run(self) -> None:
        """Decode, check and average the push."""
        try:
            self.done = self._work()
        except Exception as error:  # raised again on the hub's thread
            self.done = error


class Unlocked:
    """The shared weights of a hub, and the pushes in progress. Everything except `Job.run` belongs to the hub's thread."""

    def __init__(self, hub: Hub) -> None:
        check_in_place(hub.federation.rule_name)
        rule = hub.federation.rule
        assert isinstance(rule, InPlace)
        self._hub, self._rule = hub, rule
        self._weights = np.array(hub.state.weights)
        self._numbers = itertools.count(1)
        self._newest = 0  # number of the snapshot that is served
        self._under_way: set[str] = set()  # children with a push in progress

    def begin(self, message: Message, child: str, keeps: bool, now: float) -> Job | None:
        """The job for a push; None if it was counted already or is too late. `keeps`: keep a copy for the next difference."""
        hub, header = self._hub, message.header
        if not hub.wanted(header, child, now):
            return None
        if child in self._under_way:  # on a connection that was lost
            raise Violation("rate", "this push is under way already", fatal=False, retry_after=AGAIN)
        before, by_weights = hub.state, hub.federation.rule.takes == "weights"
        if before.version + len(self._under_way) + 1 >= before.ceiling:
            raise state.Unreserved(f"version {before.ceiling} is not covered by a checkpoint; store one first")
        tau = state.age(before, header.base)
        share = state.share_of(before, child, header.steps) if hub.federation.by_steps else 1.0

        def work() -> _Mixed:
            arrival = hub.decoded(message, child)
            far = state.distance(arrival.vector, before.weights if by_weights else None)
            self._rule.mix(self._weights, Contribution(child, arrival.vector, tau, share))
            number = next(self._numbers)
            return _Mixed(arrival, far, self._weights.copy(), number)

        self._under_way.add(child)
        return Job(child, header, tau, keeps, now, work)

    def end(self, job: Job) -> bool:
        """Count a push whose job is done; False if training has ended since. Raises the job's error."""
        self._under_way.discard(job.child)
        hub, done = self._hub, job.done
        if isinstance(done, Exception):
            raise done
        if hub.stop:
            return False
        # An older snapshot that arrives later does not replace a newer one.
        weights = done.weights if done.number > self._newest else hub.state.weights
        self._newest = max(self._newest, done.number)
        hub.state = state.mixed(hub.state, done.arrival, job.tau, done.far, weights)
        hub.applied(job.header, done.arrival, job.keeps, job.begun)
        return True
