"""A network between a parent and its children that loses datagrams: relays a port, TCP as it is and UDP with a share of it lost.

python benchmarks/federation_relay.py 7778 7777 --loss 0.1      # children join ws://127.0.0.1:7778
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
from typing import Any, cast

HOST = "127.0.0.1"


class Inner(asyncio.DatagramProtocol):
    """Towards the parent, for one child: the parent answers to this socket."""

    def __init__(self, outer: Outer, child: Any) -> None:
        self._outer, self._child = outer, child

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._outer.send(data, self._child)


class Outer(asyncio.DatagramProtocol):
    """Towards the children."""

    def __init__(self, target: int, loss: float) -> None:
        self._target, self._loss, self._random = target, loss, random.Random(0)
        self._inner: dict[Any, asyncio.DatagramTransport] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        asyncio.get_running_loop().create_task(self._pass_on(data, addr))

    def send(self, data: bytes, child: Any) -> None:
        if self._random.random() >= self._loss:
            self._transport.sendto(data, child)

    async def _pass_on(self, data: bytes, child: Any) -> None:
        if self._random.random() < self._loss:
            return
        if child not in self._inner:
            loop = asyncio.get_running_loop()
            made, _ = await loop.create_datagram_endpoint(lambda: Inner(self, child), remote_addr=(HOST, self._target))
            self._inner.setdefault(child, made)
        self._inner[child].sendto(data)


async def relay(port: int, target: int, loss: float) -> None:
    """Relay until cancelled."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(HOST, target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    await asyncio.get_running_loop().create_datagram_endpoint(lambda: Outer(target, loss), local_addr=(HOST, port))
    async with await asyncio.start_server(attend, HOST, port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("target", type=int)
    parser.add_argument("--loss", type=float, default=0.0)
    chosen = parser.parse_args()
    asyncio.run(relay(chosen.port, chosen.target, chosen.loss))
