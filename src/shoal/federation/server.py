"""The parent's sockets: it accepts children that dial, and dials children that listen."""

from __future__ import annotations

import asyncio
import errno
import random
import ssl
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import Server as Sockets
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from shoal.core.errors import BadInput
from shoal.federation import sockets, wire
from shoal.federation.addresses import Address, check_bind, check_pin, check_url, client_tls, url_of
from shoal.federation.hogwild import Job
from shoal.federation.hub import Hub
from shoal.federation.session import Answer, Session
from shoal.federation.state import Unreserved
from shoal.federation.timeouts import backoff
from shoal.federation.wire import Violation

TICK = 0.1  # seconds between two ticks of the hub, which end rounds by time


class Dialled(NamedTuple):
    """A child that listens."""

    url: str
    token: str  # proves the parent to the child; the child's hello must carry a token that the guard admits
    pin: str = ""  # SHA-256 of its certificate


class Server:
    """Serves a hub in the running event loop, as a context manager: `async with Server(hub, address): ...`.

    Raises `BadInput` for an address that cannot be bound, or that other machines could reach without TLS.
    """

    def __init__(
        self,
        hub: Hub,
        address: Address | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        children: Sequence[Dialled] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if address is not None:
            check_bind(address.host, tls=tls is not None, token=bool(hub.guard.tokens.tokens))
        for child in children:
            check_url(child.url)
        if hub.state.version >= hub.state.ceiling:
            raise RuntimeError("a restored parent must store a checkpoint before it serves")
        self.hub, self._address, self._tls, self._children, self._clock = hub, address, tls, children, clock
        self._limits = hub.guard.limits
        self._options = sockets.options(sockets.payload_bytes(hub.sizes), self._limits.fragment_bytes)
        full = Violation("full", f"{self._limits.greeting} connections without an opening handshake")
        self._openings = sockets.Openings(
            self._limits.greeting, lambda: hub.guard.count(full), self._limits.hello_seconds
        )
        self._server: Sockets | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._averaging: set[asyncio.Task[Answer]] = set()  # pushes on other threads
        # Why a listening child cannot be reached, by its URL; why the hub cannot proceed, under `hub`.
        self.faults: dict[str, str] = {}

    @property
    def url(self) -> str:
        """The URL that children dial."""
        assert self._server is not None and self._address is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        return url_of(self._address, port, tls=self._tls is not None)

    async def __aenter__(self) -> Self:
        if self._address is not None:
            tls: dict[str, Any] = {"ssl_handshake_timeout": self._limits.hello_seconds} if self._tls else {}
            try:
                self._server = await serve(
                    self._accepted,
                    self._address.host,
                    self._address.port,
                    ssl=self._tls,
                    origins=[None],  # web pages in a browser may not join
                    open_timeout=None,  # `Openings` cuts off what is late, counted from the beginning of TLS
                    server_header=None,
                    backlog=1024,
                    create_connection=self._openings.kind(),
                    **tls,
                    **self._options,
                )
            except OSError as error:
                why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error.strerror or error}"
                raise BadInput(f"address {self._address.host}:{self._address.port} {why}") from None
        self._tasks = [asyncio.create_task(self._keep_time())]
        self._tasks += [asyncio.create_task(self._keep_dialled(child)) for child in self._children]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            if self.hub.stop:
                self._server.close(code=1000, reason=sockets.OVER)
            else:
                self._server.close()
            await self._server.wait_closed()
        await asyncio.gather(*self._averaging, return_exceptions=True)

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                self.hub.tick(self._clock())
                self.faults.pop("hub", None)
            except Unreserved as error:  # the next checkpoint may be stored by then: try again
                self.faults["hub"] = str(error)
            except Exception as error:  # also of a rule: rounds of other children may still end
                self.faults["hub"] = f"{type(error).__name__}: {error}"

    async def _accepted(self, connection: ServerConnection) -> None:
        await self._attend(connection, self._openings.finished(connection))

    async def _attend(self, connection: Connection, began: float) -> None:
        """Serve one connection, which began at this time of the loop, to its end."""
        closing: list[asyncio.Task[None]] = []

        def ended(reason: str, answer: Answer) -> None:
            closing.append(asyncio.create_task(self._last_words(connection, answer, reason)))

        try:
            session = self.hub.session(ended)
        except Violation as violation:
            refused = wire.Refused(reason=violation.reason, message=str(violation), retry_after=1.0)
            await self._last_words(connection, Answer(wire.pieces(refused), True), violation.reason)
            return
        try:
            await self._converse(connection, session, began + self._limits.hello_seconds)
        except (ConnectionClosed, ConnectionError):
            pass  # the child may return; its last push counts if it was applied
        except TimeoutError:
            slow = Violation("slow", "no hello in time" if session.greeting else "a message took too long")
            await self._last_words(connection, session.refuse(slow), slow.reason)
        except Violation as violation:
            await self._last_words(connection, session.refuse(violation), violation.reason)
        finally:
            session.closed_by_peer()
            await asyncio.gather(*closing, return_exceptions=True)  # first, since only the first close tells its reason
            await connection.close(1000, sockets.OVER if self.hub.stop else "")

    async def _converse(self, connection: Connection, session: Session, deadline: float) -> None:
        limits, loop = self._limits, asyncio.get_running_loop()
        while not session.closed:
            left = max(0.0, deadline - loop.time())
            if session.greeting:
                async with asyncio.timeout(left):  # for the whole hello, however it is fragmented
                    verdict = await sockets.receive(connection, session.feed, first=left, stall=left)
            else:
                verdict = await sockets.receive(connection, session.feed, first=None, stall=limits.stall_seconds)
            answer = verdict if isinstance(verdict, Answer) else await self._answered(session)
            if answer.message is not None:
                await sockets.send(connection, answer.message, limits.stall_seconds)
                if answer.close:
                    await connection.close(sockets.POLICY)
            if answer.close:  # without a message the child left, or the hub ended the session, and `_attend` says why
                return

    async def _answered(self, session: Session) -> Answer:
        """The answer to a message. With hogwild a push is averaged on a thread, and counts even if this connection ends first."""
        begun = session.begin(self._clock())
        if isinstance(begun, Answer):
            return begun

        async def averaged(job: Job) -> Answer:
            await asyncio.to_thread(job.run)
            return session.end(job)

        task = asyncio.create_task(averaged(begun))
        self._averaging.add(task)
        task.add_done_callback(self._averaging.discard)
        return await asyncio.shield(task)

    async def _last_words(self, connection: Connection, answer: Answer, reason: str) -> None:
        try:
            if answer.message is not None:
                await sockets.send(connection, answer.message, sockets.CLOSE_SECONDS)
        except (ConnectionClosed, ConnectionError, TimeoutError):
            pass  # the other side is gone
        await connection.close(sockets.POLICY, reason)

    async def _keep_dialled(self, child: Dialled) -> None:
        """Dial a listening child, and again whenever the connection is lost."""
        generator, attempt = random.Random(), 0
        while True:
            try:
                tls = client_tls(child.url, child.pin)
                async with connect(
                    child.url, ssl=tls, proxy=None, user_agent_header=None, **self._options
                ) as connection:
                    if child.pin:
                        certificate = connection.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
                        check_pin(certificate, child.pin)
                    call = wire.Call(token=child.token, run=self.hub.federation.run)
                    await sockets.send(connection, wire.pieces(call), self._limits.stall_seconds)
                    attempt = 0
                    self.faults.pop(child.url, None)
                    await self._attend(connection, asyncio.get_running_loop().time())
            except BadInput as error:  # a wrong pin or URL: dialling again would not help
                self.faults[child.url] = str(error)
                return
            except Exception as error:  # it may not be up yet, or one of its pushes could not be handled: dial again
                self.faults[child.url] = f"{type(error).__name__}: {error}"
            await asyncio.sleep(backoff(attempt, generator))
            attempt += 1
