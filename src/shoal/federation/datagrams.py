"""Exchanges by UDP datagrams, for a LAN: slices of the vector (`slicing`). A lost slice is skipped, never resent.

A child joins over WebSocket, which proves its token. Where slices of a push are missing, the parent keeps its weights; where
slices of the answer are missing, the child keeps its own.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from shoal.core.errors import BadInput
from shoal.federation import state, wire
from shoal.federation.client import Refusal
from shoal.federation.courier import Update
from shoal.federation.guard import check_scale, scale_of
from shoal.federation.hub import Hub
from shoal.federation.slicing import (
    DOWN,
    NOTHING,
    UP,
    Gathered,
    Gathering,
    key_of,
    name_of,
    refusal,
    refused_by,
    slices,
)
from shoal.federation.state import Arrival
from shoal.federation.tally import Tally, Totals
from shoal.federation.timeouts import AdaptiveTimeout, Patience
from shoal.federation.wire import Violation

SETTLE = 0.05  # seconds to wait for further slices of a vector after the last one
BURST = 32  # datagrams sent at once to one address
PAUSE = 0.001  # seconds between two bursts: about 340 Mbit/s
RECEIVED = 4 * 2**20  # bytes that the system may keep until they are read, if it allows as many
RULES = frozenset({"alpha_beta", "staleness"})  # rules that apply every push at once, weight by weight

_Answer = Gathered | wire.Refused


@dataclass
class _Sender:
    """A registered child at the parent."""

    child: str
    token: str
    key: bytes
    gathering: Gathering
    counted: Totals = NOTHING  # totals of its last applied push
    address: Any = None


class DatagramHub:
    """The parent's side without I/O: datagrams in, datagrams out. Shares the hub's state with its WebSocket sessions."""

    def __init__(self, hub: Hub) -> None:
        if hub.federation.rule_name not in RULES:
            raise BadInput(
                f"rule {hub.federation.rule_name} over UDP; only {', '.join(sorted(RULES))} tolerate missing slices"
            )
        self.hub = hub
        self.unknown = 0  # datagrams from children that are not registered
        self.faults: dict[str, str] = {}  # why the last push could not be applied, under `datagrams`
        self.missed = 0  # pushes that could not be applied; their children are not at fault
        self._senders: dict[bytes, _Sender] = {}  # by the child's name in a datagram
        self._tokens = hub.guard.tokens  # the tokens that they were checked against

    def register(self, hello: wire.Hello) -> None:
        """Accept datagrams of this connection, whose token was checked. Without a `life` they could be replayed: none then."""
        child, token = hello.child, hello.token
        self.hub.guard.admit(token, child)
        self._senders.pop(name_of(child), None)
        if not hello.life:
            return
        last = self.hub.state.children[child].sequence if child in self.hub.state.children else 0
        key = key_of(token, child, self.hub.federation.run, hello.life, hello.attempt)
        gathering = Gathering(UP, child, key, len(self.hub.state.weights), last)
        self._senders[name_of(child)] = _Sender(child, token, key, gathering)
        self.hub.state = state.joined(self.hub.state, child)

    def receive(self, datagram: bytes, address: Any, now: float) -> list[tuple[bytes, Any]]:
        """Take a datagram; the datagrams to send, with their addresses."""
        if self._tokens is not self.hub.guard.tokens:
            self._readmit()
        sender = self._senders.get(datagram[4:12])
        if sender is None:
            self.unknown += 1
            return []
        before = sender.gathering.dropped
        ended = sender.gathering.receive(datagram, now)
        if sender.gathering.dropped == before:
            sender.address = address  # only if the key was right
            self.hub.links(sender.child).bytes_up += len(datagram)
        return [answer for one in ended for answer in self._apply(sender, one, now)]

    def _readmit(self) -> None:
        """Check all children against the changed tokens; forget those whose token was revoked."""
        self._tokens = self.hub.guard.tokens
        for name, sender in list(self._senders.items()):
            try:
                self._tokens.check(sender.token, sender.child)
            except Violation:
                del self._senders[name]

    def tick(self, now: float) -> list[tuple[bytes, Any]]:
        """Apply pushes whose missing slices are overdue, with the slices that arrived."""
        answers = []
        for sender in list(self._senders.values()):  # a refusal may remove one
            if now - sender.gathering.at >= SETTLE:
                for one in sender.gathering.flush():
                    answers += self._apply(sender, one, now)
        return answers

    def _apply(self, sender: _Sender, one: Gathered, now: float) -> list[tuple[bytes, Any]]:
        """Apply a push; the datagrams of its answer."""
        hub, child = self.hub, sender.child
        if hub.stop:
            return []
        new = one.totals.since(sender.counted)
        try:
            arrival = self._checked(child, one, new, now)
            hub.state, applied = state.apply(
                hub.state, hub.federation.rule, arrival, now, by_steps=hub.federation.by_steps
            )
        except Violation as violation:
            return self._refused(sender, one.sequence, violation)
        except RuntimeError as error:  # all reserved versions are used until the next checkpoint: a later push counts
            self.missed += 1
            self.faults["datagrams"] = str(error)
            return []
        self.faults.pop("datagrams", None)
        sender.counted = one.totals  # of a push that had been applied before as well: its steps are counted
        if applied:
            self._count(child, one, new, now)
        answer = list(slices(DOWN, child, sender.key, one.sequence, hub.state.version, hub.state.weights))
        hub.links(child).bytes_down += sum(len(datagram) for datagram in answer)
        return [(datagram, sender.address) for datagram in answer]

    def _refused(self, sender: _Sender, sequence: int, violation: Violation) -> list[tuple[bytes, Any]]:
        """Refuse a push. After a fatal refusal its child has to join again, which a quarantined one cannot."""
        hub, child = self.hub, sender.child
        refused = hub.refusal(violation, child, sequence)
        if refused.fatal:
            del self._senders[name_of(child)]
            if child in hub.sessions:
                hub.sessions[child].expel(refused)
        datagram = refusal(child, sender.key, sequence, hub.state.version, refused)
        hub.links(child).bytes_down += len(datagram)
        return [(datagram, sender.address)]

    def _checked(self, child: str, one: Gathered, new: Totals, now: float) -> Arrival:
        """The push with the parent's weights where slices are missing. Raises `Violation` for one that must not be applied."""
        hub = self.hub
        hub.guard.pace(child, one.values.nbytes, now)
        if min(new) < 0:
            raise Violation("malformed", f"totals that shrink by {-min(new)}", fatal=False)
        hub.guard.check_steps(child, new.steps, now)
        if hub.guard.quarantined(child):
            raise Violation("quarantined", f"{child!r} is quarantined")
        weights = hub.state.weights
        check_scale("weights", scale_of(one.values), scale_of(weights), hub.guard.limits.ratio)
        missed = weights if hub.federation.rule.takes == "weights" else np.float32(0)
        vector = np.where(one.there, one.values, missed)
        return Arrival(child, one.sequence, one.version, vector, new.steps, new.episodes)

    def _count(self, child: str, one: Gathered, new: Totals, now: float) -> None:
        """Tell those that count applied pushes."""
        push = wire.Push(
            child=child,
            sequence=one.sequence,
            base=one.version,
            architecture=self.hub.federation.architecture,
            episodes=new.episodes,
            steps=new.steps,
            took=one.took,
        )
        self.hub.counted(push, now)


def _with_room(transport: asyncio.BaseTransport) -> asyncio.DatagramTransport:
    """The transport, with a receive buffer that holds the slices of several children."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED)
    return cast(asyncio.DatagramTransport, transport)


class DatagramServer(asyncio.DatagramProtocol):
    """The parent's UDP socket. The host must be loopback or one explicit LAN address."""

    def __init__(self, hub: DatagramHub, clock: Callable[[], float] = time.monotonic) -> None:
        self.hub, self._clock = hub, clock
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[Any, deque[bytes]] = {}  # datagrams to send, by address
        self._sending: asyncio.TimerHandle | None = None  # the next burst
        self._closed = asyncio.Event()

    @classmethod
    async def bind(cls, hub: DatagramHub, host: str, port: int) -> DatagramServer:
        """Open the socket. `BadInput` for a wildcard host."""
        if host in ("", "0.0.0.0", "::"):
            raise BadInput(f"UDP on {host or 'every address'}; name one LAN address to bind")
        try:
            _, made = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: cls(hub), local_addr=(host, port)
            )
        except OSError as error:
            raise BadInput(f"address {host}:{port}: {error.strerror or error}") from None
        return made

    @property
    def port(self) -> int:
        assert self._transport is not None
        return int(self._transport.get_extra_info("sockname")[1])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = _with_room(transport)
        self._tick()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._send(self.hub.receive(data, addr, self._clock()))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    async def close(self) -> None:
        """Close the socket."""
        for timer in (self._timer, self._sending):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()

    def _tick(self) -> None:
        try:
            self._send(self.hub.tick(self._clock()))
        finally:  # after an error too, the next incomplete push is flushed in time
            self._timer = asyncio.get_running_loop().call_later(SETTLE, self._tick)

    def _send(self, datagrams: list[tuple[bytes, Any]]) -> None:
        answers: dict[Any, deque[bytes]] = {}
        for datagram, address in datagrams:
            answers.setdefault(address, deque()).append(datagram)
        self._waiting |= answers  # a child no longer waits for the rest of an older answer
        if self._sending is None:
            self._burst()

    def _burst(self) -> None:
        assert self._transport is not None
        for address, datagrams in list(self._waiting.items()):
            for _ in range(min(BURST, len(datagrams))):
                self._transport.sendto(datagrams.popleft(), address)
            if not datagrams:
                del self._waiting[address]
        self._sending = asyncio.get_running_loop().call_later(PAUSE, self._burst) if self._waiting else None


class DatagramClient(asyncio.DatagramProtocol):
    """A child's UDP socket. `sequence` comes from its welcome, `tally` from its earlier connections."""

    def __init__(self, child: str, key: bytes, size: int, sequence: int, tally: Tally | None = None) -> None:
        self._child, self._key, self._sequence, self._tally = child, key, sequence, tally or Tally()
        self._tally.joined(sequence)
        self._gathering = Gathering(DOWN, child, self._key, size, sequence)
        # The parent answers an incomplete push up to two SETTLE after its last slice: even a short timeout leaves time for that.
        self._timeout = AdaptiveTimeout(Patience(least=4 * SETTLE, most=1.0))
        self._transport: asyncio.DatagramTransport | None = None
        self._begun = asyncio.Event()  # the answer: its first slice
        self._answer: asyncio.Future[_Answer] | None = None
        self._closed = asyncio.Event()

    @classmethod
    async def open(
        cls, host: str, port: int, *, child: str, key: bytes, size: int, sequence: int, tally: Tally | None = None
    ) -> DatagramClient:
        """Open a socket to this parent."""
        _, made = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: cls(child, key, size, sequence, tally), remote_addr=(host, port)
        )
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = _with_room(transport)

    @property
    def patience(self) -> float:
        """Seconds that the next exchange waits for the first slice of its answer."""
        return self._timeout.seconds

    def datagram_received(self, data: bytes, addr: Any) -> None:
        refused = refused_by(data, self._child, self._key, self._sequence)
        if refused is not None:
            self._ends(refused)
            return
        for got in self._gathering.receive(data, asyncio.get_running_loop().time()):
            if got.sequence == self._sequence:
                self._ends(got)
        if self._gathering.sequence == self._sequence:
            self._begun.set()

    def _ends(self, result: _Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(result)
            self._begun.set()

    def error_received(self, exc: Exception) -> None:
        """Count the datagram as lost if no socket listens at the other end."""

    async def exchange(self, update: Update) -> Gathered | None:
        """Push; the slices of the answer that arrive, None if none does. Weights are missing where `there` is False.

        Raises `Refusal`, after which the push is void.
        """
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._sequence += 1
        self._begun.clear()
        self._answer, began = loop.create_future(), loop.time()
        totals = self._tally.push(self._sequence, update.steps, update.episodes)
        sent = slices(UP, self._child, self._key, self._sequence, update.base, update.vector, totals, update.took)
        for number, datagram in enumerate(sent, start=1):
            self._transport.sendto(datagram)
            if number % BURST == 0:
                await asyncio.sleep(PAUSE)
        takes = loop.time() - began  # the answer is as long, and paced as well
        got = await self._answered(self._answer, self._timeout.seconds + takes)
        if got is None:
            self._timeout.missed()
            return None
        self._timeout.observe(loop.time() - began)
        if isinstance(got, wire.Refused):
            self._tally.refused()
            raise Refusal(got)
        self._tally.applied(self._sequence)
        return got

    async def _answered(self, answer: asyncio.Future[_Answer], patience: float) -> _Answer | None:
        """The answer when it is complete, or SETTLE after its last slice; None if it does not begin in time."""
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(self._begun.wait(), patience)
        except TimeoutError:
            self._gathering.skip(self._sequence)
            return None
        while not answer.done():
            left = self._gathering.at + SETTLE - loop.time()
            if left <= 0.0:
                return self._gathering.flush()[0]
            await asyncio.wait({answer}, timeout=left)
        return answer.result()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    async def close(self) -> None:
        """Close the socket."""
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()
