"""Parent and children over real sockets."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parents import TOKEN, make_courier, make_hub, serving
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from shoal.core.errors import BadInput
from shoal.federation import client as client_module
from shoal.federation import state, wire
from shoal.federation.addresses import Address, address_of, check_url, fingerprint, server_tls, url_of
from shoal.federation.client import Listener, Lost, Refusal, join
from shoal.federation.courier import Courier, Update
from shoal.federation.guard import Limits
from shoal.federation.hub import Hub
from shoal.federation.server import Dialled, Server


def test_join_pull_push_status() -> None:
    hub = make_hub(1000, alpha=1.0)

    async def child(url: str) -> None:
        async with await join(url, make_courier()) as client:
            pulled = await client.pull()
            assert pulled.weights is not None and pulled.weights.tobytes() == hub.state.weights.tobytes()
            weights = pulled.weights + np.float32(1)
            got = await client.push(Update(weights, base=pulled.version, steps=7))
            assert got.applied and got.weights is not None and got.weights.tobytes() == weights.tobytes()
            report = await client.status()
            assert report["env_steps"] == 7 and report["children"][0]["present"]

    with serving(hub) as url:
        asyncio.run(child(url))
    assert hub.state.present == 0 and hub.open == hub.greeting == 0
    assert not hub.guard.refused


@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_long_messages_pass_in_fragments(encoding: str) -> None:
    """2 MB: many fragments each way, equal at both ends."""
    hub = make_hub(500_000, alpha=1.0)

    async def child(url: str) -> None:
        async with await join(url, make_courier(encoding=encoding)) as client:
            weights = np.random.default_rng(0).normal(size=500_000).astype(np.float32)
            for _ in range(2):
                got = await client.push(Update(weights, base=0))
                assert got.weights is not None
                np.testing.assert_allclose(got.weights, hub.state.weights, atol=1e-6 if encoding == "float32" else 0.02)

    with serving(hub) as url:
        asyncio.run(child(url))


def test_bad_input_is_one_clear_line() -> None:
    with serving(make_hub()) as url:
        for courier, message in [
            (Courier("one", "the wrong token altogether"), "refused \\(token\\)"),
            (make_courier(architecture="another"), "refused \\(architecture\\): architecture 'another'"),
            (make_courier(run="another"), "refused \\(run\\)"),
        ]:
            with pytest.raises(Refusal, match=message) as refused:
                asyncio.run(join(url, courier))
            assert refused.value.exit_code == 2 and "\n" not in str(refused.value)


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="is in use"):
            with serving(make_hub(), address=Address("127.0.0.1", taken.getsockname()[1])):
                pass


def test_nobody_there_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Lost, match="no parent at"):
        asyncio.run(join(f"ws://127.0.0.1:{port}", make_courier()))


def test_a_wide_bind_needs_tls_and_a_token() -> None:
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.org"):
        with pytest.raises(BadInput, match="needs TLS"):
            Server(make_hub(), Address(host, 0))
        with pytest.raises(BadInput, match="needs TLS"):
            Listener(Address(host, 0), make_courier(), TOKEN)
    for host in ("127.0.0.1", "::1", "localhost", "127.3.2.1"):
        Server(make_hub(), Address(host, 0))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ws://192.168.1.5:7777", "not encrypted; use wss"),
        ("http://127.0.0.1:7777", "expected ws://"),
        ("ws://127.0.0.1", "expected ws://"),
        ("ws://127.0.0.1:99999", "address"),
        ("ws://127.0.0.1:7777?token=secret-of-mine", "more than host and port"),
    ],
)
def test_addresses_that_cannot_be_dialled(url: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        check_url(url)
    assert "secret-of-mine" not in str(refused.value)


def test_addresses_to_bind() -> None:
    assert address_of("127.0.0.1:7777") == ("127.0.0.1", 7777) and address_of("[::1]:80") == ("::1", 80)
    for bad in ("127.0.0.1", "7777", "a:b", "127.0.0.1:70000", "ws://h:1"):
        with pytest.raises(BadInput, match="expected HOST:PORT"):
            address_of(bad)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", socket.gethostname()), ("::", socket.gethostname()), ("::1", "[::1]"), ("pi.local", "pi.local")],
)
def test_the_url_of_a_listener(host: str, shown: str) -> None:
    assert url_of(Address(host, 0), 7777, tls=True) == f"wss://{shown}:7777"


def test_pages_of_browsers_are_refused() -> None:
    async def page(url: str) -> None:
        await connect(url, origin="https://evil.example", proxy=None)  # type: ignore[arg-type]

    with serving(make_hub()) as url, pytest.raises(InvalidStatus, match="403"):
        asyncio.run(page(url))


def test_a_restored_parent_stores_its_checkpoint_before_it_serves() -> None:
    hub = make_hub(start=state.from_arrays(make_hub().checkpoint()))
    with pytest.raises(RuntimeError, match="must store a checkpoint"):
        Server(hub, Address("127.0.0.1", 0))
    hub.stored(hub.checkpoint())
    Server(hub, Address("127.0.0.1", 0))


# TLS


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subprocess.run([*words, "-subj", "/CN=parent", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_tls_with_a_pinned_certificate(pair: tuple[Path, Path]) -> None:
    import ssl

    hub = make_hub()
    pin = fingerprint(ssl.PEM_cert_to_DER_cert(pair[0].read_text()))

    async def child(url: str, pin: str) -> None:
        async with await join(url, make_courier(), pin=pin) as client:
            assert (await client.pull()).weights is not None

    with serving(hub, tls=server_tls(*pair)) as url:
        assert url.startswith("wss://")
        asyncio.run(child(url, pin))
        with pytest.raises(BadInput, match="not the pinned"):
            asyncio.run(child(url, "0" * 64))
        with pytest.raises(BadInput, match="not trusted"):
            asyncio.run(child(url, ""))
        with pytest.raises(BadInput, match="64 hexadecimal"):
            asyncio.run(child(url, "abc"))
    assert hub.guard.refused["token"] == 0 and len(hub.state.children) == 1


def test_half_of_a_pair_is_refused(pair: tuple[Path, Path]) -> None:
    with pytest.raises(BadInput, match="only --cert was given"):
        server_tls(pair[0], None)
    with pytest.raises(BadInput, match="certificate"):
        server_tls(pair[1], pair[0])
    with pytest.raises(BadInput, match="certificate"):
        server_tls(Path("/nowhere"), pair[1])


# Children that listen


def test_a_child_that_listens_is_dialled_and_dialled_again() -> None:
    hub = make_hub(alpha=1.0)

    async def listen(ready: threading.Event, urls: list[str]) -> None:
        async with Listener(Address("127.0.0.1", 0), make_courier("far"), TOKEN) as listener:
            urls.append(listener.url)
            # Whoever calls without the token learns nothing, least of all the child's token.
            async with connect(listener.url, proxy=None, compression=None) as stranger:
                await stranger.send(b"SHL\x01" + b"\x00" * 4)
                with pytest.raises(Exception, match=r"1008|malformed"):
                    await stranger.recv()
            assert listener.refused == 1
            ready.set()
            for round_ in range(2):
                async with await listener.accept() as client:
                    got = await client.push(Update(np.full(8, round_, np.float32), base=0))
                    assert got.applied

    urls: list[str] = []
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(listen(ready, urls)))
    thread.start()
    ready.wait()
    with serving(hub, address=None, children=[Dialled(urls[0], TOKEN)]):
        thread.join()
    assert hub.state.pushes == 2 and hub.state.children["far"].sequence == 2


def test_a_listening_child_is_dialled_again_after_an_error_on_this_side(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, real, errors = make_hub(alpha=1.0), Hub.push, [MemoryError("no memory")]

    def failing(*arguments: Any) -> bool:
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(Hub, "push", failing)

    async def main() -> list[dict[str, str]]:
        faults: list[dict[str, str]] = []
        async with Listener(Address("127.0.0.1", 0), make_courier("far"), TOKEN) as listener:
            async with Server(hub, None, children=[Dialled(listener.url, TOKEN)]) as server:
                client = await listener.accept()
                with pytest.raises(Lost):
                    await client.push(Update(np.ones(8, np.float32), base=0))
                accepting = asyncio.create_task(listener.accept())
                while not accepting.done():
                    faults.append(dict(server.faults))
                    await asyncio.sleep(0.01)
                assert (await accepting.result().repeat()).applied
                await accepting.result().close()
        return faults

    faults = asyncio.run(asyncio.wait_for(main(), 60.0))
    assert any("MemoryError: no memory" in each for seen in faults for each in seen.values())
    assert hub.state.pushes == 1


def test_an_error_of_a_rule_does_not_stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, real, errors = make_hub(rule="fedavg"), Hub.tick, [ZeroDivisionError("division by zero")]
    ticks: list[float] = []

    def failing(self: Hub, now: float) -> None:
        if errors:
            raise errors.pop()
        ticks.append(now)
        real(self, now)

    monkeypatch.setattr(Hub, "tick", failing)

    async def main() -> None:
        async with Server(hub, Address("127.0.0.1", 0)) as server:
            while not server.faults:
                await asyncio.sleep(0.01)
            assert server.faults == {"hub": "ZeroDivisionError: division by zero"}
            while not ticks:
                await asyncio.sleep(0.01)
            assert not server.faults

    asyncio.run(asyncio.wait_for(main(), 60.0))


def test_a_listening_child_with_another_certificate_is_named_and_not_dialled_again(pair: tuple[Path, Path]) -> None:
    async def dial(url: str) -> dict[str, str]:
        async with Server(make_hub(), None, children=[Dialled(url, TOKEN, "0" * 64)]) as server:
            for _ in range(200):
                if server.faults:
                    break
                await asyncio.sleep(0.05)
            return dict(server.faults)

    with serving(make_hub(), tls=server_tls(*pair)) as url:
        faults = asyncio.run(dial(url))
    assert list(faults) == [url] and "not the pinned" in faults[url]


def test_a_light_client_imports_nothing_heavy() -> None:
    modules = "shoal.federation.client, shoal.federation.link, shoal.federation.server"
    code = f"import sys, {modules}; print(*(m for m in ('jax', 'optax', 'gymnasium') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout.split() == []


async def still_open(port: int, number: int) -> int:
    """Open so many sockets that send nothing; how many of them the other side keeps."""
    made = [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]
    ends = [asyncio.create_task(reader.read(1)) for reader, _ in made]
    await asyncio.wait(ends, timeout=0.5)
    kept = sum(not end.done() for end in ends)
    for _, writer in made:
        writer.close()
    await asyncio.gather(*ends, return_exceptions=True)
    return kept


def test_sockets_without_an_opening_handshake_are_limited() -> None:
    hub = make_hub(limits=Limits(greeting=3))
    with serving(hub) as url:
        port = address_of(url.removeprefix("ws://")).port
        assert asyncio.run(still_open(port, 8)) == 3
        assert hub.guard.refused == {"full": 5}

        async def child() -> None:
            async with await join(url, make_courier()) as client:
                await client.pull()

        asyncio.run(child())


def test_a_listening_child_limits_its_callers_and_takes_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CALLERS", 6)

    async def call(url: str) -> ClientConnection:
        connection = await connect(url)
        await connection.send(b"".join(bytes(piece) for piece in wire.pieces(wire.Call(token=TOKEN))))
        return connection

    async def main() -> None:
        async with Listener(Address("127.0.0.1", 0), make_courier(), TOKEN) as listener:
            assert await still_open(address_of(listener.url.removeprefix("ws://")).port, 9) == 6
            gone = await call(listener.url)
            await asyncio.sleep(0.2)
            await gone.close()
            older = await call(listener.url)
            await asyncio.sleep(0.2)
            newer = await call(listener.url)
            await asyncio.wait_for(older.wait_closed(), 10.0)
            accepted = asyncio.create_task(listener.accept())
            hello = await asyncio.wait_for(newer.recv(), 10.0)
            assert isinstance(hello, bytes) and b"hello" in hello
            accepted.cancel()
            await asyncio.gather(accepted, newer.close(), return_exceptions=True)

    asyncio.run(main())
