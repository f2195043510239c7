"""A child's link: exchanges beside training, and connections that are lost and found."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from parents import TOKEN, make_courier, make_hub, serving

from shoal.core.errors import BadInput
from shoal.federation import link as link_module
from shoal.federation import state
from shoal.federation.addresses import Address, address_of
from shoal.federation.client import Lost, Refusal
from shoal.federation.courier import Courier, Update
from shoal.federation.hub import Hub
from shoal.federation.link import Link
from shoal.federation.server import Dialled


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        threading.Event().wait(0.01)


def update(value: float, base: int = 0) -> Update:
    return Update(np.full(8, value, np.float32), base=base)


def test_training_goes_on_while_an_exchange_is_under_way() -> None:
    hub = make_hub(alpha=1.0)
    with serving(hub) as url, Link(url, make_courier()) as link:
        assert link.courier.welcome is not None and link.courier.welcome.settings == {"env": "Toy"}
        assert link.take() is None and not link.busy
        link.give(None)
        pulled = link.take(None)
        assert pulled is not None and pulled.version == 0
        for number in range(1, 20):
            link.give(update(number))
            assert link.busy
            got = link.take(None)
            assert got is not None and got.applied and got.version == number
    assert hub.state.pushes == 19 and hub.state.present == 0
    assert len(link.milliseconds) == 20 and link.bytes_up > 19 * 32


@pytest.mark.parametrize("ended", [True, False])
def test_a_child_that_exchanges_rarely_hears_of_the_end(ended: bool) -> None:
    """The parent closes the connection between two exchanges: for good, or because it was stopped and will be resumed."""
    hub = make_hub(alpha=1.0)
    with serving(hub) as url:
        link = Link(url, make_courier())
        link.__enter__()
        link.give(None)
        assert link.take(None) is not None
        hub.stop = ended
    link.give(update(1))
    if ended:
        got = link.take(60.0)
        assert got is not None and got.stop and got.weights is None
        until(lambda: not link._thread.is_alive())
    else:
        assert link.take(0.5) is None and link._thread.is_alive(), "it waits for its parent"
    link.close()


def port_of(url: str) -> Address:
    return address_of(url.removeprefix("ws://"))


def test_a_lost_parent_is_found_again_and_every_push_counts_once() -> None:
    """The parent is restarted from its checkpoint, on the same port, while updates are given."""
    hub: Hub = make_hub(alpha=1.0)
    given = 0
    with serving(hub) as url:
        link = Link(url, make_courier())
        link.__enter__()
        link.give(update(1))
        assert link.take(None) is not None
        given += 1
    for _ in range(2):
        link.give(update(given + 1))  # nobody is there
        given += 1
        hub = make_hub(alpha=1.0, start=state.from_arrays(hub.checkpoint()))
        hub.stored(hub.checkpoint())
        before = hub.state.version
        with serving(hub, address=port_of(url)):
            got = link.take(60.0)
            assert got is not None and got.version > before
    link.close()
    assert link.rejoined == 2
    assert hub.state.pushes == given == hub.state.children["one"].sequence
    np.testing.assert_array_equal(hub.state.weights, np.full(8, given))


def test_a_lost_answer_is_made_up_for() -> None:
    """The push is applied, then the connection is cut before the answer: it is not applied again."""
    hub = make_hub(alpha=0.5)
    real = hub.weights

    def cut(*arguments: object) -> object:
        if hub.state.pushes == 1:
            hub.state = hub.state._replace(pushes=hub.state.pushes)  # applied already
            hub.weights = real  # type: ignore[method-assign]
            raise ConnectionResetError("cut")
        return real(*arguments)  # type: ignore[arg-type]

    hub.weights = cut  # type: ignore[method-assign, assignment]
    with serving(hub) as url, Link(url, make_courier()) as link:
        link.give(update(3.0))
        got = link.take(60.0)
        assert got is not None and got.weights is not None
        np.testing.assert_array_equal(got.weights, hub.state.weights)
    assert hub.state.pushes == 1 and link.rejoined == 1


def test_what_cannot_be_joined_is_told_at_once() -> None:
    with pytest.raises(BadInput, match="expected ws://"), Link("nonsense", make_courier()):
        pass
    with serving(make_hub()) as url:
        with pytest.raises(Refusal, match="token"), Link(url, Courier("one", "the wrong token altogether")):
            pass
    with pytest.raises(Lost, match="no parent"), Link(url, make_courier()):
        pass


def test_a_refused_update_is_told_and_the_next_one_counts() -> None:
    hub = make_hub()
    with serving(hub) as url, Link(url, make_courier()) as link:
        link.give(update(float("nan")))
        with pytest.raises(Refusal, match="non-finite"):
            link.take(None)
        link.give(update(1.0))
        got = link.take(None)
        assert got is not None and got.applied
    assert hub.state.pushes == 1


def test_a_quarantined_child_is_told_so() -> None:
    hub = make_hub()
    with serving(hub) as url, Link(url, make_courier()) as link:
        for _ in range(5):
            link.give(update(1e30))
            with pytest.raises(Refusal, match="magnitude"):
                link.take(None)
        link.give(update(1.0))
        with pytest.raises(Refusal, match="quarantined"):
            link.take(None)
    assert hub.state.pushes == 0


def test_a_newer_process_of_the_same_name_takes_over() -> None:
    hub = make_hub()
    with serving(hub) as url, Link(url, make_courier()) as old:
        with Link(url, make_courier()) as new:
            new.give(update(1.0))
            got = new.take(None)
            assert got is not None and got.applied
            old.give(update(2.0))
            with pytest.raises(Refusal, match="superseded"):
                old.take(None)
            new.give(update(3.0))
            got = new.take(None)
            assert got is not None and got.applied, "the older one did not return"
    assert hub.state.pushes == 2


def test_a_child_that_listens() -> None:
    hub = make_hub(alpha=1.0)
    link = Link(None, make_courier("far"), listen=Address("127.0.0.1", 0), token=TOKEN)
    with link:
        with serving(hub, address=None, children=[Dialled(link.url, TOKEN)]):
            link.wait_joined()
            link.give(update(2.0))
            got = link.take(None)
            assert got is not None and got.applied
    assert hub.state.children["far"].pushes == 1


def test_a_link_ends_while_nobody_answers() -> None:
    """A parent that accepts and then says nothing does not keep a child from ending."""

    async def mute(ready: threading.Event, port: list[int], end: threading.Event) -> None:
        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1000):
                pass
            writer.close()

        server = await asyncio.start_server(swallow, "127.0.0.1", 0)
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        while not end.is_set():
            await asyncio.sleep(0.01)
        server.close()

    hub = make_hub()
    ready, end, port = threading.Event(), threading.Event(), []  # type: ignore[var-annotated]
    thread = threading.Thread(target=lambda: asyncio.run(mute(ready, port, end)))
    thread.start()
    ready.wait()
    with serving(hub) as url:
        link = Link(url, make_courier())
        link.__enter__()
    link.url = f"ws://127.0.0.1:{port[0]}"
    link.give(update(1.0))
    until(lambda: hub.open == 0)
    began = time.monotonic()
    link.close()
    assert time.monotonic() - began < 30.0
    end.set()
    thread.join()


def test_a_certificate_that_no_longer_fits_ends_nothing_after_the_first_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parent may be restarted with another one, or somebody else may have its address for a while."""
    hub, told, real, wrong = make_hub(alpha=1.0), [], link_module.join, [2]

    async def join(*arguments: object, **more: object) -> object:
        if link.rejoined or link.milliseconds:
            while wrong[0]:
                wrong[0] -= 1
                raise BadInput("the certificate is not trusted")
        return await real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(link_module, "join", join)
    with serving(hub) as url:
        link = Link(url, make_courier(), say=told.append)
        link.__enter__()
        link.give(update(1))
        assert link.take(None) is not None
    again = make_hub(alpha=1.0, start=state.from_arrays(hub.checkpoint()))
    again.stored(again.checkpoint())
    link.give(update(2))
    with serving(again, address=port_of(url)):
        got = link.take(60.0)
        assert got is not None and got.applied
    link.close()
    assert not wrong[0] and len(told) == 1 and "not trusted" in told[0] and "tried again" in told[0]
