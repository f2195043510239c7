"""Parents and children for the tests of federation: small, without JAX, mostly without sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from shoal.federation import state, wire
from shoal.federation.addresses import Address
from shoal.federation.courier import Courier
from shoal.federation.guard import Guard, Limits, Tokens
from shoal.federation.hub import Consistency, Federation, Hub
from shoal.federation.protocol import ChildSide
from shoal.federation.rules import RULES
from shoal.federation.server import Server
from shoal.federation.session import Session
from shoal.federation.wire import Message

TOKEN = "a token of the tests, long enough"
ARCHITECTURE = "0123456789abcdef"


def make_hub(
    size: int = 8,
    *,
    rule: str = "alpha_beta",
    limits: Limits | None = None,
    start: state.State | None = None,
    normaliser: int = 0,
    by_steps: bool = False,
    consistency: Consistency = "lock",
    **settings: Any,
) -> Hub:
    tokens = Tokens()
    tokens.admit(TOKEN)
    federation = Federation(
        run="run-1",
        architecture=ARCHITECTURE,
        rule=RULES[rule](**settings),
        rule_name=rule,
        settings={"env": "Toy"},
        by_steps=by_steps,
        consistency=consistency,
    )
    weights = np.linspace(-1, 1, size, dtype=np.float32)
    return Hub(federation, start or state.start(weights, normaliser=normaliser), Guard(limits or Limits(), tokens))


def make_courier(child: str = "one", **settings: Any) -> Courier:
    return Courier(child, TOKEN, **{"architecture": ARCHITECTURE} | settings)


def to_bytes(header: wire.Header, buffers: list[Any] | None = None) -> bytes:
    return b"".join(bytes(piece) for piece in wire.pieces(header, buffers or []))


class Wire:
    """A connection of a courier with a hub, without sockets. `request` may lose the answer."""

    def __init__(self, hub: Hub, courier: Courier) -> None:
        self.hub, self.courier = hub, courier
        self.session: Session = hub.session()
        self.side = ChildSide()
        self.now = 0.0

    def request(self, header: wire.Header, buffers: list[Any] | None = None, *, lose: bool = False) -> Message | None:
        self.side.sends(header)
        answer = self.session.feed(to_bytes(header, buffers)) or self.session.finish(self.now)
        if lose or answer.message is None:
            return None
        self.side.feed(b"".join(bytes(piece) for piece in answer.message))
        return self.side.finish()

    def join(self) -> Message:
        message = self.request(self.courier.hello())
        assert message is not None
        if isinstance(message.header, wire.Welcome):
            self.courier.welcomed(message.header)
        return message

    def close(self) -> None:
        self.session.closed_by_peer()


def connected(hub: Hub, child: str = "one", **settings: Any) -> Wire:
    made = Wire(hub, make_courier(child, **settings))
    made.join()
    return made


@contextmanager
def serving(hub: Hub, **settings: Any) -> Iterator[str]:
    """A server on a thread of its own; its URL."""
    ready: list[str] = []
    started, failures = threading.Event(), []
    box: dict[str, Any] = {}

    async def main() -> None:
        box["loop"], box["end"] = asyncio.get_running_loop(), asyncio.Event()
        async with Server(hub, settings.pop("address", Address("127.0.0.1", 0)), **settings) as server:
            if server._server is not None:
                ready.append(server.url)
            started.set()
            await box["end"].wait()

    def run() -> None:
        try:
            asyncio.run(main())
        except Exception as error:
            failures.append(error)
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        if failures:
            raise failures[0]
        yield ready[0] if ready else ""
    finally:
        if not failures:
            box["loop"].call_soon_threadsafe(box["end"].set)
        thread.join()
