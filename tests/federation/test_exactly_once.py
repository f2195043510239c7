"""A model of a federation: joins, lost requests, lost answers, duplicates, killed children and parents; every push counts once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from parents import Wire, make_courier, make_hub

from shoal.federation import state, wire
from shoal.federation.courier import Update
from shoal.federation.normaliser import Counts
from shoal.federation.rules.rule import Memory, Step

NAMES = ("ann", "bob", "cid")


class Ledger:
    """A rule that adds: after it, the weights say which pushes were applied, and how often."""

    about, takes, adopts, pull = "adds", "delta", "always", 1.0

    def receive(self, parent: np.ndarray, memory: Memory, one: Any, present: int, now: float) -> Step:
        return Step(parent + one.vector, memory)

    def tick(self, parent: np.ndarray, memory: Memory, present: int, now: float) -> Step:
        return Step(None, memory)


class Federations(RuleBasedStateMachine):
    """Children push unit vectors, each push a coordinate of its own; the parent's weights count them.

    `confirmed` and `open` are what the children believe. What was confirmed since the last checkpoint may be lost with a
    killed parent, but is never applied twice; what was not lost is applied exactly once.
    """

    encoding = "float32"

    def __init__(self) -> None:
        super().__init__()
        self.hub = make_hub(start=state.start(np.zeros(400, np.float32), normaliser=1))
        self.hub.federation = replace(self.hub.federation, rule=Ledger())
        self.saved = self.hub.checkpoint()
        self.hub.stored(self.saved)
        self.applied_when_saved: set[int] = set()
        self.couriers = {name: make_courier(name, encoding=self.encoding) for name in NAMES}
        self.wires: dict[str, Wire] = {}
        self.applied: set[int] = set()  # coordinates that must count once now
        self.marks: dict[str, int] = {}  # the coordinate of each child's open push
        self.next = self.version = 0
        self.duplicates = self.losses = 0

    @initialize()
    def all_join(self) -> None:
        for name in NAMES:
            self.join(name)

    # What children do

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        """Also while an older connection of the child is still open: the newer one takes its place."""
        made = Wire(self.hub, self.couriers[name])
        was_open = self.couriers[name].open
        message = made.join()
        assert isinstance(message.header, wire.Welcome)
        self.see(message.header.version)
        old = self.wires.pop(name, None)
        if old is not None:
            assert old.session.closed
            old.close()
        self.wires[name] = made
        if was_open and not self.couriers[name].open:
            assert self.marks.pop(name) in self.applied
        elif self.couriers[name].open:
            assert self.marks[name] not in self.applied

    @precondition(lambda self: self.wires and self.next < 400)
    @rule(which=st.integers(0, 2), lost=st.sampled_from(["nothing", "request", "answer"]))
    def push(self, which: int, lost: str) -> None:
        name = sorted(self.wires)[which % len(self.wires)]
        made, courier = self.wires[name], self.couriers[name]
        if courier.open:
            header, buffers = courier.repeat()
        else:
            vector = np.zeros(400, np.float32)
            vector[self.next] = 1.0
            seen = Counts(1.0, np.zeros(1), np.zeros(1))
            header, buffers = courier.push(Update(vector, base=self.version, steps=1, normaliser=seen))
            self.marks[name] = self.next
            self.next += 1
        if lost == "request":
            self.drop(name)
            return
        self.applied.add(self.marks[name])
        answer = made.request(header, buffers, lose=lost == "answer")
        if answer is None:
            self.losses += 1
            self.drop(name)
            return
        got = courier.answered(answer)
        assert got.applied is True and not courier.open
        self.see(got.version)
        del self.marks[name]

    @precondition(lambda self: self.wires)
    @rule(which=st.integers(0, 2))
    def duplicate(self, which: int) -> None:
        """A network that delivers the last push twice: the copy changes nothing."""
        name = sorted(self.wires)[which % len(self.wires)]
        made, known = self.wires[name], self.hub.state.children[name]
        if not known.sequence:
            return
        self.duplicates += 1
        before = self.hub.state.weights.tobytes()
        part = wire.Part(name="weights", encoding="float32", size=400, bytes=1600)
        again = wire.Push(
            child=name, sequence=known.sequence, base=0, architecture=self.hub.federation.architecture, parts=(part,)
        )
        answer = made.request(again, [np.ones(400, "<f4").tobytes()])
        assert answer is not None and answer.header.applied is False
        assert self.hub.state.weights.tobytes() == before

    @precondition(lambda self: self.wires)
    @rule(which=st.integers(0, 2))
    def leave(self, which: int) -> None:
        self.drop(sorted(self.wires)[which % len(self.wires)])

    @rule(name=st.sampled_from(NAMES))
    def kill_child(self, name: str) -> None:
        """A new process under the old name: it knows nothing of the push that was under way."""
        if name in self.wires:
            self.drop(name)
        self.couriers[name] = make_courier(name, encoding=self.encoding)
        self.marks.pop(name, None)

    # What the parent does

    @rule()
    def checkpoint(self) -> None:
        self.saved = self.hub.checkpoint()
        self.hub.stored(self.saved)
        self.applied_when_saved = set(self.applied)

    @rule(stored=st.booleans())
    def kill_parent(self, stored: bool) -> None:
        for made in self.wires.values():
            made.close()
        self.wires.clear()
        self.hub.state = state.from_arrays(self.saved)
        self.hub._links.clear()
        self.applied = set(self.applied_when_saved)
        if not stored:  # killed again before it could store its checkpoint
            self.hub.state = state.from_arrays(self.saved)
        self.saved = self.hub.checkpoint()
        self.hub.stored(self.saved)

    # What must hold

    @invariant()
    def every_push_counts_once(self) -> None:
        wanted = np.zeros(400, np.float32)
        wanted[sorted(self.applied)] = 1.0
        np.testing.assert_array_equal(np.rint(self.hub.state.weights), wanted)
        assert self.hub.state.normaliser is not None
        assert self.hub.state.normaliser.samples == len(self.applied) == self.hub.state.pushes

    @invariant()
    def the_version_never_goes_back(self) -> None:
        self.see(self.hub.state.version)

    @invariant()
    def connections_are_counted(self) -> None:
        assert self.hub.open == len(self.wires) == self.hub.state.present
        assert self.hub.greeting == 0

    def see(self, version: int) -> None:
        assert version >= self.version
        self.version = version

    def drop(self, name: str) -> None:
        self.wires.pop(name).close()


class CoarseFederations(Federations):
    """The same with int8 both ways: what travels are differences and residuals, and they stay in step."""

    encoding = "int8"


class MirroredFederations(RuleBasedStateMachine):
    """alpha = 1 with int8: the parent holds what the last applied push said, within the step of an 8-bit difference."""

    def __init__(self) -> None:
        super().__init__()
        self.hub = make_hub(300, alpha=1.0, beta=1.0)
        self.rng = np.random.default_rng(0)
        self.courier = make_courier("one", encoding="int8")
        self.wire: Wire | None = None
        self.sent = self.hub.state.weights
        self.applied = self.hub.state.weights

    @initialize()
    def first_join(self) -> None:
        self.join()

    @rule()
    def join(self) -> None:
        made = Wire(self.hub, self.courier)
        made.join()
        if self.wire is not None:
            self.wire.close()
        self.wire = made

    @precondition(lambda self: self.wire is not None)
    @rule(lost=st.sampled_from(["nothing", "request", "answer"]), scale=st.sampled_from([1e-3, 1.0]))
    def push(self, lost: str, scale: float) -> None:
        assert self.wire is not None
        if self.courier.open:
            header, buffers = self.courier.repeat()
        else:
            self.sent = (self.sent + self.rng.normal(scale=scale, size=300)).astype(np.float32)
            header, buffers = self.courier.push(Update(self.sent, base=self.hub.state.version))
        if lost == "request":
            self.wire.close()
            self.wire = None
            return
        answer = self.wire.request(header, buffers)
        assert answer is not None
        if isinstance(answer.header, wire.Refused):
            assert answer.header.reason == "reference", "only where the parent was killed"
            instead = self.courier.refused(answer.header)
            assert instead is not None
            answer = self.wire.request(*instead)
            assert answer is not None and isinstance(answer.header, wire.Pushed)
        self.applied = self.sent
        if lost == "answer":
            self.wire.close()
            self.wire = None
            return
        got = self.courier.answered(answer)
        assert got.weights is not None
        np.testing.assert_allclose(got.weights, self.hub.state.weights, atol=0.05)

    @precondition(lambda self: self.wire is not None)
    @rule()
    def pull(self) -> None:
        assert self.wire is not None
        answer = self.wire.request(self.courier.pull())
        assert answer is not None
        got = self.courier.answered(answer)
        assert got.weights is not None
        np.testing.assert_allclose(got.weights, self.hub.state.weights, atol=0.05)

    @precondition(lambda self: self.wire is not None)
    @rule()
    def lose_a_pull(self) -> None:
        assert self.wire is not None
        self.wire.request(self.courier.pull(), lose=True)
        self.wire.close()
        self.wire = None

    @rule()
    def parent_forgets(self) -> None:
        """A restarted parent has no copies; differences from them are refused and sent whole."""
        self.hub._links.clear()

    @rule()
    def child_forgets(self) -> None:
        if self.wire is not None:
            self.wire.close()
        self.wire, self.courier = None, make_courier("one", encoding="int8")
        self.sent = self.applied

    @invariant()
    def the_parent_holds_what_was_pushed(self) -> None:
        np.testing.assert_allclose(self.hub.state.weights, self.applied, atol=0.05)


RUNS = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestFederations = Federations.TestCase
TestFederations.settings = RUNS
TestCoarseFederations = CoarseFederations.TestCase
TestCoarseFederations.settings = RUNS
TestMirroredFederations = MirroredFederations.TestCase
TestMirroredFederations.settings = RUNS


LOST = ("nothing", "nothing", "request", "answer")


@pytest.mark.parametrize("machine", [Federations, CoarseFederations])
def test_long_random_lives(machine: type[Federations]) -> None:
    """Deeper than the examples above reach, and sure to have met what matters."""
    duplicates = losses = 0
    for seed in range(8):
        rng, life = random.Random(seed), machine()
        life.all_join()
        for _ in range(250):
            chance, which = rng.random(), rng.randrange(3)
            if chance < 0.55 and life.wires and life.next < 400:
                life.push(which, rng.choice(LOST))
            elif chance < 0.65 and life.wires:
                life.duplicate(which)
            elif chance < 0.67 and life.wires:
                life.leave(which)
            elif chance < 0.70:
                life.kill_child(NAMES[which])
            elif chance < 0.74:
                life.checkpoint()
            elif chance < 0.76:
                life.kill_parent(rng.random() < 0.5)
            else:
                life.join(NAMES[which])
            life.every_push_counts_once()
            life.the_version_never_goes_back()
            life.connections_are_counted()
        duplicates, losses = duplicates + life.duplicates, losses + life.losses
    assert duplicates > 50 and losses > 50


def test_long_random_lives_of_copies() -> None:
    for seed in range(8):
        rng, life = random.Random(seed), MirroredFederations()
        life.join()
        for _ in range(200):
            chance = rng.random()
            if chance < 0.6 and life.wire is not None:
                life.push(rng.choice(LOST), rng.choice([1e-3, 1.0]))
            elif chance < 0.7 and life.wire is not None:
                life.pull()
            elif chance < 0.75 and life.wire is not None:
                life.lose_a_pull()
            elif chance < 0.78:
                life.parent_forgets()
            elif chance < 0.8:
                life.child_forgets()
            else:
                life.join()
            life.the_parent_holds_what_was_pushed()
