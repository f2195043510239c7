"""One connection at the parent, without I/O: bytes in, answers out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from shoal.federation import wire
from shoal.federation.guard import ANY, Bucket
from shoal.federation.hogwild import Job
from shoal.federation.protocol import ParentSide, Stage
from shoal.federation.state import Unreserved
from shoal.federation.wire import Buffer, Message, Reason, Violation

if TYPE_CHECKING:
    from shoal.federation.hub import Hub

AGAIN = 1.0  # seconds after which a child repeats a push for which no version is reserved
SUPERSEDED = "a newer connection of this child took its place"
REPORTED = 128  # children listed in a status message; even with the longest names they fit into 64 KiB


class Answer(NamedTuple):
    """A message to send, and whether to close the connection afterwards."""

    message: list[Buffer] | None
    close: bool = False


# Called when the hub ends a connection, with the reason and the last answer to send.
Ended = Callable[[Reason, Answer], None]


class Session:
    """One connection at the parent: bytes in, answers out. Never raises for what the other side sends."""

    def __init__(self, hub: Hub, ended: Ended) -> None:
        self._hub, self._ended = hub, ended
        self._side = ParentSide(hub.sizes)
        self._hello: wire.Hello | None = None
        self._asks: Bucket | None = None
        hub.open += 1
        hub.greeting += 1

    @property
    def greeting(self) -> bool:
        """Whether the hello is still missing."""
        return self._hello is None

    @property
    def closed(self) -> bool:
        """Whether the session accepts no more messages."""
        return self._side.stage is Stage.CLOSED

    def feed(self, fragment: Buffer) -> Answer | None:
        """Take a fragment; the only answer is one that ends the connection. After the end, fragments are dropped."""
        if self.closed:
            return Answer(None, True)
        try:
            self._side.feed(fragment)
        except Violation as violation:
            return self.refuse(violation)
        return None

    def begin(self, now: float) -> Answer | Job:
        """End a message; the answer to it, or a job to run first, on any thread, and then to pass to `end`."""
        if self.closed:
            return Answer(None, True)
        header = None
        try:
            message = self._side.finish()
            header = message.header
            if self._hub.unlocked is None or not isinstance(header, wire.Push):
                return self._answer(message, now)
            assert self._hello is not None
            job = self._hub.unlocked.begin(message, self._hello.child, self._hello.encoding == "int8", now)
            return self._pushed(header, False) if job is None else job
        except Violation as violation:
            return self.refuse(violation, header.sequence if isinstance(header, wire.Push) else None)
        except Unreserved as error:
            assert isinstance(header, wire.Push)
            return self.refuse(Violation("rate", str(error), fatal=False, retry_after=AGAIN), header.sequence)

    def end(self, job: Job) -> Answer:
        """Count the push of a finished job, even if the connection was lost; the answer to it."""
        assert self._hub.unlocked is not None
        try:
            applied = self._hub.unlocked.end(job)
        except Violation as violation:
            return self.refuse(violation, job.header.sequence)
        return Answer(None, True) if self.closed else self._pushed(job.header, applied)

    def finish(self, now: float) -> Answer:
        """End a message; the answer to it, computed on this thread."""
        begun = self.begin(now)
        if isinstance(begun, Answer):
            return begun
        begun.run()
        return self.end(begun)

    def refuse(self, violation: Violation, sequence: int | None = None) -> Answer:
        """Refuse with a reason and count it; close if the violation is fatal or leads to quarantine."""
        child = self._hello.child if self._hello and not self._hello.watches else ""  # a watcher may use any name
        refused = self._hub.refusal(violation, child, sequence)
        if refused.fatal:
            self._side.close()
        return Answer(wire.pieces(refused), refused.fatal)

    def closed_by_peer(self) -> None:
        """Clean up after the connection has ended. Must be called exactly once."""
        hub = self._hub
        hub.open -= 1
        hub.watchers.discard(self)
        if self._hello is None:
            hub.greeting -= 1
        elif hub.sessions.get(self._hello.child) is self:
            hub.leave(self._hello.child)
        self._side.close()

    def _answer(self, message: Message, now: float) -> Answer:
        header = message.header
        if isinstance(header, wire.Hello):
            return self._greet(header)
        if isinstance(header, wire.Bye):
            return Answer(None, True)
        if isinstance(header, wire.Ask):
            self._pace(now)
            return Answer(wire.pieces(wire.Status(report=self._hub.report(REPORTED, now))))
        assert self._hello is not None
        child = self._hello.child
        if isinstance(header, wire.Push):
            return self._pushed(header, self._hub.push(message, child, self._hello.encoding == "int8", now))
        self._hub.guard.pace(child, 0, now)
        version, stop = self._hub.state.version, self._hub.stop
        if header.unless == version:
            return Answer(wire.pieces(wire.Pulled(version=version, stop=stop)))
        encoded, number = self._hub.weights(child, self._hello, header.have)
        pulled = wire.Pulled(version=version, stop=stop, number=number, parts=tuple(one.part for one in encoded))
        return Answer(wire.pieces(pulled, [one.buffer for one in encoded]))

    def _pace(self, now: float) -> None:
        """Limit the requests for the status; by connection, since several watchers may have one name."""
        rate = self._hub.guard.limits.asks_per_second
        self._asks = self._asks or Bucket(rate, now)
        if wait := self._asks.take(1.0, now):
            raise Violation("rate", f"more than {rate:g} requests a second", fatal=False, retry_after=wait)

    def _pushed(self, header: wire.Push, applied: bool) -> Answer:
        assert self._hello is not None
        encoded, number = self._hub.weights(self._hello.child, self._hello, header.have)
        version, stop = self._hub.state.version, self._hub.stop
        parts = tuple(one.part for one in encoded)
        pushed = wire.Pushed(
            sequence=header.sequence, version=version, applied=applied, stop=stop, number=number, parts=parts
        )
        return Answer(wire.pieces(pushed, [one.buffer for one in encoded]))

    def _greet(self, hello: wire.Hello) -> Answer:
        hub, federation = self._hub, self._hub.federation
        hub.guard.admit(hello.token, hello.child, watches=hello.watches)
        if hello.run and hello.run != federation.run:
            raise Violation("run", f"the child belongs to run {hello.run!r}; this is {federation.run!r}")
        if hello.architecture and hello.architecture != federation.architecture:
            raise Violation(
                "architecture", f"architecture {hello.architecture!r}; this run has {federation.architecture!r}"
            )
        if hello.encoding == "float64":
            raise Violation("encoding", "weights travel as float32, float16 or int8")
        before = None if hello.watches else hub.sessions.get(hello.child)
        if before is not None and before.is_newer_than(hello):
            raise Violation("superseded", SUPERSEDED)
        known = hub.state.children
        if not hello.watches and hello.child not in known and not hub.has_room():
            raise Violation("full", f"{len(known)} children are known; no other can join")
        hub.greeting -= 1
        self._hello = hello
        self._side.welcomed(hello)
        if hello.watches:
            hub.watchers.add(self)
        else:
            if before is not None:
                before.supersede()
            hub.join(hello.child, self)
            hub.greeted(hello)
        return Answer(wire.pieces(hub.welcome(hello.child)))

    def is_newer_than(self, hello: wire.Hello) -> bool:
        """Whether the same process opened this connection after the one of `hello`, which was delayed on its way."""
        mine = self._hello
        return mine is not None and bool(mine.life) and mine.life == hello.life and mine.attempt > hello.attempt

    def supersede(self) -> None:
        """Close, because a newer connection of the same child replaces this one; later messages here are dropped.

        A process that does not hear of it connects again, and takes the place of its successor. It is told by a message too, since
        WebSocket closes without a reason while a long answer is being sent.
        """
        self._side.close()
        refused = wire.Refused(reason="superseded", message=SUPERSEDED, fatal=True)
        self._ended("superseded", Answer(wire.pieces(refused), True))

    def expel(self, refused: wire.Refused) -> None:
        """End this connection with the refusal of a push that did not come over it."""
        self._side.close()
        self._ended(refused.reason, Answer(wire.pieces(refused), True))

    def recheck(self) -> None:
        """End this connection if its token is no longer valid."""
        assert self._hello is not None
        try:
            self._hub.guard.tokens.check(self._hello.token, ANY if self._hello.watches else self._hello.child)
        except Violation as violation:
            self._ended(violation.reason, self.refuse(violation))
