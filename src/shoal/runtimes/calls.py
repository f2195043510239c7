"""Call on plain memory: a question slot and an answer slot per client, and counters that say whose turn it is.

A question is open while its number is above the one taken. Its ticket is the time at which it was asked, on the machine's
monotonic clock, which gives the order of arrival without a counter that two processes could race for. Several servers may
share one port; they take questions under a lock, and each records in memory which ones it took, so that its successor
finds them.

Waking costs more than asking, so a client rings only if that helps. A sleeping server announces how many open questions it
waits for; a busy server needs no bell, because it looks for questions before it sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.ports import NOT_YET, Op, Slot
from shoal.core.program import CallSpec
from shoal.core.record import Field, Record

if TYPE_CHECKING:
    from shoal.runtimes.memory import Place

AWAKE = 0  # in `asleep`; else the number of open questions that the server waits for
CONTENDED = 1e-3  # seconds to wait for a lock that another server holds for microseconds and releases without a ring


class MemoryCall:
    """`asked` and `ticket` belong to the client, `taken`, `by` and `answered` to the servers."""

    def __init__(self, spec: CallSpec, buffer: Any, offset: int, place: Place) -> None:
        counters = _counters(spec)
        views = counters.views(buffer, offset)
        self._asked, self._ticket, self._taken, self._by, self._answered, self._asleep = (
            views[f.name] for f in counters.fields
        )
        start, clients = offset + counters.nbytes, range(len(spec.clients))
        self._questions = [spec.question.views(buffer, start + i * spec.question.nbytes) for i in clients]
        start += len(clients) * spec.question.nbytes
        self._answers = [spec.answer.views(buffer, start + i * spec.answer.nbytes) for i in clients]
        self._clients = [place.bells[name] for name in spec.clients]
        self._servers = [place.bells[name] for name in spec.servers]
        self._lock = place.lock(offset) if len(spec.servers) > 1 else None
        self._waits = None if place.me is None else place.bells[place.me].wait
        self._mine: dict[int, int] = {}  # {client: the number of the question that is being answered here}
        self._me = 1 + (spec.servers.index(place.me) if place.me in spec.servers else 0)
        if place.me in spec.servers:  # questions that a predecessor took and did not answer are open again
            left = (self._by == self._me) & (self._answered < self._taken)
            self._taken[left] = self._answered[left]

    @staticmethod
    def nbytes(spec: CallSpec) -> int:
        return _counters(spec).nbytes + len(spec.clients) * (spec.question.nbytes + spec.answer.nbytes)

    def ask(self, client: int, question: Mapping[str, np.ndarray]) -> Op[Slot]:
        slot = self._questions[client]
        for name, array in question.items():
            slot[name][...] = array
        number = int(self._asked[client]) + 1
        self._ticket[client] = time.monotonic_ns()
        self._asked[client] = number
        self._ring()

        def attempt() -> Any:
            if self._answered[client] != number:
                return NOT_YET
            return {name: array.copy() for name, array in self._answers[client].items()}

        return Op(attempt, self._clients[client].wait, f"the answer to client {client}")

    def _ring(self) -> None:
        """Wake one server: if some wait for several questions, one whose number is reached, else one that waits for any."""
        sleeping = self._asleep.tolist()
        if any(wanted > 1 for wanted in sleeping):
            waiting = int(np.count_nonzero(self._asked > self._taken))
            wake = [i for i, wanted in enumerate(sleeping) if 1 < wanted <= waiting]
        else:
            wake = [i for i, wanted in enumerate(sleeping) if wanted == 1]
        if wake:
            self._asleep[wake[0]] = AWAKE
            self._servers[wake[0]].ring()

    def gather(self, most: int, least: int = 1, patience: float = 0.0) -> Op[list[tuple[int, Slot]]]:
        if self._waits is None:  # one role runs at a time: no client can ask while this one waits
            patience = 0.0
        least = min(least, most)  # never wait for more than a batch
        state = [1, np.inf]  # how many questions are waited for, and how long at most

        def attempt() -> Any:
            waiting = np.flatnonzero(self._asked > self._taken)
            state[:] = 1, np.inf
            if not len(waiting):
                return NOT_YET
            if len(waiting) < least and patience > 0:
                left = patience - (time.monotonic_ns() - int(self._ticket[waiting].min())) * 1e-9
                if left > 0:
                    state[:] = least, left
                    return NOT_YET
            if self._lock is None:
                return self._take(waiting, most)
            if not self._lock.attempt():
                state[:] = 1, CONTENDED
                return NOT_YET
            try:
                return self._take(np.flatnonzero(self._asked > self._taken), most) or NOT_YET
            finally:
                self._lock.release()

        waits = self._waits
        return Op(attempt, None if waits is None else lambda s: self._sleep(min(s, state[1]), state[0]), "a question")

    def _sleep(self, seconds: float, wanted: float) -> None:
        """Sleep until `wanted` questions are open.

        Announces the number before it checks: the other way round, a question in between would not wake this server.
        """
        assert self._waits is not None
        self._asleep[self._me - 1] = int(wanted)
        if np.count_nonzero(self._asked > self._taken) < wanted or seconds == CONTENDED:
            self._waits(seconds)
        self._asleep[self._me - 1] = AWAKE

    def _take(self, waiting: np.ndarray, most: int) -> list[tuple[int, Slot]]:
        """Take the oldest of `waiting` for this server."""
        if len(waiting) > 1:
            waiting = waiting[np.argsort(self._ticket[waiting], kind="stable")][:most]
        numbers = self._asked[waiting]
        self._by[waiting] = self._me
        self._taken[waiting] = numbers
        clients = waiting.tolist()
        self._mine |= zip(clients, numbers.tolist(), strict=True)
        return [(client, self._questions[client]) for client in clients]

    def answer(self, clients: Sequence[int], answers: Sequence[Mapping[str, np.ndarray]]) -> None:
        for client, answer in zip(clients, answers, strict=True):
            number = self._mine.pop(client)
            if self._asked[client] != number:
                continue  # the client died, and its successor has asked since
            slot = self._answers[client]
            for name, array in answer.items():
                slot[name][...] = array
            self._answered[client] = number
            self._clients[client].ring()


def _counters(spec: CallSpec) -> Record:
    clients = ("asked", "ticket", "taken", "by", "answered")
    fields = [Field(name, (len(spec.clients),), "int64") for name in clients]
    return Record((*fields, Field("asleep", (len(spec.servers),), "int64")))
