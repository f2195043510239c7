"""Pushes that come twice, and connections that come late or were replaced."""

from __future__ import annotations

import numpy as np
from parents import Wire, make_courier, make_hub, to_bytes

from shoal.federation.courier import Update


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
    ended = []
    made = Wire(hub, make_courier())
    made.session = hub.session(lambda reason, answer: ended.append((reason, answer)))
    made.join()
    late = to_bytes(*made.courier.push(Update(np.ones(2, np.float32), base=0)))
    newer = Wire(hub, made.courier)
    newer.join()
    assert ended == [("superseded", None)]
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
