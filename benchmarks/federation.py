"""What an exchange costs: beside a raw echo of the same bytes, with other encodings, and with 1,000 light clients.

    python benchmarks/federation.py exchange --size 10000
    python benchmarks/federation.py exchange --size 10000000 --repeats 7 --encodings float32
    python benchmarks/federation.py crowd --children 1000 --period 5
    python benchmarks/federation.py consistency --size 1000000 --children 4 --repeats 50

Parent and children are separate processes, and so is the one honest child beside a crowd, whose exchanges then show what the
parent does to it. Echo and exchange take turns, so that what else the machine does hits both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from shoal.federation import sockets, state
from shoal.federation.addresses import Address
from shoal.federation.client import Client, join
from shoal.federation.courier import Courier, Update
from shoal.federation.guard import Guard, Limits, Tokens
from shoal.federation.hub import Consistency, Federation, Hub
from shoal.federation.rules import RULES
from shoal.federation.server import Server

TOKEN = "a token of the benchmarks"
HONEST = 0.02  # seconds between two pushes of the honest child


def make_hub(size: int, consistency: Consistency = "lock") -> Hub:
    tokens = Tokens()
    tokens.admit(TOKEN)
    federation = Federation(
        run="bench", architecture="a", rule=RULES["alpha_beta"](), rule_name="alpha_beta", consistency=consistency
    )
    weights = np.random.default_rng(0).normal(size=size).astype(np.float32)
    return Hub(federation, state.start(weights), Guard(Limits(pushes_per_second=1e6, bytes_per_second=1e12), tokens))


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def parent_process(pipe: Connection, size: int, consistency: Consistency) -> None:
    """Serves a hub and an echo; says its memory when asked."""

    async def echo(connection: ServerConnection) -> None:
        buffer = bytearray(4 * size + 1024)
        with contextlib.suppress(ConnectionClosed):
            while True:
                at = 0
                async for fragment in connection.recv_streaming(decode=False):
                    buffer[at : at + len(fragment)] = fragment
                    at += len(fragment)
                await sockets.send(connection, [memoryview(buffer)[:at]], 60.0)

    async def main() -> None:
        hub = make_hub(size, consistency)
        options = sockets.options(4 * size + 1024, 2**22)
        async with Server(hub, Address("127.0.0.1", 0)) as server, serve(echo, "127.0.0.1", 0, **options) as echoing:
            port = next(iter(echoing.sockets)).getsockname()[1]
            pipe.send((server.url, f"ws://127.0.0.1:{port}", memory_mb()))
            while await asyncio.to_thread(pipe.recv) != "end":
                pipe.send(memory_mb())
            pipe.send((memory_mb(), time.process_time(), hub.state.pushes, hub.state.present))

    asyncio.run(main())


def start_parent(size: int, consistency: Consistency = "lock") -> tuple[Any, Connection, str, str, float]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=parent_process, args=(theirs, size, consistency))
    process.start()
    url, echo_url, memory = ours.recv()
    return process, ours, url, echo_url, memory


def quantiles(seconds: list[float]) -> dict[str, float]:
    values = 1e3 * np.array(seconds)
    return {"ms_p50": round(float(np.median(values)), 3), "ms_p99": round(float(np.quantile(values, 0.99)), 3)}


async def timed_echo(connection: Any, message: bytes) -> float:
    began, at = time.perf_counter(), 0
    await sockets.send(connection, [message], 60.0)
    buffer = bytearray(len(message))
    async for fragment in connection.recv_streaming(decode=False):
        buffer[at : at + len(fragment)] = fragment
        at += len(fragment)
    return time.perf_counter() - began


async def measure_exchange(url: str, echo_url: str, size: int, repeats: int, encodings: list[str]) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    weights = rng.normal(size=size).astype(np.float32)
    change = rng.normal(scale=0.01, size=size).astype(np.float32)
    found: dict[str, Any] = {"size": size}
    clients = {
        name: await join(url, Courier(name, TOKEN, architecture="a", encoding=name, zstd=False)) for name in encodings
    }  # type: ignore[arg-type]
    options = sockets.options(4 * size + 1024, 2**30)
    async with connect(echo_url, proxy=None, **options) as connection:
        times: dict[str, list[float]] = {name: [] for name in ("echo", *encodings)}
        same = weights.tobytes() + bytes(256)  # zeros alone would stay in the cache
        for number in range(repeats + 2):
            seconds = {"echo": await timed_echo(connection, same)}
            for name, client in clients.items():
                before = client.bytes_up, client.bytes_down
                update = Update(weights + np.float32(number) * change, base=0)
                began = time.perf_counter()
                await client.push(update)
                seconds[name] = time.perf_counter() - began
                found[f"{name} bytes"] = [client.bytes_up - before[0], client.bytes_down - before[1]]
            if number >= 2:
                for name, value in seconds.items():
                    times[name].append(value)
    for client in clients.values():
        await client.close()
    for name, seconds_ in times.items():
        found[name] = quantiles(seconds_)
    for name in encodings:
        found[f"{name} speed of echo"] = round(found["echo"]["ms_p50"] / found[name]["ms_p50"], 3)
    return found


def honest_child(pipe: Connection, url: str, size: int) -> None:
    """Pushes at a steady rate for as many seconds as it is told; says how long each exchange took."""
    weights = np.zeros(size, np.float32)

    async def main() -> None:
        async with await join(url, Courier("honest", TOKEN, architecture="a")) as client:
            while duration := await asyncio.to_thread(pipe.recv):
                pipe.send(await paced(client, weights, HONEST, 0.0, time.perf_counter() + duration))

    asyncio.run(main())


async def paced(client: Client, weights: np.ndarray, period: float, first: float, until: float) -> list[float]:
    """Push once every period, first after `first` seconds; the seconds of each exchange. A late push is not made up for."""
    seconds, due = [], time.perf_counter() + first
    while due < until:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        began = time.perf_counter()
        await client.push(Update(weights, base=0))
        seconds.append(time.perf_counter() - began)
        due = max(due + period, time.perf_counter())
    return seconds


async def measure_crowd(
    pipe: Connection, honest: Connection, url: str, children: int, size: int, rounds: int, period: float
) -> dict[str, Any]:
    """Exchanges of the honest child: alone, beside connected children, beside children that push once a period, and beside
    children that all push at once, again and again."""
    weights = np.zeros(size, np.float32)

    async def asked(seconds: float) -> list[float]:
        honest.send(seconds)
        return await asyncio.to_thread(honest.recv)

    await asked(1.0)  # warm
    quiet = await asked(2 * period)
    gate = asyncio.Semaphore(64)  # handshakes at a time

    async def one(number: int) -> Client:
        async with gate:
            return await join(url, Courier(f"c{number}", TOKEN, architecture="a"))

    began = time.perf_counter()
    clients = await asyncio.gather(*(one(number) for number in range(children)))
    connected = time.perf_counter() - began
    pipe.send("memory")
    memory = pipe.recv()
    with_idle = await asked(2 * period)

    began = time.perf_counter()
    until = began + 4 * period  # the honest child's exchanges count after the first period, in which the crowd sets in
    crowd = asyncio.gather(
        *(paced(client, weights, period, period * number / children, until) for number, client in enumerate(clients))
    )
    await asyncio.sleep(period)
    with_paced = await asked(2 * period)
    pushed = sum(map(len, await crowd))
    paced_rate = pushed / (4 * period)

    began, over = time.perf_counter(), asyncio.Event()

    async def beside() -> list[float]:
        seconds: list[float] = []
        while not over.is_set():
            seconds += await asked(0.5)
        return seconds

    beside_busy = asyncio.create_task(beside())
    for _ in range(rounds):
        await asyncio.gather(*(client.push(Update(weights, base=0)) for client in clients))
    busy = time.perf_counter() - began
    over.set()
    with_busy = await beside_busy
    honest.send(0.0)
    found = {
        "children": children,
        "connected_s": round(connected, 2),
        "connected_mb": round(memory),
        "buffers_mb": round(children * 2 * weights.nbytes / 2**20),  # a push and an answer of each child
        "period_s": period,
        "paced_exchanges_per_s": round(paced_rate, 1),
        "exchanges_per_s": round(rounds * children / busy),
        "honest alone": quantiles(quiet),
        "honest beside connected children": quantiles(with_idle),
        "honest beside paced children": quantiles(with_paced),
        "honest beside pushing children": quantiles(with_busy),
    }
    await asyncio.gather(*(client.close() for client in clients))
    return found


def busy_child(pipe: Connection, url: str, size: int, repeats: int, number: int) -> None:
    """Pushes again and again, once it is told to begin; says how long each exchange took."""
    weights = np.random.default_rng(number).normal(size=size).astype(np.float32)

    async def pushed() -> list[float]:
        seconds = []
        async with await join(url, Courier(f"c{number}", TOKEN, architecture="a", zstd=False)) as client:
            await client.push(Update(weights, base=0))
            pipe.send("ready")
            await asyncio.to_thread(pipe.recv)
            for _ in range(repeats):
                began = time.perf_counter()
                await client.push(Update(weights, base=0))
                seconds.append(time.perf_counter() - began)
        return seconds

    pipe.send(asyncio.run(pushed()))


def measure_consistency(size: int, children: int, repeats: int, rounds: int) -> dict[str, Any]:
    """Children in processes of their own push all the time, to a parent with a lock and to one without, in turns."""
    context, found = multiprocessing.get_context("fork"), {"size": size, "children": children}
    taken: dict[str, list[dict[str, float]]] = {"lock": [], "hogwild": []}
    for _ in range(rounds):
        for consistency, measured in taken.items():
            parent, pipe, url, _, _ = start_parent(size, consistency)  # type: ignore[arg-type]
            pipes = [context.Pipe() for _ in range(children)]
            busy = [
                context.Process(target=busy_child, args=(theirs, url, size, repeats, number))
                for number, (_, theirs) in enumerate(pipes)
            ]
            for process in busy:
                process.start()
            for ours, _ in pipes:
                ours.recv()
            began = time.perf_counter()
            for ours, _ in pipes:
                ours.send("begin")
            seconds = [one for ours, _ in pipes for one in ours.recv()]
            wall = time.perf_counter() - began
            pipe.send("end")
            _, cpu, pushes, _ = pipe.recv()
            assert pushes == children * (repeats + 1), "every push counts once"
            measured.append(
                {"exchanges_per_s": round(len(seconds) / wall, 1), "parent_cpu_s": round(cpu, 2), **quantiles(seconds)}
            )
            for process in (*busy, parent):
                process.join(20)
    return {**found, **taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["exchange", "crowd", "consistency"])
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--encodings", default="float32,float16,int8")
    parser.add_argument("--children", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--period", type=float, default=5.0, help="seconds between two pushes of a paced child")
    chosen = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * chosen.children + 256)), hard))
    if chosen.what == "consistency":
        print(json.dumps(measure_consistency(chosen.size, chosen.children, chosen.repeats, chosen.rounds)))
        return
    process, pipe, url, echo_url, before = start_parent(chosen.size)
    try:
        if chosen.what == "exchange":
            encodings = chosen.encodings.split(",")
            found = asyncio.run(measure_exchange(url, echo_url, chosen.size, chosen.repeats, encodings))
        else:
            ours, theirs = multiprocessing.Pipe()
            context = multiprocessing.get_context("fork")
            honest = context.Process(target=honest_child, args=(theirs, url, chosen.size), daemon=True)
            honest.start()
            found = asyncio.run(
                measure_crowd(pipe, ours, url, chosen.children, chosen.size, chosen.rounds, chosen.period)
            )
            honest.join(20)
        pipe.send("end")
        after, cpu, pushes, _ = pipe.recv()
        found |= {
            "parent_mb": [round(before), round(after)],
            "parent_cpu_s": round(cpu, 2),
            "pushes": pushes,
        }
        print(json.dumps(found))
    finally:
        process.join(20)
        if process.is_alive():
            process.terminate()


if __name__ == "__main__":
    main()
