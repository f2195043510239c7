"""A parent without sockets: what is refused leaves its weights byte-identical, and honest children unaffected."""

from __future__ import annotations

import numpy as np
import pytest
from parents import ARCHITECTURE, TOKEN, Wire, connected, make_courier, make_hub, to_bytes

from shoal.federation import state, wire
from shoal.federation.courier import Courier, Exchanged, Update
from shoal.federation.guard import Limits
from shoal.federation.hub import AWAY, Consistency
from shoal.federation.ledger import updates_of
from shoal.federation.normaliser import Counts
from shoal.federation.wire import Part, Violation


def exchange(made: Wire, vector: np.ndarray, **settings: object) -> Exchanged:
    base = made.hub.state.version
    answer = made.request(*made.courier.push(Update(vector.astype(np.float32), base, **settings)))  # type: ignore[arg-type]
    assert answer is not None and isinstance(answer.header, wire.Pushed), answer
    return made.courier.answered(answer)


def test_alpha_and_beta_of_one_give_the_child_its_own_weights() -> None:
    hub = make_hub(alpha=1.0, beta=1.0)
    made = connected(hub)
    rng = np.random.default_rng(0)
    for _ in range(5):
        weights = rng.normal(size=8).astype(np.float32)
        got = exchange(made, weights)
        assert got.weights is not None and got.weights.tobytes() == weights.tobytes()


def test_a_welcome_tells_what_a_child_needs() -> None:
    hub = make_hub(rule="fedavg", normaliser=3)
    message = Wire(hub, make_courier()).join()
    welcome = message.header
    assert (welcome.run, welcome.architecture, welcome.size) == ("run-1", ARCHITECTURE, 8)
    assert (welcome.rule, welcome.takes, welcome.beta, welcome.adopts) == ("fedavg", "weights", 1.0, "newer")
    assert welcome.settings == {"env": "Toy"} and welcome.normaliser == 3 and welcome.sequence == 0


def test_pulls_give_the_snapshot_and_nothing_if_it_is_known() -> None:
    hub = make_hub()
    made = connected(hub)
    answer = made.request(made.courier.pull())
    assert answer is not None
    got = made.courier.answered(answer)
    assert got.weights is not None and got.weights.tobytes() == hub.state.weights.tobytes()
    answer = made.request(made.courier.pull(unless=got.version))
    assert answer is not None and made.courier.answered(answer).weights is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"token": "not the token of this run"}, "token"),
        ({"architecture": "another"}, "architecture"),
        ({"run": "another"}, "run"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused(settings: dict[str, str], reason: str) -> None:
    hub = make_hub()
    token = settings.pop("token", TOKEN)
    made = Wire(hub, Courier("one", token, **settings))
    message = made.join()
    assert message.header.reason == reason and message.header.fatal
    assert token not in message.header.message
    assert made.session.closed and not hub.state.children
    assert hub.guard.refused == {reason: 1} and not hub.guard.strikes


def test_a_child_may_learn_the_architecture_from_the_welcome() -> None:
    made = Wire(make_hub(), make_courier(architecture=""))
    assert isinstance(made.join().header, wire.Welcome)


HOSTILE = {
    "non-finite": np.array([np.nan] + [0.0] * 7),
    "infinite": np.array([np.inf] + [0.0] * 7),
    "magnitude": np.linspace(-1, 1, 8) * 1e6,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_weights_change_nothing_and_lead_to_quarantine(name: str) -> None:
    hub = make_hub(limits=Limits(strikes=3))
    honest, hostile = connected(hub, "honest"), connected(hub, "hostile")
    exchange(honest, np.ones(8))
    before = hub.state.weights.tobytes()
    for strike in range(3):
        push = hostile.courier.push(Update(HOSTILE[name].astype(np.float32), 0))
        answer = hostile.request(*push)
        assert answer is not None and answer.header.reason in ("non-finite", "magnitude")
        assert answer.header.sequence == push[0].sequence
        assert answer.header.fatal == (strike == 2)
        assert hostile.courier.refused(answer.header) is None and not hostile.courier.open
    assert hub.state.weights.tobytes() == before
    assert Wire(hub, make_courier("hostile")).join().header.reason == "quarantined"
    assert exchange(honest, np.ones(8)).applied
    report = hub.report()
    assert report["rejected"] == 4
    assert [child["quarantined"] for child in report["children"]] == [False, True]


def test_a_refused_push_leaves_its_number_free() -> None:
    hub = make_hub()
    made = connected(hub)
    answer = made.request(*made.courier.push(Update(HOSTILE["magnitude"].astype(np.float32), 0)))
    assert answer is not None
    made.courier.refused(answer.header)
    assert exchange(made, np.ones(8)).applied
    assert hub.state.pushes == 1


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"architecture": "another"}, "architecture"),
        ({"base": 7}, "base"),
        ({"parts": (Part(name="weights", encoding="float32", size=9, bytes=36),)}, "shape"),
    ],
)
def test_pushes_that_do_not_fit_are_refused(header: dict[str, object], reason: str) -> None:
    hub = make_hub()
    made = connected(hub)
    fields = {"child": "one", "sequence": 1, "base": 0, "architecture": ARCHITECTURE}
    fields["parts"] = (Part(name="weights", encoding="float32", size=8, bytes=32),)
    push = wire.Push(**fields | header)  # type: ignore[arg-type]
    before = hub.state.weights.tobytes()
    answer = made.request(push, [bytes(sum(part.bytes for part in push.parts))])
    assert answer is not None and answer.header.reason == reason
    assert hub.state.weights.tobytes() == before and hub.state.pushes == 0


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (Counts(1e12, np.zeros(2), np.zeros(2)), "magnitude"),
        (Counts(2 * 500 + 65_537, np.zeros(2), np.zeros(2)), "magnitude"),
        (Counts(1.0, np.full(2, np.nan), np.zeros(2)), "non-finite"),
        (Counts(-1.0, np.zeros(2), np.zeros(2)), "non-finite"),
        (Counts(4.0, np.full(2, 1e200), np.zeros(2)), "magnitude"),
        (Counts(4.0, np.zeros(2), np.full(2, 1e60)), "magnitude"),
    ],
)
def test_impossible_normalisers_are_refused(counts: Counts, reason: str) -> None:
    hub = make_hub(normaliser=2)
    made = connected(hub)
    answer = made.request(*made.courier.push(Update(np.ones(8, np.float32), 0, steps=500, normaliser=counts)))
    assert answer is not None and answer.header.reason == reason
    assert hub.state.pushes == 0


def test_a_child_cannot_claim_more_steps_than_fit_into_its_time() -> None:
    """They would spend the budget of all."""
    hub = make_hub(limits=Limits(steps_per_second=1000.0))
    made = connected(hub)
    answer = made.request(*made.courier.push(Update(np.ones(8, np.float32), 0, steps=2**53 - 1)))
    assert answer is not None and answer.header.reason == "rate" and not answer.header.fatal
    assert hub.state.pushes == hub.state.steps == 0 and hub.guard.refused == {"rate": 1}
    other = connected(hub, "other")
    assert exchange(other, np.ones(8), steps=1000).applied
    push = other.courier.push(Update(np.ones(8, np.float32), 1, steps=6000))
    for other.now, reason in ((4.0, "rate"), (5.0, None)):
        answer = other.request(*push)
        assert answer is not None and getattr(answer.header, "reason", None) == reason
    assert hub.state.steps == 7000
    answer = other.request(*push)
    assert answer is not None and not answer.header.applied, (
        "the answer to a repeated push does not depend on its steps"
    )


def test_pulls_and_requests_for_the_status_are_limited() -> None:
    hub = make_hub(limits=Limits(pushes_per_second=2.0, asks_per_second=2.0))
    for request in (wire.Pull(), wire.Ask()):
        made = connected(hub, f"child-{type(request).__name__}")
        reasons = [getattr(made.request(request).header, "reason", "") for _ in range(6)]  # type: ignore[union-attr]
        assert reasons == [""] * 4 + ["rate"] * 2
        made.now = 1.0
        assert not hasattr(made.request(request).header, "reason")  # type: ignore[union-attr]
    assert hub.guard.refused == {"rate": 4} and not hub.guard.strikes


@pytest.mark.parametrize("consistency", ["lock", "hogwild"])
def test_a_push_without_a_reserved_version_is_put_off_until_the_next_checkpoint(consistency: Consistency) -> None:
    hub = make_hub(consistency=consistency)
    made = connected(hub)
    assert exchange(made, np.ones(8)).applied
    hub.state = hub.state._replace(ceiling=hub.state.version + 1)
    before = hub.state
    answer = made.request(*made.courier.push(Update(np.full(8, 2.0, np.float32), 1, steps=3)))
    assert answer is not None and answer.header.reason == "rate" and not answer.header.fatal
    assert "checkpoint" in answer.header.message and answer.header.retry_after > 0
    assert made.courier.refused(answer.header) is None and made.courier.open, "it may be repeated"
    assert hub.state is before and not hub.guard.strikes
    hub.stored(hub.checkpoint())
    answer = made.request(*made.courier.repeat())
    assert answer is not None and made.courier.answered(answer).applied and hub.state.steps == 3


def test_the_weights_that_reached_the_goal_are_a_version_but_no_update() -> None:
    hub = make_hub()
    made = connected(hub)
    kept = hub.state
    for _ in range(3):
        exchange(made, np.ones(8))
    hub.end(kept, last_round=False)
    assert (hub.state.version, updates_of(hub.state)) == (4, 3)


@pytest.mark.parametrize("name", ["mu", "nu"])
def test_moments_that_would_drown_all_others_are_refused(name: str) -> None:
    moments = {"mu": np.zeros(8), "nu": np.zeros(8)}
    hub = make_hub(start=state.start(np.ones(8), moments=moments, squares=frozenset({"nu"})))
    made = connected(hub)
    first = {"mu": np.full(8, -300.0, np.float32), "nu": np.full(8, 9e4, np.float32)}  # large gradients are no offence
    assert exchange(made, np.ones(8), moments=first).applied
    huge = first | {name: np.full(8, 1e12, np.float32)}
    answer = made.request(*made.courier.push(Update(np.ones(8, np.float32), 1, moments=huge)))
    assert answer is not None and answer.header.reason == "magnitude" and name in answer.header.message
    assert hub.state.pushes == 1


def test_normalisers_come_back_merged() -> None:
    hub = make_hub(normaliser=1)
    one, two = connected(hub, "one"), connected(hub, "two")
    exchange(one, np.ones(8), normaliser=Counts(2.0, np.array([1.0]), np.array([0.5])))
    got = exchange(two, np.ones(8), normaliser=Counts(2.0, np.array([3.0]), np.array([0.5])))
    assert got.normaliser is not None
    assert (got.normaliser.samples, got.normaliser.mean[0], got.normaliser.m2[0]) == (4.0, 2.0, 5.0)


def test_too_many_connections_are_refused() -> None:
    hub = make_hub(limits=Limits(connections=3, greeting=2))
    sessions = [hub.session() for _ in range(2)]
    with pytest.raises(Violation, match="without hello"):
        hub.session()
    for session in sessions:
        session.closed_by_peer()
    made = [connected(hub, f"c{i}") for i in range(3)]
    with pytest.raises(Violation, match="3 connections"):
        hub.session()
    made[0].close()
    connected(hub, "c9")


def test_the_number_of_names_is_limited() -> None:
    hub = make_hub(limits=Limits(children=2))
    made = [connected(hub, name) for name in ("a", "b")]
    assert Wire(hub, make_courier("c")).join().header.reason == "full"
    for each in made:
        exchange(each, np.ones(8))
        each.close()
    assert Wire(hub, make_courier("c")).join().header.reason == "full"
    assert Wire(hub, make_courier("a")).join().header.sequence == 1


def test_names_that_left_without_a_push_make_room_and_the_others_keep_their_sequence() -> None:
    """A process without a name gets a new one at each start."""
    hub = make_hub(limits=Limits(children=3, strikes=5))
    pushed, struck = connected(hub, "pushed"), connected(hub, "struck")
    exchange(pushed, np.ones(8))
    hub.guard.count(Violation("magnitude", "x"), "struck")
    pushed.close()
    struck.close()
    for number in range(5):
        connected(hub, f"start-{number}").close()
        hub.tick(1000.0 * number)
    assert set(hub.state.children) == {"pushed", "struck", "start-4"}
    restored = make_hub(limits=Limits(children=3), start=state.from_arrays(hub.checkpoint()))
    restored.recount(hub.counts())
    for each in (hub, restored):
        for name in ("new", "newer"):
            made = connected(each, name)
            assert set(each.state.children) == {"pushed", "struck", name}
            assert set(each.counts()["bytes"]) <= {"pushed", "struck", name} and each.guard.strikes["struck"] == 1
            if name == "new":
                made.close()
        assert Wire(each, make_courier("another")).join().header.reason == "full", "that one is connected"
        assert Wire(each, make_courier("pushed")).join().header.sequence == 1
        made.close()


def test_reference_copies_are_dropped_some_time_after_a_child_left() -> None:
    hub = make_hub(1000)
    hub.tick(0.0)
    made = connected(hub, encoding="int8")
    rng = np.random.default_rng(0)
    exchange(made, rng.normal(size=1000))
    sent = hub.links("one").bytes_up
    courier = made.courier
    for left, kept in ((10.0, True), (1000.0, False)):
        hub.tick(left)
        made.close()
        hub.tick(left + AWAY - 1.0)
        assert hub.links("one").up is not None and hub.links("one").down is not None
        if not kept:
            hub.tick(left + AWAY)
            assert hub.links("one").up is None and hub.links("one").down is None and hub.links("one").bytes_up > sent
        made = Wire(hub, courier)
        made.join()
        hub.tick(left + AWAY + 1.0)
        assert kept == (hub.links("one").up is not None)
        push = courier.push(Update(rng.normal(size=1000).astype(np.float32), hub.state.version))
        answer = made.request(*push)
        assert answer is not None
        if not kept:
            assert answer.header.reason == "reference"
            again = courier.refused(answer.header)
            assert again is not None
            answer = made.request(*again)
        assert answer is not None and courier.answered(answer).applied
    assert hub.state.pushes == 3


def test_too_many_pushes_are_put_off() -> None:
    hub = make_hub(limits=Limits(pushes_per_second=1.0))
    made = connected(hub)
    exchange(made, np.ones(8))
    exchange(made, np.ones(8))
    answer = made.request(*made.courier.push(Update(np.ones(8, np.float32), 2)))
    assert answer is not None and answer.header.reason == "rate" and answer.header.retry_after == pytest.approx(1.0)
    assert made.courier.refused(answer.header) is None and made.courier.open, "it may be repeated"
    made.now = 1.5
    answer = made.request(*made.courier.repeat())
    assert answer is not None and made.courier.answered(answer).applied


@pytest.mark.parametrize("encoding", ["float16", "int8"])
@pytest.mark.parametrize("rule", ["alpha_beta", "staleness"])
def test_coarse_encodings_stay_close(encoding: str, rule: str) -> None:
    hub = make_hub(1000, rule=rule)
    made = connected(hub, encoding=encoding)
    rng = np.random.default_rng(0)
    weights = hub.state.weights.copy()
    for number in range(50):
        weights = weights + rng.normal(scale=0.01, size=1000).astype(np.float32)
        vector = weights if rule == "alpha_beta" else rng.normal(scale=0.01, size=1000)
        before = made.hub.links("one").bytes_up
        got = exchange(made, vector)
        assert got.weights is not None
        np.testing.assert_allclose(got.weights, hub.state.weights, atol=2e-3)
        sent = made.hub.links("one").bytes_up - before
        if number:
            assert sent <= {"float16": 2000, "int8": 1016}[encoding]


def test_a_watcher_sees_the_status_and_is_no_child() -> None:
    hub = make_hub()
    connected(hub)
    session = hub.session()
    session.feed(to_bytes(wire.Hello(child="eye", token=TOKEN, watches=True)))
    session.finish(0.0)
    session.feed(to_bytes(wire.Ask()))
    message = b"".join(bytes(piece) for piece in session.finish(0.0).message or [])
    assert b'"child":"one"' in message and b"eye" not in message
    session.closed_by_peer()
    assert hub.state.present == 1


def test_a_watcher_collects_no_strikes_for_the_child_that_it_names() -> None:
    """Any child's token is enough to watch, under any name."""
    hub = make_hub(limits=Limits(strikes=1))
    mallory = hub.guard.tokens.issue("mallory")
    for _ in range(3):
        session = hub.session()
        session.feed(to_bytes(wire.Hello(child="one", token=mallory, watches=True)))
        session.finish(0.0)
        answer = session.feed(to_bytes(wire.Pull()))
        assert answer is not None and answer.close
        session.closed_by_peer()
    assert hub.guard.refused["order"] == 3
    assert isinstance(Wire(hub, make_courier("one")).join().header, wire.Welcome)


def test_answers_tell_children_to_stop() -> None:
    hub = make_hub()
    made = connected(hub)
    assert not exchange(made, np.ones(8)).stop
    hub.stop = True
    assert exchange(made, np.ones(8)).stop


def test_a_round_ends_by_the_clock() -> None:
    hub = make_hub(rule="fedavg", quorum=1, grace=5.0)
    one = connected(hub, "one")
    connected(hub, "two")
    exchange(one, np.ones(8))
    assert hub.state.version == 0
    hub.tick(4.9)
    assert hub.state.version == 0
    hub.tick(5.0)
    assert hub.state.version == 1
    np.testing.assert_array_equal(hub.state.weights, np.ones(8))


def test_the_last_round_ends_with_the_training() -> None:
    for quorum, version in ((1, 1), (2, 0)):
        hub = make_hub(rule="fedavg", quorum=quorum, grace=5.0)
        one = connected(hub, "one")
        connected(hub, "two")
        exchange(one, np.ones(8))
        hub.end(None, last_round=True)
        assert hub.stop and hub.state.version == version, "if it has its quorum"
    np.testing.assert_array_equal(one.hub.state.weights, np.linspace(-1, 1, 8, dtype=np.float32))
    hub = make_hub(rule="fedavg", quorum=1, grace=5.0)
    one = connected(hub, "one")
    connected(hub, "two")
    start = hub.state
    exchange(one, np.ones(8))
    hub.end(start, last_round=True)
    assert hub.state.version == 1 and hub.state.weights is start.weights, "weights that reached the goal are kept"


def test_a_status_fits_into_its_message_however_many_children_there_are() -> None:
    hub = make_hub()
    for number in range(400):
        name = f"{'n' * 60}{number:04}"
        hub.state = state.joined(hub.state, name)
        for second in range(2):
            hub.rates.add(name, 1_234_567, float(second))
    watching = connected(hub, "busiest")
    exchange(watching, np.ones(8))
    answer = watching.request(wire.Ask())
    assert answer is not None
    report = answer.header.report
    assert len(report["children"]) == 128 and report["unlisted"] == 273
    assert "busiest" in [child["child"] for child in report["children"]]
