"""Through what roles speak: the ports. Topologies name them, runtimes implement them.

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
Change = Callable[[Sequence[int], Sequence[np.ndarray]], Sequence[np.ndarray]]


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

    def now(self) -> T | None:
        """The answer, if that needs no waiting."""
        answer = self.attempt()
        return None if isinstance(answer, _NotYet) else answer

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

    def untake(self, lane: int) -> None:
        """What was taken of this lane and not released is full again, as before it was taken."""

    def depth(self, lane: int) -> int:
        """Slots that are full and not yet taken."""

    def pushed(self, lane: int) -> int:
        """Slots pushed so far: where a producer's successor goes on."""


class SharedStream(Stream, Protocol):
    """A Stream (`StreamSpec.shared`) that several consumers take from, or in another order: newest first, or the newest alone.

    What is taken is a copy, so that a slot is free at once, nobody reads half of two unrolls, and a consumer's death
    loses nothing but its copies; `untake` is refused. `queue` and `stack` give each slot to one consumer. A `window` holds a
    lane's newest slot: `claim` never waits, what is pushed replaces what was there, read or not, and every consumer may
    read it. A producer may end its lane; the others see it (the active bitmap) once the lane is empty.
    """

    def end_of(self, consumer: int, reread: bool = False) -> SharedStream:
        """The same stream as this consumer sees it. It takes a version of a window once, unless `reread`."""

    def discard(self, lane: int) -> None:
        """The copy that was taken last is not needed; `release` is for the oldest."""

    def finish(self, lane: int) -> None:
        """The producer pushes no more."""

    def active(self) -> np.ndarray:
        """[lanes] False where the producer has finished and nothing is left."""

    def lost(self) -> int:
        """Slots that were replaced before anybody had read them."""

    def collisions(self) -> np.ndarray:
        """[consumers, 2] slots that each has read, and those of them that another had read before."""


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
    """Rows of one vector each, that many workers pull from and push to, by one of two consistencies.

    Ordering: a worker's own pushes apply in order; between workers none. Blocking: `pull` never; `push` never under
    `hogwild`, and waits for the row's lock under `lock`, as `change` does. Threads: any. Death: a worker that dies before its
    push has no effect; one that dies inside it under `hogwild` leaves part of the addition, under `lock` all of a row or
    nothing, and its lock is free again.
    """

    rows: int
    waited: float  # seconds that this end has waited for locks

    def put(self, vector: np.ndarray, row: int = 0) -> None:
        """The first contents of a row, before anybody else uses it."""

    def pull(self, row: int = 0, most: int | None = None) -> tuple[int, np.ndarray]:
        """(changes of this row so far, copy of its vector, or of the first `most` entries)."""

    def push(self, worker: int, delta: np.ndarray, row: int = 0) -> Op[int]:
        """Add `delta`; answers the number of changes so far, this one included."""

    def change(self, rows: Sequence[int], by: Change) -> Op[int]:
        """Under the locks of these rows, taken in the order of their numbers: `by(versions, vectors)` gives the new vectors.

        Answers the number of changes of the first of them so far, this one included. Not under `hogwild`.
        """

    def move(self, old: np.ndarray, new: np.ndarray, row: int = 0) -> Op[int]:
        """Take the row from `old` to `new`: entries that still are `old` become `new`, to the others the difference is added.

        For one role that does not push. Under `hogwild` a push at the same moment may be lost, as between two pushes.
        """

    def lost(self) -> float:
        """The share of what was pushed that did not arrive, because two added at once; of a sample of the entries."""


class Roster(Protocol):
    """Who does how much: shares out a fixed number of turns among workers, as fast as each of them takes them.

    Ordering: turns are numbered in the order in which they are taken; under `inline` workers alternate. Blocking: `turn`
    waits until the roster is open, and for ever once all turns are taken; `meet` waits for the other workers. Threads:
    one caller a worker. Death: a turn that was taken and not finished is the successor's.
    """

    def open(self) -> None:
        """What the workers need is in place."""

    def turn(self, worker: int) -> Op[int]:
        """The number of this worker's next turn."""

    def finish(self, worker: int) -> None:
        """The turn is done."""

    def finished(self) -> int:
        """Turns done so far by all workers together."""

    def turns(self, worker: int) -> int:
        """Turns done so far by this worker and its predecessors."""

    def meet(self, worker: int) -> Op[None]:
        """Wait until every worker has come as often as this one."""


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
    members. Threads: one caller a member. Death: a missing member stops the round for all. Where its successor comes, every
    other member gets `GroupBroken` once, in the round that it is in or the next that it enters; all then meet in a
    first round again, and go on from what they last agreed upon. Every decision that changes control flow (stop, end,
    all have data) must be reduced too.
    """

    members: int

    def mean(self, member: int, vector: np.ndarray) -> Op[np.ndarray]:
        """The mean over all members, summed in the order of their numbers. One round's vectors have one length."""


class GroupBroken(Exception):
    """A member of the group died and came anew: rounds count from the start, and what was under way is void."""


class Pool(Protocol):
    """Rows that all remember: each worker writes into a ring of its own, and everybody reads all rings.

    Ordering: a ring holds its writer's newest rows. Blocking: never. Threads: one writer a ring, any readers; a reader
    is told which rows were overwritten while it read them. Death: a worker that dies inside a write leaves at most that
    write's rows unannounced, and those that it may have touched count as overwritten; its successor goes on in the same
    ring without waiting.
    """

    rings: int
    slots: int  # of each ring; slot s of ring r has the index r * slots + s

    def write(self, ring: int, rows: Mapping[str, np.ndarray]) -> None:
        """Append rows `{name: [n, ...]}`, over the oldest ones where the ring is full."""

    def counts(self) -> np.ndarray:
        """[rings] rows ever written: row number i lies in slot `i % slots`."""

    def sizes(self) -> np.ndarray:
        """[rings] rows that are there."""

    def read(self, indices: np.ndarray, counts: np.ndarray) -> tuple[Slot, np.ndarray]:
        """Copies of the rows at `indices`, and which of them are still what they were at `counts`."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of all that is there, also while others write."""

    def fits(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether a snapshot's rows would come to lie where they lay."""

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take in a snapshot, before anybody writes. One that does not fit is dealt out over the rings, the newest rows first."""
