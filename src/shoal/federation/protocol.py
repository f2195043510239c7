"""The order of messages, without I/O: bytes in, messages out, a state machine for each side of a connection.

    child, dials                   parent                 child, listens               parent, dials
      Hello         ->                                                          <-       Call (token)
                    <-             Welcome                  Hello         ->
      Push | Pull | Ask   ->                                              <-             Welcome
                    <-             Pushed | Pulled | Status | Refused
      Bye           ->

The side that dials proves itself first, so that a stranger who connects learns no token. A child has at most one open
request. `feed` takes fragments, `finish` ends a message and returns it; both raise `Violation`, after which the
connection must be closed. The *meaning* of a message is decided elsewhere: in `hub` for the parent, in `courier` for the child.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from shoal.federation import wire
from shoal.federation.wire import Buffer, Message, Part, Reader, Violation

Sizes = Mapping[str, int]  # {name of a part: number of its values}
LONGEST = 2**30  # bytes of a message that a child accepts


class Stage(Enum):
    """Stage of a connection."""

    CALLED = auto()  # a listening child waits for the parent's token
    GREETING = auto()  # no welcome yet
    READY = auto()
    CLOSED = auto()


class ParentSide:
    """The parent's side of a connection. `sizes`: the parts that a push may have."""

    def __init__(self, sizes: Sizes) -> None:
        self.stage = Stage.GREETING
        self.child = ""
        self._sizes = sizes
        self._watches = False
        self._reader = Reader(wire.TO_PARENT, self._accept)

    def feed(self, fragment: Buffer) -> None:
        """Take a fragment of a message."""
        if self.stage is Stage.CLOSED:
            raise Violation("order", "a message after the end")
        self._guarded(self._reader.feed, fragment)

    def finish(self) -> Message:
        """End the message and return it."""
        if self.stage is Stage.CLOSED:
            raise Violation("order", "a message after the end")
        message: Message = self._guarded(self._reader.finish)
        if isinstance(message.header, wire.Bye):
            self.stage = Stage.CLOSED
        return message

    def welcomed(self, hello: wire.Hello) -> None:
        """Accept the hello: requests may follow."""
        assert self.stage is Stage.GREETING, self.stage
        self.stage, self.child, self._watches = Stage.READY, hello.child, hello.watches

    def close(self) -> None:
        """Accept nothing more."""
        self.stage = Stage.CLOSED

    def _accept(self, header: wire.ToParent) -> None:
        """Check order, sender and lengths of a header, before its payload is read."""
        kind = type(header).__name__
        if self.stage is Stage.GREETING and not isinstance(header, wire.Hello):
            raise Violation("order", f"{kind} before Hello")
        if self.stage is Stage.READY and isinstance(header, wire.Hello):
            raise Violation("order", "a second Hello")
        if self._watches and not isinstance(header, wire.Ask | wire.Bye):
            raise Violation("order", f"{kind} from a connection that only watches")
        if not isinstance(header, wire.Push):
            if header.parts:
                raise Violation("malformed", f"{kind} has no parts")
            return
        if header.child != self.child:
            raise Violation("name", f"a push of {header.child!r} on the connection of {self.child!r}")
        if "weights" not in {part.name for part in header.parts}:
            raise Violation("shape", "a push without weights")
        for part in header.parts:
            check_part(part, self._sizes)

    def _guarded(self, step: Any, *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except Violation:
            self.stage = Stage.CLOSED
            raise


class ChildSide:
    """The child's side of a connection. A listening child gives `token`, which the caller must present."""

    def __init__(self, sizes: Sizes | None = None, *, token: str | None = None) -> None:
        self.stage = Stage.GREETING if token is None else Stage.CALLED
        self._token = token
        self._sizes = sizes  # of the parts; None until the welcome announces them
        self._waits: type[wire.Header] | None = None  # the expected answer
        self._reader = Reader(wire.TO_CHILD, self._accept)

    def sends(self, header: wire.Header) -> None:
        """Note a request that is sent; exactly one answer belongs to it."""
        if isinstance(header, wire.Bye):
            self.stage = Stage.CLOSED
            return
        answers: dict[type[wire.Header], type[wire.Header]] = {
            wire.Hello: wire.Welcome,
            wire.Push: wire.Pushed,
            wire.Pull: wire.Pulled,
            wire.Ask: wire.Status,
        }
        wanted = Stage.GREETING if isinstance(header, wire.Hello) else Stage.READY
        assert self.stage is wanted and self._waits is None, (header, self.stage, self._waits)
        self._waits = answers[type(header)]

    def feed(self, fragment: Buffer) -> None:
        """Take a fragment of a message."""
        self._reader.feed(fragment)

    def finish(self) -> Message:
        """End the message, an answer or the parent's call, and return it. A fatal `Refused` closes the connection."""
        message = self._reader.finish()
        header = message.header
        if isinstance(header, wire.Call):
            self.stage = Stage.GREETING
            return message
        self._waits = None
        if isinstance(header, wire.Welcome):
            self.stage, self._sizes = Stage.READY, part_sizes(header.size, header.normaliser, header.moments)
        elif isinstance(header, wire.Refused) and header.fatal:
            self.stage = Stage.CLOSED
        return message

    def _accept(self, header: wire.ToChild) -> None:
        kind = type(header).__name__
        if self.stage is Stage.CLOSED:
            raise Violation("order", f"{kind} after the end")
        if self.stage is Stage.CALLED:
            if not isinstance(header, wire.Call):
                raise Violation("order", f"{kind} before Call")
            if self._token is None or not same_secret(header.token, self._token):
                raise Violation("token", "the caller's token is not this child's token")
        elif not isinstance(header, wire.Refused) and (self._waits is None or not isinstance(header, self._waits)):
            raise Violation("order", f"{kind} while waiting for {self._waits.__name__ if self._waits else 'nothing'}")
        if header.parts and not isinstance(header, wire.Pushed | wire.Pulled):
            raise Violation("malformed", f"{kind} has no parts")
        for part in header.parts:
            check_part(part, self._sizes or {})
        if sum(part.bytes for part in header.parts) > LONGEST:
            raise Violation("too-large", f"{kind} of more than {LONGEST} bytes")


def part_sizes(weights: int, normaliser: int = 0, moments: tuple[str, ...] = ()) -> dict[str, int]:
    """Number of values of each part: a normaliser of m elements is count, mean [m], M2 [m]; moments are as long as the weights."""
    sizes = {"weights": weights}
    if normaliser:
        sizes["normaliser"] = 1 + 2 * normaliser
    return sizes | {f"moments/{name}": weights for name in moments}


def check_part(part: Part, sizes: Sizes) -> None:
    """Raise `Violation` unless the part is known and has the right length. A compressed part may be shorter."""
    if part.name not in sizes:
        raise Violation("shape", f"unknown part {part.name!r}; known are {', '.join(sizes) or 'none'}"[:250])
    if part.size != sizes[part.name]:
        raise Violation("shape", f"{part.name} of {part.size} values; expected {sizes[part.name]}")
    if (part.encoding == "float64") != (part.name == "normaliser"):
        raise Violation("encoding", f"{part.name} as {part.encoding}; only the normaliser is float64")
    length = wire.encoded_bytes(part.encoding, part.size)
    if part.bytes > length or (part.bytes != length and not part.zstd):
        raise Violation(
            "shape", f"{part.name} in {part.bytes} bytes; {part.size} values of {part.encoding} take {length}"
        )


def same_secret(given: str, known: str) -> bool:
    """Whether two secrets are equal, in a time that depends neither on where they differ nor on their lengths."""
    return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), hashlib.sha256(known.encode()).digest())
