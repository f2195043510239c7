"""Roles that hammer a Call: module-level, so that a worker process can import them."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import numpy as np
from port_roles import Idle

from shoal.core.ports import Call, Stream
from shoal.core.program import CallSpec, Context, Ports, Program, Report, RoleSpec, Steps, StreamSpec
from shoal.core.record import Field, Record

QUESTIONS = 300  # of each client
CLIENTS, SERVERS = 4, 2
SLOW = 0.09  # seconds: nearly the pause after which sleepers look by themselves
NUMBER = Record((Field("number", (), "int64"), Field("body", (32,), "int64")))
ANSWER = Record((Field("number", (), "int64"), Field("batch", (), "int64")))
DONE = Record((Field("wrong", (), "int64"), Field("batches", (), "float64"), Field("slow", (), "int64")))


class Client(Idle):
    """Asks numbers one after another; each answer must be that of its own question."""

    def __init__(self, client: int, ports: Ports, context: Context) -> None:
        self._client, self._random = client, random.Random(client)
        self._call: Call = ports["call"]
        self._stream: Stream = ports["done"]

    def run(self) -> Steps:
        wrong, batches, slow = 0, 0, 0
        for i in range(QUESTIONS):
            number = self._client * QUESTIONS + i
            asked = time.monotonic()
            answer = yield from self._call.ask(self._client, {"number": np.array(number), "body": np.array(number)})
            slow += time.monotonic() - asked > SLOW
            wrong += int(answer["number"]) != 2 * number
            batches += int(answer["batch"])
            if self._random.random() < 0.05:
                time.sleep(self._random.random() * 1e-3)
        slot = yield from self._stream.claim(self._client)
        slot["wrong"][...], slot["batches"][...], slot["slow"][...] = wrong, batches / QUESTIONS, slow
        self._stream.push(self._client)
        yield from self._stream.claim(self._client)


class Server(Idle):
    """Answers twice the number, unless a question is torn."""

    def __init__(self, index: int, ports: Ports, context: Context) -> None:
        self._call: Call = ports["call"]

    def run(self) -> Steps:
        while True:
            gathered = yield from self._call.gather(CLIENTS, least=2, patience=0.002)
            answers = []
            for _, question in gathered:
                number = int(question["number"])
                whole = bool((question["body"] == number).all())
                answers.append({"number": np.array(2 * number if whole else -1), "batch": np.array(len(gathered))})
            self._call.answer([client for client, _ in gathered], answers)


class Judge(Idle):
    def __init__(self, ports: Ports, context: Context) -> None:
        self._stream: Stream = ports["done"]

    def run(self) -> Steps:
        found = []
        for client in range(CLIENTS):
            slot = yield from self._stream.take(client)
            found.append({name: float(array) for name, array in slot.items()})
        yield Report(version=0, env_steps=0, began_at=0.0, ended_at=0.0, episodes=(), metrics={}, state=found)


def hammer() -> Program:
    clients = tuple(f"client-{i}" for i in range(CLIENTS))
    servers = tuple(f"server-{i}" for i in range(SERVERS))
    roles = [RoleSpec(name="judge", build=Judge, main=True)]
    roles += [RoleSpec(name=name, build=partial(Server, i)) for i, name in enumerate(servers)]
    roles += [RoleSpec(name=name, build=partial(Client, i)) for i, name in enumerate(clients)]
    ports: dict[str, Any] = {
        "call": CallSpec(clients=clients, servers=servers, question=NUMBER, answer=ANSWER),
        "done": StreamSpec(producers=clients, consumer="judge", depth=1, record=DONE),
    }
    return Program(roles=tuple(roles), ports=ports)
