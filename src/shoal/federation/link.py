"""A child's connection on its own thread: training continues during an exchange.

    with Link(url, courier) as link:         # dials, says hello; raises BadInput, Refusal or Lost if that fails
        link.give(Update(...))                # returns at once
        ...                                   # train
        got = link.take()                     # None until the answer has arrived

After a lost connection the link reconnects, with growing random pauses, until it is closed. It repeats the open update unless
the parent has applied it already: every update counts exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from shoal.core.errors import BadInput, RunFailed, ShoalError
from shoal.federation.addresses import Address
from shoal.federation.client import Client, Listener, Lost, Over, Refusal, join
from shoal.federation.courier import Courier, Exchanged, Update
from shoal.federation.datagrams import DatagramClient
from shoal.federation.slicing import Gathered, key_of
from shoal.federation.tally import Tally
from shoal.federation.timeouts import AdaptiveTimeout, backoff

ASK = 1.0  # over UDP, seconds between two status requests, which tell whether training is over
# Reasons that will not change: reconnecting is useless.
FINAL = frozenset({"token", "quarantined", "architecture", "run", "name", "protocol", "superseded"})


class Link:
    """One child's link to its parent. `give`, `take` and `close` belong to one thread."""

    def __init__(
        self,
        url: str | None,
        courier: Courier,
        *,
        pin: str = "",
        listen: Address | None = None,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        assert (url is None) != (listen is None), "a child dials or listens"
        self.courier = courier
        self.url = url or ""  # for a listening child, the URL that the parent dials
        self.rejoined = 0
        self.connected = False
        self.datagrams = False  # push over UDP, to the parent's address
        self._bytes = (0, 0)  # of connections that have ended
        self._client: Client | None = None
        self.milliseconds: deque[float] = deque(maxlen=1024)  # of the last exchanges
        self._pin, self._listen, self._token, self._tls = pin, listen, token, tls
        self._timeout, self._say = AdaptiveTimeout(), say
        self._results: queue.SimpleQueue[Exchanged | ShoalError] = queue.SimpleQueue()
        self._busy = self._closing = False
        self._udp: tuple[Client, DatagramClient] | None = None  # with the connection that it belongs to
        self._tally = Tally()
        self._asked = 0.0
        self._error: ShoalError | None = None  # what ended the link
        self._listens: Future[str] = Future()
        self._joined: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"federation link of {courier.child}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if self._listen is not None:
            self.url = self._listens.result()
        else:
            self.wait_joined()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_joined(self) -> None:
        """Wait for the first welcome; a listening child waits indefinitely. Raises the error that prevented it."""
        self._joined.result()

    @property
    def busy(self) -> bool:
        """Whether an exchange is under way."""
        return self._busy

    @property
    def bytes_up(self) -> int:
        """Bytes sent so far."""
        return self._bytes[0] + (self._client.bytes_up if self._client is not None else 0)

    @property
    def bytes_down(self) -> int:
        """Bytes received so far."""
        return self._bytes[1] + (self._client.bytes_down if self._client is not None else 0)

    def give(self, update: Update | None) -> None:
        """Begin an exchange: push an update, or with None only pull. The previous answer must have been taken.

        Raises the error that ended the link, if one did.
        """
        assert not self._busy, "the previous exchange has not been taken"
        if self._error is not None:
            raise self._error
        self._busy = True
        self._loop.call_soon_threadsafe(self._given.put_nowait, update)

    def take(self, timeout: float | None = 0.0) -> Exchanged | None:
        """The parent's answer, or None if it has not arrived within `timeout` seconds; None waits indefinitely.

        Raises `Refusal` if the parent refused the update, `RunFailed` if it will never accept this child again.
        """
        try:
            got = self._results.get(timeout=timeout) if timeout != 0.0 else self._results.get_nowait()
        except queue.Empty:
            return None
        self._busy = False
        if isinstance(got, ShoalError):
            raise got
        return got

    def close(self) -> None:
        """Leave the parent and end the thread."""
        if not self._closing and self._thread.is_alive():
            self._closing = True
            with contextlib.suppress(RuntimeError):  # the loop may just have ended
                self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except (asyncio.CancelledError, KeyboardInterrupt):
            pass
        except ShoalError as error:
            self._fail(error)
        except Exception as error:  # raised again in `give` and `take`
            self._fail(RunFailed(f"the link to the parent failed: {type(error).__name__}: {error}"))

    def _fail(self, error: ShoalError) -> None:
        self._error = error
        for waiting in (self._listens, self._joined):
            if not waiting.done():
                waiting.set_exception(error)
        self._results.put(error)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._given: asyncio.Queue[Update | None] = asyncio.Queue()
        self._main = asyncio.current_task() or asyncio.ensure_future(asyncio.sleep(0))
        if self._listen is None:
            await self._keep(None)
            return
        async with Listener(self._listen, self.courier, self._token, tls=self._tls) as listener:
            self._listens.set_result(listener.url)
            await self._keep(listener)

    async def _keep(self, listener: Listener | None) -> None:
        """Connect again and again; raise if the very first attempt fails, wait and retry after later failures."""
        generator, attempt, said = random.Random(), 0, ""
        open_job: list[Update | None] = []  # given, and not yet answered
        while True:
            try:
                client = await self._connected(listener)
                attempt = 0
                self.connected, self._client = True, client
                self.rejoined += self._joined.done()
                if not self._joined.done():
                    self._joined.set_result(None)
                try:
                    await self._exchange(client, open_job)
                finally:
                    self.connected = False
                    self._bytes, self._client = (self.bytes_up, self.bytes_down), None
                    await self._close_udp()
                    await client.close()
            except Over:  # it closed the connection between two exchanges; they are rare with some settings
                if not self._joined.done():
                    raise
                self._results.put(Exchanged(0, None, stop=True))
                return
            except Lost:
                if not self._joined.done() and listener is None:
                    raise
            except Refusal as refusal:
                if refusal.refused.reason in FINAL or not self._joined.done():
                    raise
            except BadInput as error:  # a certificate: replaced, or that of another machine
                if not self._joined.done() or listener is not None:
                    raise
                if str(error) != said:
                    said = str(error)
                    self._say(f"{said}; training continues, and the connection is tried again")
            await asyncio.sleep(backoff(attempt, generator))
            attempt += 1

    async def _connected(self, listener: Listener | None) -> Client:
        if listener is not None:
            return await listener.accept(self._timeout)
        return await join(self.url, self.courier, pin=self._pin, timeout=self._timeout)

    def _begun(self, client: Client, update: Update | None) -> Coroutine[Any, Any, Exchanged]:
        if update is None:
            return client.pull()
        return self._by_datagrams(client, update) if self.datagrams else client.push(update)

    async def _by_datagrams(self, client: Client, update: Update) -> Exchanged:
        """Push over UDP; lost slices are skipped. The WebSocket connection tells now and then whether training is over."""
        if self._udp is None or self._udp[0] is not client:
            await self._close_udp()
            at, welcome = urlsplit(self.url), self.courier.welcome
            assert welcome is not None and at.hostname is not None and at.port is not None
            courier, size = self.courier, welcome.size
            key = key_of(courier.token, courier.child, welcome.run, courier.life, courier.attempt)
            about: dict[str, Any] = {"child": courier.child, "key": key, "size": size, "sequence": welcome.sequence}
            opened = await DatagramClient.open(at.hostname, at.port, **about, tally=self._tally)
            self._udp, self._asked = (client, opened), time.monotonic()
        got = await self._exchanged(self._udp[1], update)
        stop = False
        if time.monotonic() - self._asked >= ASK:
            stop, self._asked = await self._stopped(client), time.monotonic()
        if got is None:
            return Exchanged(update.base, None, stop=stop)
        return Exchanged(got.version, got.values, applied=True, stop=stop, missing=~got.there)

    async def _exchanged(self, udp: DatagramClient, update: Update) -> Gathered | None:
        """Push, and once more after each pause that the parent asks for."""
        while True:
            try:
                return await udp.exchange(update)
            except Refusal as refusal:
                if refusal.refused.reason != "rate":
                    raise
                await asyncio.sleep(refusal.refused.retry_after or 0.1)

    async def _stopped(self, client: Client) -> bool:
        """Whether training is over. A refusal here ends the connection, but is no answer to the push, which may be applied."""
        try:
            return bool((await client.status()).get("stop"))
        except Refusal as refusal:
            if refusal.refused.reason in FINAL:
                raise
            if refusal.refused.fatal:
                raise Lost(str(refusal)) from None
            return False

    async def _close_udp(self) -> None:
        if self._udp is not None:
            await self._udp[1].close()
            self._udp = None

    async def _exchange(self, client: Client, open_job: list[Update | None]) -> None:
        """Process given updates until the connection fails."""
        while True:
            began = time.perf_counter()
            if not open_job:
                open_job.append(await self._given.get())
                began = time.perf_counter()
                pushes = open_job[0] is not None
                got = self._begun(client, open_job[0])
            else:
                # The connection was lost during an exchange: the push may still be open, or applied without its answer.
                pushes = self.courier.open
                got = client.repeat() if pushes else client.pull()
            try:
                answer: Exchanged | ShoalError = await got
            except Refusal as refusal:
                if not pushes or refusal.refused.reason in FINAL:
                    raise
                answer = refusal
            self.milliseconds.append(1e3 * (time.perf_counter() - began))
            open_job.clear()
            self._results.put(answer)
            if isinstance(answer, Refusal) and answer.refused.fatal:
                raise Lost("the parent closed the connection")
