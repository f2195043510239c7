"""Thousands of garbage, truncated, oversized and slow frames over a real socket: the parent lives, byte-identical."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import time

import numpy as np
import pytest
from parents import ARCHITECTURE, TOKEN, make_courier, make_hub, serving, to_bytes
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from shoal.federation import wire
from shoal.federation.addresses import address_of
from shoal.federation.client import join
from shoal.federation.courier import Update
from shoal.federation.guard import Limits
from shoal.federation.hub import Hub
from shoal.federation.wire import Part

FRAMES = 3000
HELLO = to_bytes(wire.Hello(child="mallory", token=TOKEN))
PART = Part(name="weights", encoding="float32", size=64, bytes=256)
PUSH = wire.Push(child="mallory", sequence=1, base=0, architecture=ARCHITECTURE, parts=(PART,))


def hostile_message(rng: random.Random) -> list[bytes]:
    """The fragments of one message."""
    good = to_bytes(PUSH, [np.full(64, np.nan, "<f4").tobytes()])
    kind = rng.randrange(8)
    if kind == 0:
        return [rng.randbytes(rng.randrange(200))]
    if kind == 1:
        return [good[: rng.randrange(len(good))]]
    if kind == 2:
        return [good + rng.randbytes(rng.randrange(1, 50))]
    if kind == 3:
        return [b"SHL\x01" + struct.pack("<I", rng.choice([0, 2**31, 2**32 - 1, 65537]))]
    if kind == 4:
        at = rng.randrange(len(good))
        return [good[:at] + bytes([rng.randrange(256)]) + good[at + 1 :]]
    if kind == 5:
        huge = wire.Push(
            child="mallory",
            sequence=1,
            base=0,
            architecture=ARCHITECTURE,
            parts=(Part(name="weights", encoding="float32", size=2**45, bytes=2**47),),
        )
        return [to_bytes(huge)]
    if kind == 6:
        cuts = sorted(rng.randrange(len(good)) for _ in range(5))
        return [good[a:b] for a, b in zip([0, *cuts], [*cuts, len(good)], strict=True)]
    return [to_bytes(wire.Pull()), HELLO]


async def attack(url: str, seed: int, frames: int) -> int:
    """Send hostile messages on as many connections as it takes; how many frames were sent."""
    rng, sent = random.Random(seed), 0
    while sent < frames:
        try:
            async with connect(url, proxy=None, compression=None, max_size=None) as connection:
                if rng.random() < 0.5:
                    await connection.send(HELLO)
                sent += await volley(connection, rng)
        except (WebSocketException, OSError):
            sent += 1
    return sent


async def volley(connection: ClientConnection, rng: random.Random) -> int:
    sent = 0
    try:
        for _ in range(50):
            message = hostile_message(rng)
            sent += len(message)
            if rng.random() < 0.02:
                await connection.send("text is not spoken here")
            await connection.send(message if len(message) > 1 else message[0])
    except (ConnectionClosed, OSError):
        pass
    return sent


async def honest(url: str, pushes: int) -> None:
    async with await join(url, make_courier("honest")) as client:
        for number in range(pushes):
            got = await client.push(Update(np.full(64, number, np.float32), base=0))
            assert got.applied


def calm_limits() -> Limits:
    return Limits(strikes=10**9, pushes_per_second=1e9, hello_seconds=2.0, stall_seconds=1.0)


def test_garbage_leaves_the_parent_alive_and_byte_identical() -> None:
    hub: Hub = make_hub(64, limits=calm_limits(), alpha=1.0)
    before = hub.state.weights.tobytes()

    async def main(url: str) -> int:
        return sum(await asyncio.gather(*(attack(url, seed, FRAMES // 4) for seed in range(4))))

    with serving(hub) as url:
        assert asyncio.run(main(url)) >= FRAMES
        assert hub.state.weights.tobytes() == before and hub.state.pushes == 0
        asyncio.run(honest(url, 5))
    assert hub.state.pushes == 5 and hub.open == 0
    assert {"malformed", "too-large", "shape", "order", "non-finite"} <= set(hub.guard.refused)


def test_honest_children_go_on_beside_an_attack() -> None:
    hub: Hub = make_hub(64, limits=calm_limits(), alpha=1.0)

    async def main(url: str) -> None:
        await asyncio.gather(attack(url, 7, 500), honest(url, 100))

    with serving(hub) as url:
        asyncio.run(main(url))
    assert hub.state.pushes == 100
    np.testing.assert_array_equal(hub.state.weights, np.full(64, 99))


async def raw(url: str, data: bytes, after: bytes = b"") -> bytes:
    """Bytes that are not even WebSocket, or not right; what comes back until the parent closes."""
    host, port = address_of(url.removeprefix("ws://"))
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(data)
    said = b""
    try:
        if after:
            said = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20.0)
            writer.write(after)
        while chunk := await asyncio.wait_for(reader.read(1000), 20.0):
            said += chunk
    except ConnectionError:
        pass  # closed with our bytes unread
    finally:
        writer.close()
    return said


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def test_bytes_that_are_no_websocket_and_oversized_frames() -> None:
    hub: Hub = make_hub(64, limits=calm_limits())
    before = hub.state.weights.tobytes()
    oversized = b"\x82\xff" + struct.pack(">Q", 2**40) + b"mask" + bytes(100)
    unmasked = b"\x82\x05hello"
    reserved = b"\xf2\x85mask12345"

    async def main(url: str) -> None:
        answers = await asyncio.gather(
            raw(url, os.urandom(2000)), *(raw(url, UPGRADE, frame) for frame in (oversized, unmasked, reserved))
        )
        assert all(b"101" in answer for answer in answers[1:])
        assert b"\x03\xf1" in answers[1], "1009, too big"
        assert b"\x03\xea" in answers[2] and b"\x03\xea" in answers[3], "1002, protocol error"
        assert hub.state.weights.tobytes() == before
        await honest(url, 2)

    with serving(hub) as url:
        asyncio.run(main(url))
    assert hub.state.pushes == 2 and hub.open == 0


def test_slow_connections_are_ended() -> None:
    """One that says nothing, one that drips its hello, one that stalls inside a message after it."""
    hub: Hub = make_hub(64, limits=Limits(hello_seconds=2.0, stall_seconds=0.5))

    async def silent(url: str) -> str:
        async with connect(url, proxy=None, compression=None) as connection:
            return await reason(connection)

    async def dripping(url: str) -> str:
        async with connect(url, proxy=None, compression=None) as connection:

            async def drops():  # type: ignore[no-untyped-def]
                for byte in HELLO:
                    await asyncio.sleep(0.05)
                    yield bytes([byte])

            task = asyncio.create_task(connection.send(drops()))
            said = await reason(connection)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return said

    async def stalling(url: str) -> str:
        async with connect(url, proxy=None, compression=None) as connection:
            await connection.send(HELLO)
            await connection.recv()

            async def half():  # type: ignore[no-untyped-def]
                yield to_bytes(PUSH)
                await asyncio.sleep(3600)
                yield b""

            task = asyncio.create_task(connection.send(half()))
            said = await reason(connection)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return said

    async def main(url: str) -> list[str]:
        return await asyncio.wait_for(asyncio.gather(silent(url), dripping(url), stalling(url)), 60.0)

    with serving(hub) as url:
        assert asyncio.run(main(url)) == ["slow", "slow", "slow"]
    assert hub.open == hub.greeting == 0 and hub.guard.refused["slow"] == 3


@pytest.mark.parametrize("upgrades", [False, True])
def test_the_opening_handshake_and_the_hello_have_one_deadline(upgrades: bool) -> None:
    """Time that the first has used is missing from the second."""
    hub: Hub = make_hub(64, limits=Limits(hello_seconds=3.0))

    async def main(url: str) -> float:
        reader, writer = await asyncio.open_connection(*address_of(url.removeprefix("ws://")))
        began = time.monotonic()
        await asyncio.sleep(2.0)
        writer.write(UPGRADE if upgrades else b"GET / HTTP/1.1\r\n")
        said = b""
        while b'"slow"' not in said and (chunk := await asyncio.wait_for(reader.read(1000), 20.0)):
            said += chunk
        writer.close()
        assert upgrades == (b"101 Switching" in said)
        return time.monotonic() - began

    with serving(hub) as url:
        assert 2.5 < asyncio.run(main(url)) < 4.5
    assert hub.guard.refused["slow"] == upgrades


async def reason(connection: ClientConnection) -> str:
    message = await connection.recv()
    assert isinstance(message, bytes)
    reader = wire.Reader(wire.TO_CHILD, lambda header: None)
    reader.feed(message)
    return str(reader.finish().header.reason)


def test_the_number_of_connections_is_limited() -> None:
    hub: Hub = make_hub(64, limits=Limits(connections=5, hello_seconds=30.0))

    async def main(url: str) -> str:
        idle = [await connect(url, proxy=None, compression=None) for _ in range(5)]
        async with connect(url, proxy=None, compression=None) as one_more:
            said = await reason(one_more)
        for connection in idle:
            await connection.close()
        return said

    with serving(hub) as url:
        assert asyncio.run(main(url)) == "full"
        asyncio.run(honest(url, 1))
