"""Pushes that come twice, and connections that come late or were replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from parents import Wire, connected, make_courier, make_hub, serving, to_bytes

from shoal.federation import wire
from shoal.federation.client import Refusal, join
from shoal.federation.courier import Update
from shoal.federation.session import Answer, Session
from shoal.federation.wire import Buffer


def test_a_replayed_push_of_long_ago_is_refused_and_counted() -> None:
    hub = make_hub(2)
    made = Wire(hub, make_courier())
    made.join()
    old = made.courier.push(Update(np.ones(2, np.float32), base=0))
    made.courier.answered(made.request(*old))  # type: ignore[arg-type]
    made.courier.answered(made.request(*made.courier.push(Update(np.ones(2, np.float32), base=1))))  # type: ignore[arg-type]
    before = hub.state
    answer = made.request(*old)
    assert answer is not None and answer.header.reason == "replayed" and not answer.header.fatal
    assert hub.state is before
    assert hub.guard.refused["replayed"] == 1 and hub.guard.strikes["one"] == 1


def test_what_still_comes_on_a_superseded_connection_is_dropped() -> None:
    """Its push may be repeated on the new connection: the old one must not apply it afterwards."""
    hub = make_hub(2)
    ended: list[tuple[str, Answer]] = []
    made = Wire(hub, make_courier())
    made.session = hub.session(lambda reason, answer: ended.append((reason, answer)))
    made.join()
    late = to_bytes(*made.courier.push(Update(np.ones(2, np.float32), base=0)))
    newer = Wire(hub, made.courier)
    newer.join()
    [(reason, last)] = ended
    assert reason == "superseded" and b'"reason":"superseded"' in b"".join(map(bytes, last.message or []))
    before = hub.state
    answer = made.session.feed(late)
    assert answer is not None and answer.close
    assert hub.state is before
    assert not hub.guard.strikes, "the child did nothing wrong"
    made.close()
    assert hub.state.present == 1, "the newer connection is still there"


def test_a_connection_that_comes_late_does_not_replace_a_newer_one() -> None:
    """A hello may be delivered after that of the next attempt; the child has given its connection up."""
    hub = make_hub(2)
    ended: list[object] = []
    courier = make_courier()
    late = courier.hello()
    newer = Wire(hub, courier)
    newer.session = hub.session(lambda reason, answer: ended.append(reason))
    newer.join()
    stale = hub.session()
    stale.feed(to_bytes(late))
    answer = stale.finish(0.0)
    assert answer.close and b"superseded" in b"".join(answer.message or [])
    stale.closed_by_peer()
    assert not ended and not hub.guard.strikes and hub.state.present == 1
    got = newer.courier.answered(newer.request(*courier.push(Update(np.ones(2, np.float32), base=0))))  # type: ignore[arg-type]
    assert got.applied
    again = Wire(hub, make_courier())  # another process: it does replace it
    again.join()
    assert ended == ["superseded"]


@pytest.mark.parametrize("during", ["push", "answer"])
def test_a_replaced_process_hears_of_it_in_the_middle_of_a_long_message(
    during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it takes the connection for lost, connects again, and takes the place of the new process."""
    size = 4_000_000
    hub = make_hub(size, alpha=1.0)
    newer: list[Wire] = []

    def replaced() -> None:
        if not newer:
            newer.append(connected(hub))

    def feed(self: Session, fragment: Buffer, real: Any = Session.feed) -> Answer | None:
        if len(fragment) > 100_000:  # handled before the connection could be closed
            replaced()
        return real(self, fragment)

    def fragments(message: Sequence[Buffer], real: Any = wire.fragments) -> Iterator[Buffer]:
        for number, fragment in enumerate(real(message)):
            if number and b'"type":"pushed"' in bytes(message[0]) + bytes(message[1]):
                replaced()
            yield fragment

    if during == "push":
        monkeypatch.setattr(Session, "feed", feed)
    else:
        monkeypatch.setattr(wire, "fragments", fragments)

    weights = np.random.default_rng(0).normal(size=size).astype(np.float32)  # zstd does not make it short

    async def older(url: str) -> None:
        async with await join(url, make_courier()) as client:
            for base in range(2):
                await client.push(Update(weights, base=base))

    with serving(hub) as url, pytest.raises(Refusal, match="superseded"):
        asyncio.run(older(url))
    assert hub.state.children["one"].pushes == (0 if during == "push" else 1)
    assert hub.sessions == {"one": newer[0].session}
