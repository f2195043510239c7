"""Messages as bytes: an 8-byte prefix, a JSON header, raw buffers.

    offset  bytes  meaning
    0       3      "SHL"
    3       1      protocol version, 1
    4       4      H, the length of the header, little-endian
    8       H      the header: a JSON object, `type` says which message it is
    8+H     0..7   zero bytes, up to a multiple of 8
    ...            the buffers of `parts`, one after the other, without gaps

A `Reader` takes a message fragment by fragment. It decodes the header as soon as it is complete, checks whether such a
message is allowed, and only then allocates the payload. Nothing here is ever unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

MAGIC, PROTOCOL = b"SHL", 1
PREFIX = struct.Struct("<3sBI")
FRAGMENT = 256 * 1024  # bytes; longer messages travel in fragments of this size
MAX_HEADER = 64 * 1024
BLOCK = 256  # values that share one scale in int8
JSON_INT = 2**53 - 1  # the largest integer that every JSON reader represents exactly

Buffer = bytes | bytearray | memoryview
Count = Annotated[int, Meta(ge=0, le=JSON_INT)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
Word = Annotated[str, Meta(max_length=256)]
Encoding = Literal["float32", "float16", "int8", "float64"]
Takes = Literal["weights", "delta"]
Adopts = Literal["always", "newer"]
Reason = Literal[
    "malformed", "protocol", "order", "too-large", "slow", "full", "token", "quarantined", "architecture", "run", "name",
    "superseded", "shape", "encoding", "reference", "base", "non-finite", "magnitude", "replayed", "rate",
]  # fmt: skip


class Violation(Exception):
    """The other side broke a rule. `fatal`: the connection ends after the refusal."""

    def __init__(self, reason: Reason, message: str, *, fatal: bool = True, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.fatal = fatal
        self.retry_after = retry_after


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One buffer of the payload."""

    name: Word  # weights, normaliser, moments/...
    encoding: Encoding
    size: Count  # values
    bytes: Count  # in the payload
    reference: Count | None = None  # the buffer is a difference from the mirror with this number
    zstd: bool = False  # the buffer is one zstd frame


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=str.lower):
    """Base of all headers."""

    parts: Annotated[tuple[Part, ...], Meta(max_length=64)] = ()


class Call(Header, frozen=True):
    """First message of a parent that dials a listening child."""

    token: Word
    run: Word = ""


class Hello(Header, frozen=True):
    """First message of a child."""

    child: Name
    token: Word
    architecture: Word = ""  # fingerprint of the weights' layout; empty if the child does not know it yet
    run: Word = ""  # the run it belongs to; empty at the first join
    encoding: Encoding = "float32"  # for the weights that the parent sends
    zstd: bool = False  # whether the child can read zstd
    watches: bool = False  # only asks for the status; not counted as a child
    life: Word = ""  # random, the same for all connections of one process
    attempt: Count = 0  # number of the connection in this life: one that comes late does not replace a newer one


class Push(Header, frozen=True):
    """Weights, or their change since `base`, for the parent."""

    child: Name
    sequence: Annotated[int, Meta(ge=1, le=JSON_INT)]
    base: Count  # the version that the child started from
    architecture: Word
    episodes: Count = 0  # since the previous push
    steps: Count = 0
    returns: Annotated[tuple[float, ...], Meta(max_length=256)] = ()  # of those episodes, the newest if there are more
    took: Annotated[float, Meta(ge=0)] | None = None  # milliseconds of the previous exchange
    have: Count | None = None  # number of the mirror that the child holds


class Pull(Header, frozen=True):
    """Ask for the parent's weights, unless they are still version `unless`."""

    have: Count | None = None
    unless: Count | None = None


class Ask(Header, frozen=True):
    """Ask for the status."""


class Bye(Header, frozen=True):
    """The child leaves."""


class Welcome(Header, frozen=True):
    """The parent's answer to `Hello`: what the child needs to know to take part."""

    run: Word
    architecture: Word
    version: Count
    sequence: Count  # of this child's last applied push; 0 for none
    size: Count  # of the weights
    rule: Word
    takes: Takes  # what a push carries
    beta: float  # how far a child moves towards the parent's weights
    adopts: Adopts  # after every push, or only if the version is newer than the base
    normaliser: Count = 0  # observed elements of the normaliser; 0 for none
    moments: Annotated[tuple[Word, ...], Meta(max_length=8)] = ()  # optimiser vectors that are exchanged
    zstd: bool = False  # whether the parent can read zstd
    spent: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0  # share of the budget, at which this child's schedules begin
    settings: dict[str, Any] = {}


class Pushed(Header, frozen=True):
    """The push was applied, now or before. Carries the parent's weights."""

    sequence: Count
    version: Count
    applied: bool  # False: it had been applied before and was ignored
    stop: bool = False  # training is over
    number: Count | None = None  # these weights are now the mirror with this number on both sides


class Pulled(Header, frozen=True):
    """The parent's weights, or no parts if the child has this version."""

    version: Count
    stop: bool = False
    number: Count | None = None


class Refused(Header, frozen=True):
    """The parent refused a message and changed nothing."""

    reason: Reason
    message: Word
    sequence: Count | None = None
    fatal: bool = True
    retry_after: float | None = None  # seconds


class Status(Header, frozen=True):
    """Answer to `Ask`."""

    report: dict[str, Any]


ToParent = Hello | Push | Pull | Ask | Bye
ToChild = Call | Welcome | Pushed | Pulled | Refused | Status
TO_PARENT: msgspec.json.Decoder[ToParent] = msgspec.json.Decoder(ToParent)
TO_CHILD: msgspec.json.Decoder[ToChild] = msgspec.json.Decoder(ToChild)


class Message(NamedTuple):
    """A header and its buffers, in the order of `header.parts`."""

    header: Any
    buffers: tuple[memoryview, ...] = ()

    def named(self) -> dict[str, tuple[Part, memoryview]]:
        return {part.name: (part, buffer) for part, buffer in zip(self.header.parts, self.buffers, strict=True)}


def encoded_bytes(encoding: Encoding, size: int) -> int:
    """The length of a buffer of `size` values before compression."""
    if encoding == "int8":
        return size + 4 * -(-size // BLOCK)
    return size * {"float32": 4, "float16": 2, "float64": 8}[encoding]


def pieces(header: Header, buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """A message as consecutive byte strings; the buffers are not copied."""
    text = msgspec.json.encode(header)
    if len(text) > MAX_HEADER:
        raise ValueError(f"a header of {len(text)} bytes; at most {MAX_HEADER}")
    return [PREFIX.pack(MAGIC, PROTOCOL, len(text)) + text + bytes(_padding(len(text))), *buffers]


def fragments(message: Sequence[Buffer], size: int = FRAGMENT) -> Iterator[Buffer]:
    """Cut a message into fragments of at most `size` bytes."""
    if sum(len(piece) for piece in message) <= size:
        yield b"".join(message)
        return
    for piece in message:
        view = memoryview(piece)
        for at in range(0, len(view), size):
            yield view[at : at + size]


class Reader:
    """Reads one message at a time, from fragments, into memory that is allocated after the header was accepted.

    `accept` sees the header before anything else is read and raises `Violation` to reject it. After a `Violation` the
    reader must not be used again.
    """

    def __init__(self, decoder: msgspec.json.Decoder[Any], accept: Callable[[Any], None]) -> None:
        self._decoder, self._accept = decoder, accept
        self._clear()

    def _clear(self) -> None:
        self._head: Buffer = b""
        self._header: Any = None
        self._whole: memoryview | None = None  # the payload, if it came with the first fragment
        self._payload = memoryview(b"")
        self._filled = self._fragments = 0

    def feed(self, fragment: Buffer) -> None:
        """Take the next fragment of the message."""
        self._fragments += 1
        if self._fragments > 4096 + self._filled // 1024:
            raise Violation("malformed", f"{self._fragments} fragments for {self._filled} bytes")
        if self._header is not None:
            return self._fill(fragment)
        self._head = bytes(self._head) + bytes(fragment) if self._head else fragment
        begin = self._payload_begin()
        if begin is None or len(self._head) < begin:
            return
        rest = memoryview(self._head)[begin:]
        self._header = self._read_header(begin)
        total = sum(part.bytes for part in self._header.parts)
        if len(rest) == total:
            self._whole, self._filled = rest, total
        else:
            # NumPy takes memory in huge pages where it can: a bytearray of 40 MB costs ten thousand page faults.
            self._payload = np.empty(total, np.uint8).data
            self._fill(rest)

    def finish(self) -> Message:
        """End the message and return it; the reader is then ready for the next."""
        if self._header is None:
            raise Violation("malformed", f"a message of {len(self._head)} bytes ends inside its header")
        header = self._header
        total = sum(part.bytes for part in header.parts)
        if self._filled != total:
            raise Violation("malformed", f"{self._filled} bytes of payload; its parts announce {total}")
        payload = self._whole if self._whole is not None else self._payload
        buffers, at = [], 0
        for part in header.parts:
            buffers.append(payload[at : at + part.bytes].toreadonly())
            at += part.bytes
        self._clear()
        return Message(header, tuple(buffers))

    def _payload_begin(self) -> int | None:
        """Offset of the payload, None while the prefix is incomplete."""
        if len(self._head) < PREFIX.size:
            return None
        magic, protocol, length = PREFIX.unpack_from(self._head)
        if magic != MAGIC:
            raise Violation("malformed", "a message does not begin with SHL")
        if protocol != PROTOCOL:
            raise Violation("protocol", f"protocol {protocol}; this side speaks {PROTOCOL}")
        if length > MAX_HEADER:
            raise Violation("too-large", f"a header of {length} bytes; at most {MAX_HEADER}")
        return PREFIX.size + int(length) + _padding(length)

    def _read_header(self, begin: int) -> Any:
        _, _, length = PREFIX.unpack_from(self._head)
        if any(memoryview(self._head)[PREFIX.size + length : begin]):
            raise Violation("malformed", "the padding behind the header is not zero")
        try:
            header = self._decoder.decode(memoryview(self._head)[PREFIX.size : PREFIX.size + length])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Violation("malformed", f"header: {error}"[:250]) from None
        names = [part.name for part in header.parts]
        if len(set(names)) != len(names):
            raise Violation("malformed", f"parts of the same name: {names}"[:250])
        self._accept(header)
        return header

    def _fill(self, fragment: Buffer) -> None:
        if not len(fragment):
            return  # the end of a fragmented message may be empty
        end = self._filled + len(fragment)
        if self._whole is not None or end > len(self._payload):
            raise Violation("malformed", "more bytes of payload than its parts announce")
        self._payload[self._filled : end] = fragment
        self._filled = end


def _padding(length: int) -> int:
    return -(PREFIX.size + length) % 8
