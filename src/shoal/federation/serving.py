"""A parent's server on its own thread, concurrent with evaluation, checkpoints and the panel."""

from __future__ import annotations

import asyncio
import queue
import resource
import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from shoal.core.errors import RunFailed, ShoalError
from shoal.federation.addresses import Address
from shoal.federation.datagrams import DatagramHub, DatagramServer
from shoal.federation.hub import Hub
from shoal.federation.server import Dialled, Server
from shoal.runtimes.threads import aside

STARTS = 30.0  # seconds for the socket to open
ENDS = 10.0  # seconds for all connections to be closed
FILES = 256  # open files beside the connections


class Serving:
    """Serves a hub on a thread: `with Serving(hub, address) as serving: ...`. That thread owns the hub; `hub.state` may be read."""

    def __init__(
        self,
        hub: Hub,
        address: Address | None,
        *,
        tls: ssl.SSLContext | None = None,
        children: Sequence[Dialled] = (),
        datagrams: bool = False,
    ) -> None:
        self.hub, self.url = hub, ""
        self._server = Server(hub, address, tls=tls, children=children)
        self._listens = address is not None
        self._address, self._datagrams = address, DatagramHub(hub) if datagrams else None
        self._over = False
        self._ready: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def faults(self) -> dict[str, str]:
        """Why a listening child cannot be reached, by its URL; why the hub cannot proceed, under `hub` and `datagrams`.

        A copy, for any thread.
        """
        found = self._server.faults.copy()  # one call, which the server's thread cannot interrupt
        return found if self._datagrams is None else found | self._datagrams.faults.copy()

    def __enter__(self) -> Self:
        limits = self.hub.guard.limits
        allow_files(limits.connections + limits.greeting + FILES)
        aside(self._run)
        failure = self._ready.get(timeout=STARTS)
        if failure is not None:
            raise failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread. May be called twice."""
        if self._over:
            return
        self._over = True
        self._loop.call_soon_threadsafe(self._leave.set)
        try:
            self._ended.get(timeout=ENDS)
        except queue.Empty:  # the thread ends with the process
            return

    def call(self, action: Callable[[], Any]) -> Any:
        """Run `action` on the hub's thread between two messages, or here after the end; its result."""
        if self._over:
            return action()

        async def act() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except ShoalError as error:
            self._ready.put(error)
        except Exception as error:  # raised where the server is started
            self._ready.put(RunFailed(f"the parent's server failed: {type(error).__name__}: {error}"))
        finally:
            self._ended.put(None)

    async def _serve(self) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        async with self._server as server:
            self.url = server.url if self._listens else ""
            await self._beside_datagrams()

    async def _beside_datagrams(self) -> None:
        """Serve until the end, with a UDP socket on the same address if the transport is UDP."""
        if self._datagrams is None:
            self._ready.put(None)
            await self._leave.wait()
            return
        assert self._address is not None
        self.hub.greeted = self._datagrams.register
        port = int(self.url.rpartition(":")[2])
        server = await DatagramServer.bind(self._datagrams, self._address.host, port)
        try:
            self._ready.put(None)
            await self._leave.wait()
        finally:
            await server.close()


def allow_files(wanted: int) -> None:
    """Raise this process's limit of open files, as far as the system allows: the usual 1,024 are fewer than the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
