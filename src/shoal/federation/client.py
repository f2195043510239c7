"""The child's sockets: a connection that dials the parent, or a listener that the parent dials. Needs no JAX.

async with await join("ws://127.0.0.1:7777", Courier("pi-3", token, architecture=fingerprint)) as client:
    pulled = await client.pull()
    got = await client.push(Update(weights, base=pulled.version))
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import Server as Sockets
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.protocol import State

from shoal.core.errors import BadInput, ShoalError
from shoal.federation import sockets, wire
from shoal.federation.addresses import Address, check_bind, check_pin, check_url, client_tls
from shoal.federation.courier import Courier, Exchanged, Update
from shoal.federation.protocol import LONGEST, ChildSide
from shoal.federation.timeouts import AdaptiveTimeout
from shoal.federation.wire import Buffer, Message, Violation

CALLERS = 128  # connections that a listening child accepts at a time
GREETING = 10.0  # seconds for the connection, the hello and the welcome


class Lost(ShoalError):
    """The connection failed; the next welcome says whether the last push was applied."""


class Over(Lost):
    """The parent has ended the training, and closed its connections for that reason."""


class Refusal(BadInput):
    """The parent refused, and nothing changed there."""

    def __init__(self, refused: wire.Refused) -> None:
        super().__init__(f"the parent refused ({refused.reason}): {refused.message}")
        self.refused = refused


class Client:
    """A child's connection after its hello. One request at a time; `Lost` if the connection fails."""

    def __init__(self, connection: Connection, side: ChildSide, courier: Courier, timeout: AdaptiveTimeout) -> None:
        self.courier, self.timeout = courier, timeout
        self.bytes_up = self.bytes_down = 0
        self._connection, self._side = connection, side

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def greet(self) -> wire.Welcome:
        """Say hello and return the parent's welcome. Raises `Refusal`."""
        message = await self._request(self.courier.hello(), wait=GREETING)
        assert isinstance(message.header, wire.Welcome)
        self.courier.welcomed(message.header)
        return message.header

    async def push(self, update: Update) -> Exchanged:
        """Push an update and return the parent's weights. Raises `Refusal`, after which the push is void."""
        return await self._push(*self.courier.push(update))

    async def repeat(self) -> Exchanged:
        """Repeat the push that an earlier connection left unconfirmed."""
        return await self._push(*self.courier.repeat())

    async def pull(self, unless: int | None = None) -> Exchanged:
        """Pull the parent's weights; no weights come if they are still version `unless`."""
        return self._taken(await self._request(self.courier.pull(unless)))

    async def status(self) -> dict[str, Any]:
        """The parent's status: children, versions, contributions, refusals."""
        message = await self._request(wire.Ask())
        report: dict[str, Any] = message.header.report
        return report

    async def close(self) -> None:
        """Leave."""
        with contextlib.suppress(ConnectionClosed, ConnectionError, TimeoutError):  # it may be closed already
            await sockets.send(self._connection, wire.pieces(wire.Bye()), sockets.CLOSE_SECONDS)
        await self._connection.close()

    async def _push(self, header: wire.Push, buffers: list[Buffer]) -> Exchanged:
        while True:
            try:
                return self._taken(await self._request(header, buffers))
            except Refusal as refusal:
                instead = self.courier.refused(refusal.refused)
                if instead is not None:
                    header, buffers = instead
                elif refusal.refused.reason == "rate":
                    await asyncio.sleep(refusal.refused.retry_after or 0.1)
                else:
                    raise

    def _taken(self, message: Message) -> Exchanged:
        try:
            return self.courier.answered(message)
        except (Violation, ValueError) as error:
            raise Lost(f"the parent's answer does not fit: {error}") from None

    async def _request(
        self, header: wire.Header, buffers: list[Buffer] | None = None, wait: float | None = None
    ) -> Message:
        pieces, loop = wire.pieces(header, buffers or []), asyncio.get_running_loop()
        began = loop.time()
        self._side.sends(header)
        self.bytes_up += sum(len(piece) for piece in pieces)
        patience = wait if wait is not None else self.timeout.seconds
        try:
            await sockets.send(self._connection, pieces, patience)
            await sockets.receive(self._connection, self._feed, first=patience, stall=patience)
            message = self._side.finish()
        except TimeoutError:
            self.timeout.missed()
            await self._connection.close()
            raise Lost(f"no answer within {patience:.1f} s") from None
        except Violation as violation:
            await self._connection.close(sockets.POLICY, violation.reason)
            raise Lost(f"the parent broke the protocol: {violation}") from None
        except ConnectionClosed as error:
            reason = "" if error.rcvd is None else error.rcvd.reason
            if reason == sockets.OVER:
                raise Over("the parent has ended the training") from None
            if reason == "superseded":
                raise Refusal(
                    wire.Refused(reason="superseded", message="a newer connection of this child took its place")
                ) from None
            raise Lost(f"the connection failed: {error}") from None
        except ConnectionError as error:
            raise Lost(f"the connection failed: {error}") from None
        if isinstance(message.header, wire.Refused):
            raise Refusal(message.header)
        if wait is None:
            self.timeout.observe(loop.time() - began)
        return message

    def _feed(self, fragment: Buffer) -> None:
        self.bytes_down += len(fragment)
        self._side.feed(fragment)


async def join(url: str, courier: Courier, *, pin: str = "", timeout: AdaptiveTimeout | None = None) -> Client:
    """Dial the parent and say hello. Raises `BadInput` for a bad address or certificate, `Refusal`, `Lost`."""
    check_url(url)
    tls = client_tls(url, pin)
    try:
        connection = await connect(
            url,
            ssl=tls,
            proxy=None,
            open_timeout=GREETING,
            user_agent_header=None,
            **sockets.options(LONGEST, LONGEST),
        )
    except ssl.SSLError as error:
        raise BadInput(f"{url}: the certificate is not trusted ({error}); pin it by its fingerprint") from None
    except (OSError, TimeoutError, InvalidHandshake, InvalidMessage) as error:
        raise Lost(f"no parent at {url}: {str(error) or type(error).__name__}") from None
    client = Client(connection, ChildSide(), courier, timeout or AdaptiveTimeout())
    try:
        if pin:
            check_pin(connection.transport.get_extra_info("ssl_object").getpeercert(binary_form=True), pin)
        await client.greet()
    except BaseException:
        await connection.close()
        raise
    return client


class Listener:
    """A child that its parent dials: `async with Listener(address, courier, token) as l: await l.accept()`."""

    def __init__(self, address: Address, courier: Courier, token: str, *, tls: ssl.SSLContext | None = None) -> None:
        check_bind(address.host, tls=tls is not None, token=bool(token))
        self.refused = 0  # callers without the right token
        self._address, self._courier, self._token, self._tls = address, courier, token, tls
        self._server: Sockets | None = None
        self._callers = sockets.Openings(CALLERS)
        self._called: asyncio.Queue[tuple[Connection, ChildSide]] = asyncio.Queue(1)

    @property
    def url(self) -> str:
        """The URL that the parent dials."""
        assert self._server is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        return f"{'wss' if self._tls else 'ws'}://{host}:{port}"

    async def __aenter__(self) -> Self:
        try:
            self._server = await serve(
                self._attend,
                self._address.host,
                self._address.port,
                ssl=self._tls,
                origins=[None],
                open_timeout=GREETING,
                server_header=None,
                create_connection=self._callers.kind(),
                **sockets.options(LONGEST, 4 * 2**20),
            )
        except OSError as error:
            raise BadInput(f"address {self._address.host}:{self._address.port}: {error.strerror or error}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def accept(self, timeout: AdaptiveTimeout | None = None) -> Client:
        """Wait for a caller with the right token; its connection, after hello and welcome."""
        while True:
            connection, side = await self._called.get()
            if connection.state is State.OPEN:
                break
        client = Client(connection, side, self._courier, timeout or AdaptiveTimeout())
        await client.greet()
        return client

    async def _attend(self, connection: Connection) -> None:
        side = ChildSide(token=self._token)
        try:
            async with asyncio.timeout(GREETING):
                await sockets.receive(connection, side.feed, first=GREETING, stall=GREETING)
            side.finish()
        except Violation as violation:
            self.refused += 1
            await connection.close(sockets.POLICY, violation.reason)
            return
        except (ConnectionClosed, ConnectionError, TimeoutError):
            return
        while self._called.full():  # the parent's newest call counts
            older, _ = self._called.get_nowait()
            await older.close()
        self._called.put_nowait((connection, side))
        await connection.wait_closed()
