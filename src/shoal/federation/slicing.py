"""Slices of a vector as bytes: each with an HMAC, gathered in any order. No I/O.

    offset  bytes  meaning
    0       3      "SHU"
    3       1      1: from a child, 2: from the parent, 3: a refusal by the parent
    4       8      the child: first bytes of the SHA-256 of its name
    12      8      sequence number of the push
    20      8      base version of the push; in an answer, the parent's version
    28      4      size of the vector
    32      4      offset of the first value, a multiple of 320
    36      8      steps of the connection so far, with those of this push
    44      8      episodes of the connection so far
    52      4      float32: milliseconds of the exchange before, 0 if unknown
    56      4 n    float32 values: n = 320, fewer in the last slice
    ...     16     first bytes of the HMAC-SHA256 of all preceding bytes

A refusal has the same header, with zeros from offset 28 on, and the JSON object of `wire.Refused` in place of the values.
The key derives from the child's token, the run and the connection, so that datagrams of an earlier connection mean nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from shoal.federation import wire
from shoal.federation.tally import Totals

MAGIC, UP, DOWN, REFUSED = b"SHU", 1, 2, 3
HEAD = struct.Struct("<3sB8sQQIIQQf")
TAG = 16
SLICE = 320  # values; a datagram then fits into an Ethernet frame
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly
NOTHING = Totals()


class Gathered(NamedTuple):
    """The slices of one vector that arrived."""

    sequence: int
    version: int
    totals: Totals
    took: float | None  # milliseconds of the exchange before
    values: np.ndarray  # [P] float32, 0 where nothing arrived
    there: np.ndarray  # [P] bool


def key_of(token: str, child: str, run: str, life: str, attempt: int) -> bytes:
    """The key of a child's datagrams, another one for each of its connections: `life` and `attempt` are those of its hello."""
    text = f"shoal datagrams of {child}\n{attempt}\n{run}\n{life}"
    return hmac.digest(hashlib.sha256(token.encode()).digest(), text.encode(), "sha256")


def name_of(child: str) -> bytes:
    """The name of a child in a datagram."""
    return hashlib.sha256(child.encode()).digest()[:8]


def slices(
    direction: int,
    child: str,
    key: bytes,
    sequence: int,
    version: int,
    vector: np.ndarray,
    totals: Totals = NOTHING,
    took: float | None = None,
) -> Iterator[bytes]:
    """The datagrams of a vector. Each sequence number begins elsewhere, since it is mostly the last ones that get lost."""
    values = np.ascontiguousarray(vector, "<f4")
    number = -(-len(values) // SLICE)
    first = int(sequence * GOLDEN % 1.0 * number)
    whole, counts = (MAGIC, direction, name_of(child), sequence, version, len(values)), (*totals, took or 0.0)
    for offset in (SLICE * ((first + index) % number) for index in range(number)):
        head = HEAD.pack(*whole, offset, *counts)
        yield _signed(head + values[offset : offset + SLICE].tobytes(), key)


def refusal(child: str, key: bytes, sequence: int, version: int, refused: wire.Refused) -> bytes:
    """The datagram that refuses a push."""
    head = HEAD.pack(MAGIC, REFUSED, name_of(child), sequence, version, 0, 0, *NOTHING, 0.0)
    return _signed(head + msgspec.json.encode(refused), key)


def refused_by(datagram: bytes, child: str, key: bytes, sequence: int) -> wire.Refused | None:
    """The refusal of push `sequence`; None if the datagram is anything else."""
    body = _checked(datagram, key) if datagram[3:4] == bytes([REFUSED]) else None
    if body is None or HEAD.unpack_from(body)[:4] != (MAGIC, REFUSED, name_of(child), sequence):
        return None
    try:
        header = wire.TO_CHILD.decode(body[HEAD.size :])
    except msgspec.DecodeError:
        return None
    return header if isinstance(header, wire.Refused) else None


def _signed(body: bytes, key: bytes) -> bytes:
    return body + hmac.digest(key, body, "sha256")[:TAG]


def _checked(datagram: bytes, key: bytes) -> bytes | None:
    """A datagram without its tag; None if the tag is wrong or there is nothing behind the header."""
    body, tag = datagram[:-TAG], datagram[-TAG:]
    right = len(body) > HEAD.size and hmac.compare_digest(hmac.digest(key, body, "sha256")[:TAG], tag)
    return body if right else None


class Gathering:
    """Assembles the slices of one sender. Drops and counts forged, repeated and outdated ones."""

    def __init__(self, direction: int, child: str, key: bytes, size: int, after: int = 0) -> None:
        self.dropped = 0
        self.at = 0.0  # when the last slice came
        self._direction, self._name, self._key, self._size = direction, name_of(child), key, size
        self._after = after  # sequence numbers up to here are outdated
        self._now: Gathered | None = None

    def receive(self, datagram: bytes, now: float) -> list[Gathered]:
        """Take a slice; the vectors that it ends: an incomplete one if a newer has begun, and one that is now complete."""
        body = _checked(datagram, self._key)
        if body is None:
            return self._drop()
        magic, direction, name, sequence, version, size, offset, steps, episodes, took = HEAD.unpack_from(body)
        count = min(SLICE, self._size - offset)
        right = (magic, direction, name, size) == (MAGIC, self._direction, self._name, self._size)
        if not right or offset % SLICE or count <= 0 or len(body) != HEAD.size + 4 * count or sequence <= self._after:
            return self._drop()
        ended = []
        if self._now is not None and sequence != self._now.sequence:
            if sequence < self._now.sequence:
                return self._drop()
            ended += self.flush()
        if self._now is None:
            values, there = np.zeros(self._size, np.float32), np.zeros(self._size, bool)
            known = took if 0.0 < took < math.inf else None
            self._now = Gathered(sequence, version, Totals(steps, episodes), known, values, there)
        if self._now.there[offset]:
            return ended + self._drop()
        self._now.values[offset : offset + count] = np.frombuffer(body, "<f4", count, HEAD.size)
        self._now.there[offset : offset + count] = True
        self.at = now
        return ended + (self.flush() if self._now.there.all() else [])

    @property
    def sequence(self) -> int | None:
        """Sequence number of the vector that is incomplete, None if there is none."""
        return None if self._now is None else self._now.sequence

    def skip(self, sequence: int) -> None:
        """Drop what there is of the vectors up to this one, and what still comes."""
        self._now, self._after = None, sequence

    def flush(self) -> list[Gathered]:
        """End the current vector with the slices that have arrived."""
        if self._now is None:
            return []
        done, self._now = self._now, None
        self._after = done.sequence
        return [done]

    def _drop(self) -> list[Gathered]:
        self.dropped += 1
        return []
