"""Through what roles speak: five ports. Topologies name them, runtimes implement them.

A role is a generator. Whatever may have to wait is an `Op`, and a role waits with `value = yield from port.method(...)`.
How the waiting is done belongs to the runtime: `inline` lets another role run, a thread or a process sleeps until the
other side signals. Roles therefore hold no lock and never sleep.

All ports carry fixed records of arrays (`core.record`), never Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

T = TypeVar("T")
Slot = dict[str, np.ndarray]


class _NotYet:
    def __repr__(self) -> str:
        return "NOT_YET"


NOT_YET = _NotYet()


class Op(Generic[T]):
    """Something that may have to wait. `attempt` never blocks: it answers, or `NOT_YET`, and may be called again.

    `wait(seconds)` sleeps until the answer may have changed, at most that long.
    """

    __slots__ = ("attempt", "wait", "what")

    def __init__(
        self, attempt: Callable[[], T | _NotYet], wait: Callable[[float], None] | None = None, what: str = ""
    ) -> None:
        self.attempt = attempt
        self.wait = wait
        self.what = what  # for the message when nobody can go on

    def __iter__(self) -> Generator[Op[Any], Any, T]:
        answer: T = yield self
        return answer


class Stream(Protocol):
    """Experience, from producers to one consumer: a bounded FIFO of slots per producer (a lane).

    Ordering: first in, first out within a lane; between lanes none. Blocking: `claim` waits while the lane is full
    (back-pressure), `take` while it is empty. Threads: one producer a lane, one consumer a stream; they may differ.
    Death: a slot that its producer claimed and never pushed is claimed again by the producer's successor, so a
    transition is seen once or not at all; a taken slot stays readable until released, whoever dies.
    """

    lanes: int

    def claim(self, lane: int) -> Op[Slot]:
        """The lane's next empty slot, to be filled in place. Claiming twice without a push gives the same slot."""

    def push(self, lane: int) -> None:
        """The claimed slot is complete: the consumer may take it."""

    def take(self, lane: int) -> Op[Slot]:
        """The lane's oldest full slot, without copying. It is valid until `release`."""

    def take_any(self, lanes: Sequence[int]) -> Op[tuple[int, Slot]]:
        """(lane, its oldest full slot) of the first of these lanes, in this order, that has one."""

    def release(self, lane: int) -> None:
        """The oldest taken slot may be filled again."""

    def depth(self, lane: int) -> int:
        """Slots that are full and not yet taken."""

    def pushed(self, lane: int) -> int:
        """Slots pushed so far: where a producer's successor goes on."""


class Board(Protocol):
    """The newest weights, versioned, from one writer to any number of readers; the last `history` versions stay.

    Ordering: versions only rise. Blocking: `read` waits for its version, `publish` and `latest` never wait. Threads:
    one writer, any readers; a reader never sees half of one version and half of another. Death: readers outlive
    the writer and keep its last version; a reader's death has no effect.
    """

    def publish(self, version: int, vector: np.ndarray) -> None:
        """Make `vector` the newest. It is copied."""

    def read(self, version: int) -> Op[np.ndarray]:
        """A copy of exactly this version. `LookupError` when it is so old that it was overwritten."""

    def latest(self) -> tuple[int, np.ndarray]:
        """(version, copy); version -1 and zeros before the first `publish`."""


class Table(Protocol):
    """A vector that many workers pull from and push to, by one of the consistencies.

    Ordering: a worker's own pushes apply in order; between workers none. Blocking: `pull` never, `push` as the
    consistency asks (`lock` waits for the lock). Threads: any. Death: a worker that dies before its push has no
    effect; one that dies inside it under `hogwild` leaves part of the addition, under `lock` all or nothing.
    """

    def pull(self) -> tuple[int, np.ndarray]:
        """(pushes so far, copy of the vector)."""

    def push(self, worker: int, delta: np.ndarray) -> Op[int]:
        """Add `delta`; answers the number of pushes since, this one included."""


class Call(Protocol):
    """Questions that are answered in batches: many clients, one server or several.

    Ordering: a client has one question open at a time; a batch holds questions in order of arrival. Blocking: `ask`
    waits for its answer, `gather` for at least one question. Threads: one role a client, one a server; a question goes
    to one server. Death: a dead client's question is answered into the void; when a server dies, `ask` waits for its
    successor, which finds the question.
    """

    def ask(self, client: int, question: Mapping[str, np.ndarray]) -> Op[Slot]:
        """The answer to this question, a copy."""

    def gather(self, most: int, least: int = 1, patience: float = 0.0) -> Op[list[tuple[int, Slot]]]:
        """One to `most` open questions, with their clients. They are not copied: each is valid until its answer.

        While fewer than `least` are open it waits for more, until the oldest is `patience` seconds old.
        """

    def answer(self, clients: Sequence[int], answers: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Hand each of these clients, gathered here before, its answer."""


class Group(Protocol):
    """Members that meet: everybody contributes, everybody leaves with the same bits.

    Ordering: rounds; a member cannot enter a round before it left the one before. Blocking: `mean` waits for all
    members. Threads: one caller a member. Death: a missing member stops the round for all; the group restarts from a
    checkpoint. Every decision that changes control flow (stop, end, all have data) must be reduced too.
    """

    members: int

    def mean(self, member: int, vector: np.ndarray) -> Op[np.ndarray]:
        """The mean over all members, summed in the order of their numbers."""
