"""Slices of vectors: what arrives counts once, what does not is only missed."""

from __future__ import annotations

import asyncio
import random
import socket
import statistics
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parents import TOKEN, connected, make_courier, make_hub

from shoal.core.errors import BadInput
from shoal.federation import datagrams, state, wire
from shoal.federation import link as link_module
from shoal.federation.addresses import Address
from shoal.federation.client import Refusal
from shoal.federation.courier import Update
from shoal.federation.datagrams import BURST, DatagramClient, DatagramHub, DatagramServer
from shoal.federation.guard import Limits
from shoal.federation.link import Link
from shoal.federation.serving import Serving
from shoal.federation.session import Answer
from shoal.federation.slicing import DOWN, SLICE, UP, Gathering, key_of, refusal, refused_by, slices
from shoal.federation.tally import Totals
from shoal.federation.timeouts import AdaptiveTimeout, Patience

HELLO = wire.Hello(child="one", token=TOKEN, life="life", attempt=1)
KEY = key_of(TOKEN, "one", "run-1", "life", 1)
SIZE = 3 * SLICE + 17
VECTOR = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


def sent(
    sequence: int = 1, vector: np.ndarray = VECTOR, base: int = 0, direction: int = UP, took: float | None = None
) -> list[bytes]:
    return list(slices(direction, "one", KEY, sequence, base, vector, Totals(7, 2), took))


class Lossy:
    """A UDP transport that loses a share of what it sends."""

    def __init__(self, transport: Any, shares: dict[str, float], seed: int) -> None:
        self._transport, self._shares, self._random = transport, shares, random.Random(seed)
        self._way = "down" if transport.get_extra_info("peername") is None else "up"

    def sendto(self, *arguments: Any) -> None:
        if self._random.random() >= self._shares[self._way]:
            self._transport.sendto(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def losing(monkeypatch: pytest.MonkeyPatch, share: float) -> dict[str, float]:
    """Lose this share of the datagrams on the way up to the parent and down to the child; each can be changed."""
    real, seeds, shares = datagrams._with_room, iter(range(1000)), {"up": share, "down": share}
    monkeypatch.setattr(datagrams, "_with_room", lambda transport: Lossy(real(transport), shares, next(seeds)))
    return shares


def gathering() -> Gathering:
    return Gathering(UP, "one", KEY, SIZE)


@given(st.permutations(range(4)))
def test_any_order_gives_the_vector(order: list[int]) -> None:
    parts, made = sent(), gathering()
    ended = [got for index in order for got in made.receive(parts[index], 0.0)]
    assert len(ended) == 1 and ended[0].there.all()
    assert ended[0].values.tobytes() == VECTOR.tobytes()
    assert (ended[0].sequence, ended[0].totals) == (1, (7, 2))


def test_a_datagram_fits_into_an_ethernet_frame() -> None:
    assert max(len(datagram) for datagram in sent()) <= 1472


def test_forged_repeated_and_older_slices_are_dropped() -> None:
    made, good = gathering(), sent()
    forged = good[0][:50] + bytes([good[0][50] ^ 1]) + good[0][51:]
    other_key = next(slices(UP, "one", key_of(TOKEN, "two", "run-1", "life", 1), 1, 0, VECTOR))
    wrong = [
        forged,
        other_key,
        good[0][:-1],
        b"",
        good[0][:20],
        sent(direction=DOWN)[0],
        *slices(UP, "one", KEY, 1, 0, VECTOR[:-1]),
    ]
    for datagram in wrong:
        assert made.receive(datagram, 0.0) == []
    assert made.dropped == len(wrong)
    made.receive(good[1], 0.0)
    made.receive(good[1], 0.0)
    assert made.dropped == len(wrong) + 1
    assert [got.sequence for got in made.receive(sent(2)[0], 0.0)] == [1]
    assert made.receive(good[0], 0.0) == [] and made.dropped == len(wrong) + 2


@given(st.binary(max_size=100))
def test_garbage_is_dropped(data: bytes) -> None:
    hub = DatagramHub(make_hub(SIZE))
    hub.register(HELLO)
    assert hub.receive(data, None, 0.0) == []
    made = gathering()
    assert made.receive(data, 0.0) == [] and made.dropped == 1


@pytest.mark.parametrize("rule", ["alpha_beta", "staleness"])
def test_missing_slices_leave_the_weights_as_they_are(rule: str) -> None:
    inner = make_hub(SIZE, rule=rule)
    hub, before = DatagramHub(inner), inner.state.weights
    hub.register(HELLO)
    for index in (0, 2):
        assert hub.receive(sent()[index], "home", 0.0) == []
    answers = hub.tick(1.0)
    assert len(answers) == 4 and all(address == "home" for _, address in answers)
    moved = inner.state.weights != before
    assert moved[:SLICE].all() and not moved[SLICE : 2 * SLICE].any() and not moved[3 * SLICE :].any()
    assert inner.state.pushes == 1 and inner.state.children["one"].steps == 7
    assert hub.tick(2.0) == []
    after = inner.state
    for datagram in sent():
        hub.receive(datagram, "thief", 3.0)
    assert hub.tick(4.0) == [] and inner.state is after, "late and replayed slices change nothing"


def test_hostile_slices_change_nothing_and_are_refused() -> None:
    inner = make_hub(SIZE, limits=Limits(strikes=2))
    hub = DatagramHub(inner)
    hub.register(HELLO)
    before, answers = inner.state.weights.tobytes(), []
    for sequence, value in enumerate([np.nan, 1e9, 1.0], start=1):
        for datagram in sent(sequence, np.full(SIZE, value, np.float32)):
            answers += hub.receive(datagram, "home", 0.0)
    assert inner.state.weights.tobytes() == before
    assert inner.guard.refused == {"non-finite": 1, "magnitude": 1} and inner.guard.quarantined("one")
    assert hub.unknown == 4, "a quarantined child is no longer known"
    assert len(answers) == 2 and {address for _, address in answers} == {"home"}
    found = [refused_by(datagram, "one", KEY, sequence) for sequence, (datagram, _) in enumerate(answers, start=1)]
    assert [(one.reason, one.sequence, one.fatal) for one in found if one] == [
        ("non-finite", 1, False),
        ("magnitude", 2, True),
    ]


def test_a_refusal_is_signed_and_belongs_to_one_push() -> None:
    refused = wire.Refused(
        reason="magnitude", message="largest value 1e+09; at most 1 is accepted", sequence=3, fatal=False
    )
    datagram = refusal("one", KEY, 3, 7, refused)
    assert refused_by(datagram, "one", KEY, 3) == refused and len(datagram) <= 1472
    assert refused_by(datagram, "one", KEY, 2) is None and refused_by(datagram, "two", KEY, 3) is None
    assert refused_by(datagram, "one", key_of(TOKEN, "one", "run-1", "life", 2), 3) is None
    assert refused_by(datagram[:-20] + bytes([datagram[-20] ^ 1]) + datagram[-19:], "one", KEY, 3) is None
    for other in (sent(3, direction=DOWN)[0], b"SHU\x03", b"", datagram[:40]):
        assert refused_by(other, "one", KEY, 3) is None
    made = Gathering(DOWN, "one", KEY, SIZE)
    assert made.receive(datagram, 0.0) == [] and made.dropped == 1


def test_a_child_is_told_why_its_push_was_refused_and_gives_the_steps_again() -> None:
    inner = make_hub()
    with Serving(inner, Address("127.0.0.1", 0), datagrams=True) as serving:
        with Link(serving.url, make_courier()) as link:
            link.datagrams = True
            link.give(Update(np.full(8, np.nan, np.float32), base=0, steps=5, episodes=1))
            with pytest.raises(Refusal, match="non-finite"):
                link.take(60.0)
            got = None
            link.give(Update(np.ones(8, np.float32), base=0, steps=5 + 3, episodes=1))  # as the driver does
            while (got := link.take(60.0)) is None or got.weights is None:
                link.give(Update(np.ones(8, np.float32), base=0))
        assert (inner.state.steps, inner.state.episodes, inner.guard.strikes["one"]) == (8, 1, 1)


def test_a_child_waits_as_long_as_the_parent_asks_for() -> None:
    """More steps than fit into the time: the push is refused, and repeated under another number."""
    inner = make_hub(limits=Limits(steps_per_second=1000.0))
    with Serving(inner, Address("127.0.0.1", 0), datagrams=True) as serving:
        with Link(serving.url, make_courier()) as link:
            link.datagrams = True
            link.give(Update(np.ones(8, np.float32), base=0, steps=1300))
            while (got := link.take(60.0)) is None or got.weights is None:
                link.give(Update(np.ones(8, np.float32), base=0))
        assert inner.state.steps == 1300 and inner.guard.refused["rate"] >= 1 and not inner.guard.strikes["one"]


@pytest.mark.parametrize("heard", [True, False])
def test_a_quarantined_child_ends(heard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends too, so that it learns of it even if the refusals are lost."""
    shares = losing(monkeypatch, 0.0)
    monkeypatch.setattr(link_module, "ASK", 0.0)
    shares["down"] = 0.0 if heard else 1.0
    inner = make_hub(limits=Limits(strikes=3))
    with Serving(inner, Address("127.0.0.1", 0), datagrams=True) as serving:
        with Link(serving.url, make_courier()) as link:
            link.datagrams = True
            reasons = []
            for _ in range(20):
                try:
                    link.give(Update(np.full(8, 1e9, np.float32), base=0))
                    assert link.take(60.0) is not None
                except Refusal as refusal:
                    reasons.append(refusal.refused.reason)
                    if reasons[-1] == "quarantined":
                        break
            assert reasons[-1] == "quarantined" and set(reasons[:-1]) == ({"magnitude"} if heard else set())
        assert not inner.sessions and inner.state.pushes == 0


def test_rules_that_cannot_miss_slices_are_refused() -> None:
    with pytest.raises(BadInput, match="rule median over UDP"):
        DatagramHub(make_hub(rule="median"))


def test_every_network_at_once_is_refused() -> None:
    with pytest.raises(BadInput, match="name one LAN address"):
        asyncio.run(DatagramServer.bind(DatagramHub(make_hub()), "0.0.0.0", 0))


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1])
def test_a_child_and_its_parent_come_together_at_any_loss(loss: float) -> None:
    """A child that holds still: the parent reaches it, a slice at a time; the exact formula without loss."""
    inner, rng = make_hub(SIZE, alpha=0.5), random.Random(0)
    hub, start = DatagramHub(inner), inner.state.weights
    hub.register(HELLO)
    down = Gathering(DOWN, "one", KEY, SIZE)
    child, rounds = VECTOR.copy(), 40
    for sequence in range(1, rounds + 1):
        answers = []
        for datagram in sent(sequence, child, base=inner.state.version):
            if rng.random() >= loss:
                answers += hub.receive(datagram, "home", float(sequence))
        answers += hub.tick(sequence + 0.5)
        for datagram, _ in answers:
            if rng.random() >= loss:
                down.receive(datagram, float(sequence))
    np.testing.assert_allclose(inner.state.weights, child, atol=1e-5)
    assert inner.state.pushes == rounds or loss
    if not loss:
        np.testing.assert_allclose(inner.state.weights, child + (start - child) * 0.5**rounds, atol=1e-6)


def test_over_real_sockets() -> None:
    inner = make_hub(SIZE, alpha=1.0)
    inner.state = state.joined(inner.state, "one")

    async def main() -> None:
        hub = DatagramHub(inner)
        server = await DatagramServer.bind(hub, "127.0.0.1", 0)
        hub.register(HELLO)
        client = await DatagramClient.open("127.0.0.1", server.port, child="one", key=KEY, size=SIZE, sequence=0)
        arrived = 0
        for number in range(20):
            got = await client.exchange(Update(VECTOR + np.float32(number), base=0))
            arrived += got is not None and bool(got.there.all())
        assert arrived >= 10, "loopback hardly loses anything"
        assert 10 <= inner.state.pushes <= 20
        await client.close()
        await server.close()

    asyncio.run(main())


def test_a_lost_slice_costs_a_short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 29 slices at 10 % loss, one answer in 20 is complete: the others too are used soon, and teach the timeout."""
    losing(monkeypatch, 0.1)
    size, took, found = 29 * SLICE, [], []
    inner = make_hub(size)

    async def main() -> None:
        hub = DatagramHub(inner)
        server = await DatagramServer.bind(hub, "127.0.0.1", 0)
        hub.register(HELLO)
        client = await DatagramClient.open("127.0.0.1", server.port, child="one", key=KEY, size=size, sequence=0)
        vector = np.zeros(size, np.float32)
        for _ in range(25):
            began = time.monotonic()
            found.append(await client.exchange(Update(vector, base=0)))
            took.append(time.monotonic() - began)
        expected = AdaptiveTimeout(Patience(least=0.2, most=1.0))
        for seconds in took:
            expected.observe(seconds)
        assert client.patience <= 2 * expected.seconds, "it follows what was measured, 0.5 s instead of 1"
        await client.close()
        await server.close()

    asyncio.run(main())
    shares = [got.there.mean() for got in found if got is not None]
    assert len(shares) >= 20 and 0.8 < statistics.mean(shares) < 0.97, "what has arrived is used"
    assert statistics.median(took) < 0.5, "it takes about 0.15 s"


def test_without_any_answer_the_timeout_applies_and_grows() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
            mute.bind(("127.0.0.1", 0))
            about: Any = {"child": "one", "key": KEY, "size": SIZE, "sequence": 0}
            client = await DatagramClient.open(*mute.getsockname(), **about)
            for _ in range(3):
                client._timeout.observe(0.01)
            before = client.patience
            assert before < 0.5
            assert await client.exchange(Update(VECTOR, base=0)) is None
            assert client.patience == min(1.0, 2 * before)
            for datagram in sent(1, direction=DOWN):  # the answer comes too late: it is not that of the next push
                client.datagram_received(datagram, None)
            assert await client.exchange(Update(VECTOR, base=0)) is None
            await client.close()

    asyncio.run(main())


def test_steps_and_episodes_of_lost_pushes_and_answers_count_once() -> None:
    inner = make_hub(SIZE)
    hub, heard = DatagramHub(inner), []
    inner.heard = heard.append
    hub.register(HELLO)

    def push(sequence: int, totals: Totals) -> None:
        for datagram in slices(UP, "one", KEY, sequence, inner.state.version, VECTOR, totals):
            hub.receive(datagram, "home", float(sequence))

    push(1, Totals(10, 1))  # whether its answer arrives does not matter
    push(3, Totals(60, 3))  # number 2 is lost
    assert (inner.state.pushes, inner.state.steps, inner.state.episodes) == (2, 60, 3)
    assert [(one.steps, one.episodes) for one in heard] == [(10, 1), (50, 2)]
    push(4, Totals(50, 3))
    assert inner.guard.refused == {"malformed": 1} and inner.state.steps == 60
    push(5, Totals(61, 3))
    assert inner.state.steps == 61 == sum(one.steps for one in heard)


def test_a_push_that_was_applied_before_is_answered_and_not_counted() -> None:
    inner = make_hub(SIZE)
    hub = DatagramHub(inner)
    hub.register(HELLO)
    over_websocket = connected(inner)
    over_websocket.request(*over_websocket.courier.push(Update(VECTOR, base=0, steps=7, episodes=2)))
    heard: list[wire.Push] = []
    inner.heard, before = heard.append, inner.state
    answers = [answer for datagram in sent(1) for answer in hub.receive(datagram, "home", 1.0)]
    assert len(answers) == 4 and inner.state is before and not heard
    for datagram in slices(UP, "one", KEY, 2, 1, VECTOR, Totals(8, 2)):
        hub.receive(datagram, "home", 2.0)
    assert (inner.state.steps, inner.state.episodes, len(heard)) == (8, 2, 1)


@pytest.mark.parametrize("way", ["up", "down"])
def test_every_step_counts_once_over_a_link_that_loses_datagrams_and_connections(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pushes or answers are lost, of all pushes that a connection ends after and of some others."""
    shares = losing(monkeypatch, 0.0)
    monkeypatch.setattr(link_module, "ASK", 0.0)  # the loss of the connection is noticed after the exchange
    inner = make_hub()
    with Serving(inner, Address("127.0.0.1", 0), datagrams=True) as serving:
        with Link(serving.url, make_courier()) as link:
            link.datagrams = True
            for number in range(1, 13):
                shares[way] = float(number % 4 in (0, 3))
                if number % 4 == 0 and number < 12:
                    serving.call(lambda: inner.sessions["one"]._ended("slow", Answer(None)))
                link.give(Update(np.ones(8, np.float32), base=inner.state.version, steps=number, episodes=1))
                assert link.take(60.0) is not None
            assert link.rejoined == 2
            shares[way], got = 0.0, None
            while got is None or got.weights is None:
                link.give(Update(np.ones(8, np.float32), base=inner.state.version))
                got = link.take(60.0)
        assert (inner.state.steps, inner.state.episodes) == (sum(range(13)), 12)


def test_pushes_beyond_the_reserved_versions_are_reported_and_later_ones_count() -> None:
    """A late checkpoint must not end the parent's timer, nor cost the children of the same tick their answers."""
    inner = make_hub(SIZE, alpha=0.5)
    inner.state = inner.state._replace(ceiling=1)
    serving = Serving(inner, Address("127.0.0.1", 0), datagrams=True)
    hub = serving._datagrams
    assert hub is not None
    hub.register(HELLO)

    async def flushed(sequence: int) -> None:
        before = inner.state.pushes, hub.missed
        for datagram in sent(sequence)[:2]:  # incomplete: only the timer ends it
            client.sendto(datagram, ("127.0.0.1", server.port))
        for _ in range(100):
            if (inner.state.pushes, hub.missed) != before:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the push was never flushed")

    async def main() -> None:
        nonlocal server, client
        server = await DatagramServer.bind(hub, "127.0.0.1", 0)
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with client:
            await flushed(1)
            assert inner.state.pushes == 0 and "not covered by a checkpoint" in serving.faults["datagrams"]
            await flushed(2)
            assert hub.missed == 2 and not inner.guard.refused
            inner.stored(inner.checkpoint())
            await flushed(3)
            assert inner.state.pushes == 1 and serving.faults == {}
        await server.close()

    server: Any = None
    client: Any = None
    asyncio.run(main())


def test_bytes_are_counted_as_they_travel() -> None:
    hub = make_hub(SIZE)
    made = DatagramHub(hub)
    made.register(HELLO)
    up = sent()
    down = [datagram for one in up for datagram, _ in made.receive(one, "here", 0.0)]
    assert (hub.links("one").bytes_up, hub.links("one").bytes_down) == (sum(map(len, up)), sum(map(len, down)))
    made.receive(up[0], "here", 0.0)
    assert hub.links("one").bytes_up == sum(map(len, up)), "what is dropped does not count"


def test_the_parent_learns_how_long_exchanges_take() -> None:
    hub = make_hub(SIZE)
    took: list[float | None] = []
    hub.heard = lambda push: took.append(push.took)
    made = DatagramHub(hub)
    made.register(HELLO)
    for sequence, milliseconds in enumerate((None, 1.5, float("nan"), -1.0), start=1):
        for datagram in sent(sequence, took=milliseconds):
            made.receive(datagram, "here", 0.0)
    assert took == [None, 1.5, None, None]


def test_datagrams_of_another_connection_are_dropped() -> None:
    """After a restart from an older checkpoint the parent would take an old push for a new one."""
    hub = make_hub(SIZE)
    made, before = DatagramHub(hub), hub.state.weights
    for other in ({"life": "another"}, {"attempt": 2}, {"life": "", "attempt": 0}):
        made.register(HELLO)
        made.register(wire.Hello(**{"child": "one", "token": TOKEN, "life": "life", "attempt": 1} | other))
        for datagram in sent():
            assert made.receive(datagram, "thief", 0.0) == []
    assert hub.state.weights is before
    keys = {key_of(TOKEN, "one", run, life, attempt) for run in "ab" for life in "cd" for attempt in (1, 2)}
    assert len(keys) == 8


def test_every_push_begins_with_another_slice() -> None:
    """Where only the first slices of each push arrive, all of them arrive in time."""
    size = 40 * SLICE
    vector, made = np.arange(size, dtype=np.float32), Gathering(UP, "one", KEY, size)
    there = np.zeros(size, bool)
    for sequence in range(1, 21):
        for datagram in sent(sequence, vector)[:8]:
            made.receive(datagram, 0.0)
        there |= made.flush()[0].there
    assert there.all()


def test_a_long_vector_is_sent_in_bursts_and_arrives_whole() -> None:
    size = 4 * BURST * SLICE
    inner, vector = make_hub(size, alpha=1.0), np.ones(4 * BURST * SLICE, np.float32)

    async def main() -> None:
        hub = DatagramHub(inner)
        server = await DatagramServer.bind(hub, "127.0.0.1", 0)
        hub.register(HELLO)
        client = await DatagramClient.open("127.0.0.1", server.port, child="one", key=KEY, size=size, sequence=0)
        got = [await client.exchange(Update(vector, base=0)) for _ in range(5)]
        assert any(one is not None and one.there.all() for one in got)
        await client.close()
        await server.close()

    asyncio.run(main())
