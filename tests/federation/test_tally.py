"""Counts of a child over UDP: each step counts once, whatever is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.federation import tally as module
from shoal.federation.tally import Tally, Totals


class Parent:
    """Adds what exceeds the totals of the last applied push, as the parent does."""

    def __init__(self) -> None:
        self.steps = self.sequence = 0
        self.last = Totals()

    def apply(self, sequence: int, totals: Totals) -> None:
        self.steps += totals.since(self.last).steps
        self.sequence, self.last = sequence, totals


FATES = st.lists(st.sampled_from(["answered", "unanswered", "lost", "refused", "rejoined"]), max_size=60)


@given(FATES)
def test_every_step_counts_once_whatever_is_lost(fates: list[str]) -> None:
    tally, parent = Tally(), Parent()
    sequence = given_ = held = 0
    for number, fate in enumerate([*fates, "answered"], start=1):
        if fate == "rejoined":
            tally.joined(parent.sequence)
            parent.last, sequence = Totals(), parent.sequence
            continue
        sequence, steps, held = sequence + 1, number + held, 0  # `held`: what was refused is given again
        totals = tally.push(sequence, steps, 1)
        given_ += number
        if fate == "refused":
            tally.refused()
            held = steps
        elif fate != "lost":
            parent.apply(sequence, totals)
            if fate == "answered":
                tally.applied(sequence)
    assert parent.steps == given_


def test_steps_of_a_parents_lost_checkpoint_are_not_made_up_for() -> None:
    """A parent that was killed has lost the pushes after its checkpoint, with their effects. Unanswered ones are told again."""
    tally = Tally()
    for sequence in (1, 2, 3):
        tally.push(sequence, 10, 1)
    tally.applied(2)
    tally.joined(1)
    assert tally.push(2, 5, 0) == Totals(15, 1)
    tally.joined(1)
    assert tally.push(2, 0, 0) == Totals(15, 1)
    tally.joined(2)
    assert tally.push(3, 1, 0) == Totals(1, 0)


def test_what_is_remembered_is_bounded_and_nothing_counts_twice() -> None:
    tally = Tally()
    for sequence in range(1, module.KEPT + 11):
        tally.push(sequence, 1, 0)
    assert len(tally._open) == module.KEPT
    tally.joined(0)
    assert tally.push(1, 0, 0).steps == module.KEPT
