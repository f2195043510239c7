"""The parent's state: versions that never go back, pushes that count once, checkpoints that bring it all back."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.federation import normaliser, state
from shoal.federation.normaliser import Counts
from shoal.federation.rules import RULES
from shoal.federation.state import Arrival, State
from shoal.federation.wire import Violation

RULE = RULES["alpha_beta"](alpha=0.5)


def started(**settings: object) -> State:
    return state.joined(state.start(np.zeros(4, np.float32), **settings), "one")  # type: ignore[arg-type]


def push(sequence: int, value: float = 1.0, base: int = 0, child: str = "one", **settings: object) -> Arrival:
    return Arrival(child, sequence, base, np.full(4, value, np.float32), **settings)  # type: ignore[arg-type]


def test_a_push_changes_the_weights_and_the_version() -> None:
    before = started()
    after, applied = state.apply(before, RULE, push(1, steps=10, episodes=2), 0.0)
    assert applied and after.version == 1
    np.testing.assert_array_equal(after.weights, np.full(4, 0.5))
    assert after.children["one"]._replace(distance=0.0) == state.Child(1, True, 1, 10, 2, 10, 0)
    assert (after.pushes, after.steps, after.episodes) == (1, 10, 2)
    np.testing.assert_array_equal(before.weights, np.zeros(4))
    assert before.version == 0, "a snapshot stays what it is"
    with pytest.raises(ValueError, match="read-only"):
        after.weights[0] = 3.0


def test_the_same_push_counts_once_and_an_older_one_is_refused() -> None:
    after, _ = state.apply(started(), RULE, push(1), 0.0)
    after, _ = state.apply(after, RULE, push(2), 0.0)
    again, applied = state.apply(after, RULE, push(2, 99.0), 0.0)
    assert not applied and again is after
    with pytest.raises(Violation, match="push 1 of 'one'") as refused:
        state.apply(after, RULE, push(1), 0.0)
    assert refused.value.reason == "replayed"


def test_a_base_from_the_future_is_refused() -> None:
    with pytest.raises(Violation, match="base version 5"):
        state.apply(started(), RULE, push(1, base=5), 0.0)


def test_normalisers_are_merged_and_moments_mixed() -> None:
    start = started(normaliser=2, moments={"mu": np.zeros(4), "nu": np.zeros(4)}, squares=frozenset({"nu"}))
    seen = Counts(4.0, np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    moments = {"mu": np.full(4, -2.0, np.float32), "nu": np.full(4, 2.0, np.float32)}
    after, _ = state.apply(start, RULE, push(1, normaliser=seen, moments=moments), 0.0)
    assert after.normaliser is not None and after.normaliser.samples == 4.0
    np.testing.assert_array_equal(after.moments["mu"], np.full(4, -1.0))
    np.testing.assert_array_equal(after.moments["nu"], np.full(4, 1.0))
    again, _ = state.apply(after, RULE, push(1, normaliser=seen), 0.0)
    assert again.normaliser is not None and again.normaliser.samples == 4.0, "counted once"


def test_contributions_by_steps() -> None:
    rule = RULES["fedavg"](quorum=2, grace=100.0)
    now = state.joined(started(), "two")
    now, _ = state.apply(now, rule, push(1, 1.0, steps=100), 0.0, by_steps=True)
    now, _ = state.apply(now, rule, push(1, 5.0, steps=300, child="two"), 0.0, by_steps=True)
    np.testing.assert_allclose(now.weights, np.full(4, (100 * 1.0 + 300 * 5.0) / 400), rtol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "diloco"])
def test_a_fast_child_counts_by_all_its_steps_of_a_round(name: str) -> None:
    """Its last push carries all of its training since the round began, so all of those steps are its weight."""
    own = {"rate": 1.0, "momentum": 0.0} if name == "diloco" else {}
    rule = RULES[name](quorum=2, grace=100.0, **own)
    now = state.joined(started(), "two")
    for sequence in (1, 2, 3):
        value = 4.0 / 3 if name == "diloco" else 4.0
        now, _ = state.apply(now, rule, push(sequence, value, steps=100), 0.0, by_steps=True)
        now = restarted(now)  # a checkpoint keeps the sum
    now = state.joined(state.joined(now, "one"), "two")
    now, _ = state.apply(now, rule, push(1, 0.0, now.version, child="two", steps=100), 0.0, by_steps=True)
    np.testing.assert_allclose(now.weights, np.full(4, 3.0), rtol=1e-6)


def test_pushes_without_steps_count_equally() -> None:
    """A round of children that have nothing but weights to give, between others that had steps, divides by no zero."""
    rule = RULES["fedavg"](quorum=1, grace=0.0)
    now = state.joined(started(), "two")
    for child in ("one", "two"):
        now, _ = state.apply(now, rule, push(1, 1.0, child=child, steps=100), 0.0, by_steps=True)
    now, _ = state.apply(now, rule, push(2, 3.0, steps=0), 1.0, by_steps=True)
    np.testing.assert_array_equal(now.weights, np.full(4, 3.0))


def test_a_buffer_of_changes_without_steps_counts_them_equally() -> None:
    rule = RULES["fedbuff"](buffer=2)
    now = state.joined(started(), "two")
    for sequence in (1, 2):
        now, _ = state.apply(now, rule, push(sequence, 0.0, child="two", steps=100), 0.0, by_steps=True)
    before = now.weights
    for sequence, value in ((1, 1.0), (2, 3.0)):
        now, _ = state.apply(now, rule, push(sequence, value, now.version, steps=0), 1.0, by_steps=True)
    np.testing.assert_allclose(now.weights, before + 2.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "diloco"])
def test_where_children_count_equally_a_fast_one_does_too(name: str) -> None:
    own = {"rate": 1.0, "momentum": 0.0} if name == "diloco" else {}
    rule = RULES[name](quorum=2, grace=100.0, **own)
    now = state.joined(started(), "two")
    for sequence in (1, 2):
        now, _ = state.apply(now, rule, push(sequence, 2.0 if name == "diloco" else 4.0, steps=100), 0.0)
    now, _ = state.apply(now, rule, push(1, 0.0, child="two", steps=100), 0.0)
    np.testing.assert_allclose(now.weights, np.full(4, 2.0), rtol=1e-6)


def test_a_round_waits_for_the_connected_children_and_not_for_as_many() -> None:
    """A child that pushed and left does not stand for one that is there and has not pushed."""
    rule = RULES["fedavg"](quorum=1, grace=100.0)
    now = started()
    for name in ("one", "two", "three"):
        now = state.joined(now, name)
    now, _ = state.apply(now, rule, push(1, 1.0), 0.0)
    now = state.left(now, "one")
    now, _ = state.apply(now, rule, push(1, 3.0, child="two"), 0.0)
    assert now.version == 0, "three has not pushed"
    now, _ = state.apply(now, rule, push(1, 5.0, child="three"), 0.0)
    assert now.version == 1
    np.testing.assert_array_equal(now.weights, np.full(4, 3.0))


def restarted(before: State) -> State:
    """As a parent does: restore, store the restored one, go on."""
    back = state.from_arrays(state.to_arrays(before))
    state.to_arrays(back)
    return state.reserved(back)


@pytest.mark.parametrize("rule", ["fedbuff", "diloco", "fedavg"])
def test_a_checkpoint_brings_everything_back(rule: str) -> None:
    settings = {"buffer": 3} if rule == "fedbuff" else {"quorum": 2, "grace": 1e6}
    made = RULES[rule](**settings)
    now = state.joined(started(normaliser=1, moments={"nu": np.ones(4)}, squares=frozenset({"nu"})), "two")
    seen = Counts(1.0, np.zeros(1), np.zeros(1))
    for sequence, child in enumerate(["one", "two", "one", "one"], start=1):
        now, _ = state.apply(
            now,
            made,
            push(sequence, 0.1 * sequence, child=child, normaliser=seen, moments={"nu": np.full(4, 2.0, np.float32)}),
            0.0,
        )
    assert now.memory.pending
    back = restarted(now)
    assert back.weights.tobytes() == now.weights.tobytes()
    assert normaliser.to_vector(back.normaliser or normaliser.empty(1)).tolist() == [4.0, 0.0, 0.0]
    assert {name: child._replace(present=False) for name, child in now.children.items()} == back.children
    assert [one.child for one in back.memory.pending] == [one.child for one in now.memory.pending]
    for a, b in zip(back.memory.pending, now.memory.pending, strict=True):
        assert a.vector.tobytes() == b.vector.tobytes() and a.moments["nu"].tobytes() == b.moments["nu"].tobytes()
    assert (back.pushes, back.steps, back.squares) == (now.pushes, now.steps, now.squares)
    # Going on from it gives what going on without a restart gives.
    for name in ("one", "two"):
        back = state.joined(back, name)
    gone_on, _ = state.apply(now, made, push(9, 0.7, base=now.version, child="two"), 1e7)
    restored, _ = state.apply(back, made, push(9, 0.7, base=back.version, child="two"), 1e7)
    assert restored.weights.tobytes() == gone_on.weights.tobytes()


def test_versions_never_go_back_however_often_it_is_killed() -> None:
    """Also when it dies between its restart and its next checkpoint."""
    now, seen = started(), 0
    checkpoint = state.to_arrays(now)
    now = state.reserved(now)
    for sequence in range(1, 6):
        now, _ = state.apply(now, RULE, push(sequence), 0.0)
        seen = max(seen, now.version)
    for _ in range(3):
        now = state.from_arrays(checkpoint)
        assert now.version > seen or now.version == state.from_arrays(checkpoint).version
        with pytest.raises(RuntimeError, match="checkpoint"):
            state.apply(now, RULE, push(100), 0.0)
    checkpoint = state.to_arrays(now)
    now, _ = state.apply(state.reserved(now), RULE, push(100), 0.0)
    assert now.version > seen


def test_staleness_does_not_count_the_versions_that_a_restart_skipped() -> None:
    now = started()
    for sequence in range(1, 4):
        now, _ = state.apply(now, RULE, push(sequence), 0.0)
    back = restarted(now)
    assert state.age(back, 1) == 2 and state.age(back, 3) == 0
    assert state.age(back, 10) == 0, "a version that was lost with the parent"
    back, _ = state.apply(state.joined(back, "one"), RULE, push(4, base=1), 0.0)
    assert state.age(back, 1) == 3 and state.age(back, back.version - 1) == 1


def test_a_leaving_child_keeps_its_sequence() -> None:
    now, _ = state.apply(started(), RULE, push(1), 0.0)
    now = state.left(now, "one")
    assert now.present == 0
    assert not state.apply(state.joined(now, "one"), RULE, push(1), 0.0)[1]
    assert state.left(now, "nobody") is now


@pytest.mark.parametrize("damage", ["meta", "weights", "text", "version"])
def test_what_is_no_checkpoint_is_refused(damage: str) -> None:
    arrays = state.to_arrays(started())
    if damage == "text":
        arrays["meta"] = np.frombuffer(b"{}", np.uint8)
    elif damage == "version":
        arrays["meta"] = np.frombuffer(arrays["meta"].tobytes().replace(b'"version":0', b'"version":"x"'), np.uint8)
    else:
        del arrays[damage]
    with pytest.raises(BadInput, match="not a checkpoint"):
        state.from_arrays(arrays)


def test_unknown_squares_are_refused() -> None:
    with pytest.raises(BadInput, match="no moments named nu"):
        state.start(np.zeros(2), squares=frozenset({"nu"}))


def test_shares_are_relative_to_the_connected_children() -> None:
    """A fast child that has left does not make the pushes of the others small for ever."""
    now = state.joined(state.joined(started(), "one"), "two")
    now, _ = state.apply(now, RULE, push(1, steps=100), 0.0)
    now, _ = state.apply(now, RULE, push(1, steps=9900, child="two"), 0.0)
    assert state.share_of(now, "one", 100) == pytest.approx(100 / 5000)
    assert state.share_of(state.left(now, "two"), "one", 100) == 1.0
