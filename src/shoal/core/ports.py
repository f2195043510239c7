"""Ports: how roles communicate. Topologies name them, runtimes implement them.

A role is a generator. An action that may have to wait is an `Op`, and a role waits with `value = yield from port.method(...)`.
The runtime decides how to wait: `inline` lets another role run; a thread or a process sleeps until the other side signals.
Roles therefore hold no lock and never sleep.

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
    """An operation that may have to wait. `attempt` never blocks: it returns the answer or `NOT_YET`, and may be called again.

    `wait(seconds)` sleeps until the answer may have changed, at most that long.
    """

    __slots__ = ("attempt", "wait", "what")

    def __init__(
        self, attempt: Callable[[], T | _NotYet], wait: Callable[[float], None] | None = None, what: str = ""
    ) -> None:
        self.attempt = attempt
        self.wait = wait
        self.what = what  # describes the operation in the message about a deadlock

    def now(self) -> T | None:
        """The answer if it is available without waiting, else None."""
        answer = self.attempt()
        return None if isinstance(answer, _NotYet) else answer

    def __iter__(self) -> Generator[Op[Any], Any, T]:
        answer: T = yield self
        return answer


class Stream(Protocol):
    """Experience, from producers to one consumer: a bounded FIFO of slots per producer (a lane).

    Ordering: first in, first out within a lane; between lanes none. Blocking: `claim` waits while the lane is full
    (back-pressure), `take` while it is empty. Threads: one producer per lane, one consumer per stream; they may differ.
    Death: a slot that its producer claimed and never pushed is claimed again by the producer's successor, so a
    transition is seen once or not at all; a taken slot stays readable until released, even if its producer dies.
    """

    lanes: int

    def claim(self, lane: int) -> Op[Slot]:
        """The lane's next empty slot, to fill in place. Claiming twice without a push gives the same slot."""

    def push(self, lane: int) -> None:
        """Hand over the claimed slot: the consumer may take it."""

    def take(self, lane: int) -> Op[Slot]:
        """The lane's oldest full slot, without copying. It is valid until `release`."""

    def take_any(self, lanes: Sequence[int]) -> Op[tuple[int, Slot]]:
        """(lane, its oldest full slot) from the first of `lanes`, in the given order, that has one."""

    def release(self, lane: int) -> None:
        """Return the oldest taken slot to the producer."""

    def untake(self, lane: int) -> None:
        """Undo: the slots of this lane that were taken and not released are full again."""

    def depth(self, lane: int) -> int:
        """Number of slots that are full and not yet taken."""

    def pushed(self, lane: int) -> int:
        """Number of slots pushed so far, where a producer's successor continues."""


class SharedStream(Stream, Protocol):
    """A Stream (`StreamSpec.shared`) with several consumers, or with another order: newest first, or the newest only.

    `take` copies. A slot is therefore free at once, no consumer reads a torn unroll, and a consumer's death loses only
    its copies; `untake` is refused. `queue` and `stack` give each slot to one consumer. A `window` holds a lane's newest
    slot: `claim` never waits, a push replaces the old slot, read or not, and every consumer may read it. A producer may
    end its lane; the other roles see that in `active` once the lane is empty.
    """

    def end_of(self, consumer: int, reread: bool = False) -> SharedStream:
        """One consumer's view of the stream. It takes each version of a window once, unless `reread`."""

    def discard(self, lane: int) -> None:
        """Drop the copy that was taken last (`release` drops the oldest)."""

    def finish(self, lane: int) -> None:
        """End the lane: its producer will push no more."""

    def active(self) -> np.ndarray:
        """[lanes] False where the producer has finished and the lane is empty."""

    def lost(self) -> int:
        """Number of slots that were replaced before any consumer read them."""

    def collisions(self) -> np.ndarray:
        """[consumers, 2] slots that each consumer has read, and how many of them another had read before."""


class Board(Protocol):
    """The newest weights, versioned, from one writer to any number of readers; keeps the last `history` versions.

    Ordering: versions only rise. Blocking: `read` waits for its version, `publish` and `latest` never wait. Threads:
    one writer, any readers; a reader never sees a mixture of two versions. Death: readers outlive
    the writer and keep its last version; a reader's death has no effect.
    """

    def publish(self, version: int, vector: np.ndarray) -> None:
        """Make a copy of `vector` the newest version."""

    def read(self, version: int) -> Op[np.ndarray]:
        """A copy of exactly this version. Raises `LookupError` if it has been overwritten."""

    def latest(self) -> tuple[int, np.ndarray]:
        """(version, copy); version -1 and zeros before the first `publish`."""


class Table(Protocol):
    """A table whose rows are vectors; many workers pull from and push to them, under one of two consistencies.

    Ordering: a worker's own pushes apply in order; between workers none. Blocking: `pull` never; `push` never under
    `hogwild`, and waits for the row's lock under `lock`, as `change` does. Threads: any. Death: a worker that dies before its
    push has no effect. One that dies inside its push leaves part of the addition under `hogwild`; under `lock` it leaves
    all of a row or nothing, and its lock is freed.
    """

    rows: int
    waited: float  # seconds that this end of the port has waited for locks

    def put(self, vector: np.ndarray, row: int = 0) -> None:
        """Set the initial contents of a row, before any other role uses it."""

    def pull(self, row: int = 0, most: int | None = None) -> tuple[int, np.ndarray]:
        """(number of changes to this row so far, copy of its vector or of its first `most` entries)."""

    def push(self, worker: int, delta: np.ndarray, row: int = 0) -> Op[int]:
        """Add `delta` to the row. The answer is the number of changes so far, including this one."""

    def change(self, rows: Sequence[int], by: Change) -> Op[int]:
        """Replace these rows by `by(versions, vectors)`, holding their locks, which are taken in order of row number.

        The answer is the number of changes to the first of `rows` so far, including this one. Not available under `hogwild`.
        """

    def move(self, old: np.ndarray, new: np.ndarray, row: int = 0) -> Op[int]:
        """Move the row from `old` to `new`: entries that still equal `old` become `new`; the others get the difference added.

        For a single role that does not push. Under `hogwild` a simultaneous push may be lost, as between two pushes.
        """

    def lost(self) -> float:
        """The share of pushed changes that were lost to simultaneous additions, estimated on a sample of the entries."""


class Roster(Protocol):
    """Division of labour: shares out a fixed number of turns among workers, each at its own speed.

    Ordering: turns are numbered in the order in which they are taken; under `inline` workers alternate, except those
    that wait in `meet`. Blocking: `turn` waits until the roster is open, and never returns once all turns are taken; `meet`
    waits for the other workers. Threads: one caller per worker. Death: a turn that was taken and not finished passes to the
    worker's successor.
    """

    def open(self) -> None:
        """Let the workers begin: everything they need is in place."""

    def turn(self, worker: int) -> Op[int]:
        """The number of this worker's next turn."""

    def finish(self, worker: int) -> None:
        """Mark this worker's turn as done."""

    def finished(self) -> int:
        """Number of turns done so far by all workers together."""

    def turns(self, worker: int) -> int:
        """Number of turns done so far by this worker and its predecessors."""

    def meet(self, worker: int) -> Op[None]:
        """Barrier: wait until every worker has called `meet` as often as this one."""


class Call(Protocol):
    """Requests that are answered in batches: many clients, one server or several.

    Ordering: a client has one question open at a time; a batch holds questions in order of arrival. Blocking: `ask`
    waits for its answer, `gather` for at least one question. Threads: one role per client and per server; a question goes
    to one server. Death: the answer to a dead client is dropped; when a server dies, `ask` waits for its successor,
    which finds the question.
    """

    def ask(self, client: int, question: Mapping[str, np.ndarray]) -> Op[Slot]:
        """The answer to this question, a copy."""

    def gather(self, most: int, least: int = 1, patience: float = 0.0) -> Op[list[tuple[int, Slot]]]:
        """One to `most` open questions, each with its client. They are not copied: a question is valid until it is answered.

        While fewer than `least` are open, waits for more, until the oldest is `patience` seconds old.
        """

    def answer(self, clients: Sequence[int], answers: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Send each of these clients, whose questions were gathered here, its answer."""


class Group(Protocol):
    """An all-reduce group: every member contributes, and all get the same bits.

    Ordering: rounds; a member cannot enter a round before it has left the previous one. Blocking: `mean` waits for all
    members. Threads: one caller per member. Death: a missing member stops the round for all. When its successor arrives, every
    other member gets `GroupBroken` once, in its current round or the next one it enters; all members then start
    again with a first round and continue from what they last agreed upon. Every decision that changes control flow (stop,
    end, all have data) must be reduced too.
    """

    members: int

    def mean(self, member: int, vector: np.ndarray) -> Op[np.ndarray]:
        """The mean over all members, summed in the order of their numbers. All vectors of a round have the same length."""


class GroupBroken(Exception):
    """A member of the group died and was restarted: rounds count from the start, and the current round is void."""


class Pool(Protocol):
    """A shared replay: each worker writes rows into a ring of its own, and all workers read all rings.

    Ordering: a ring holds its writer's newest rows. Blocking: never. Threads: one writer per ring, any readers; a reader
    learns from a mask which rows were overwritten while it read them. Death: when a worker dies inside a write, at most that
    write's rows are missing, and the rows that it may have touched count as overwritten; its successor continues in the
    same ring without waiting.
    """

    rings: int
    slots: int  # of each ring; slot s of ring r has the index r * slots + s

    def write(self, ring: int, rows: Mapping[str, np.ndarray]) -> None:
        """Append rows `{name: [n, ...]}`, over the oldest ones where the ring is full."""

    def counts(self) -> np.ndarray:
        """[rings] rows ever written: row number i is in slot `i % slots`."""

    def sizes(self) -> np.ndarray:
        """[rings] rows that are currently held."""

    def read(self, indices: np.ndarray, counts: np.ndarray) -> tuple[Slot, np.ndarray]:
        """Copies of the rows at `indices`, and a mask of those that have not changed since `counts` was taken."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of all rows and counts; safe while others write."""

    def fits(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether `restore` would put a snapshot's rows back into the same slots."""

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load a snapshot, before any worker writes. One that does not fit is dealt out over the rings, newest rows first."""
