"""WebSocket helpers for both sides: messages in fragments, every wait with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection

from shoal.federation import wire
from shoal.federation.wire import Buffer, Violation

CLOSE_SECONDS = 2.0  # for the closing handshake
POLICY = 1008  # close code of a refusal
OVER = "over"  # reason with which a parent that has ended the training closes a connection


class Openings:
    """Limits connections that have not finished the opening handshake: beyond `most` of them, new ones are cut off.

    So are those that have not finished it `seconds` after the socket was accepted, TLS included.
    """

    def __init__(self, most: int, cut: Callable[[], None] = lambda: None, seconds: float | None = None) -> None:
        self._most, self._cut, self._seconds = most, cut, seconds
        self._open: dict[ServerConnection, tuple[float, asyncio.TimerHandle | None]] = {}

    def finished(self, connection: ServerConnection) -> float:
        """Count a connection no longer; the loop's time at which its socket was accepted. Without this call it counts until it
        is closed."""
        began, timer = self._open.pop(connection, (asyncio.get_running_loop().time(), None))
        if timer is not None:
            timer.cancel()
        return began

    def kind(self) -> type[ServerConnection]:
        """The class of the server's connections."""
        openings = self

        class Counted(ServerConnection):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self._began = self.loop.time()  # a connection is made when its socket is accepted, before TLS

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                if len(openings._open) >= openings._most:
                    openings._cut()
                    self.transport.abort()
                    return
                timer = None
                if openings._seconds is not None:
                    timer = self.loop.call_at(self._began + openings._seconds, self.transport.abort)
                openings._open[self] = self._began, timer

            def connection_lost(self, exc: Exception | None) -> None:
                openings.finished(self)
                super().connection_lost(exc)

        return Counted


def options(payload: int, fragment: int) -> dict[str, Any]:
    """Options of every connection. `payload`: bytes of the longest message; `fragment`: bytes of the longest frame."""
    longest = wire.PREFIX.size + wire.MAX_HEADER + 8 + payload
    return {
        "compression": None,  # weights hardly shrink, and a small message must not become a large one
        "max_size": (longest, min(longest, max(fragment, wire.FRAGMENT + wire.MAX_HEADER))),
        "close_timeout": CLOSE_SECONDS,
        "ping_interval": 20.0,
        "ping_timeout": 20.0,
    }


def payload_bytes(sizes: dict[str, int]) -> int:
    """Most bytes that all parts can have: 4 for each value, 8 in the normaliser."""
    return sum(8 * size if name == "normaliser" else 4 * size for name, size in sizes.items())


async def send(connection: Connection, message: Sequence[Buffer], stall: float) -> None:
    """Send a message, in fragments if it is long. TimeoutError if the peer does not accept a fragment within `stall` seconds."""
    async with asyncio.timeout(stall) as limit:
        if sum(len(piece) for piece in message) <= wire.FRAGMENT:
            await connection.send(b"".join(message))
            return

        async def paced() -> AsyncIterator[Buffer]:
            for fragment in wire.fragments(message):
                limit.reschedule(asyncio.get_running_loop().time() + stall)
                yield fragment

        await connection.send(paced())


async def receive(
    connection: Connection, feed: Callable[[Buffer], object | None], *, first: float | None, stall: float
) -> object | None:
    """Feed one message, fragment by fragment, until it ends or `feed` returns something, which is then returned.

    TimeoutError if the message does not begin within `first` seconds, or if `stall` seconds pass between two fragments.
    `ConnectionClosed` if there is no further message.
    """
    async with asyncio.timeout(first) as limit:
        async for fragment in connection.recv_streaming():
            if isinstance(fragment, str):
                raise Violation("malformed", "a text message; all messages are binary")
            verdict = feed(fragment)
            if verdict is not None:
                return verdict
            limit.reschedule(asyncio.get_running_loop().time() + stall)
    return None
