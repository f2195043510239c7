"""Vectors as bytes: float32, float16, or int8 in blocks of 256 with one scale each; optionally zstd.

int8 is 3.94 times smaller than float32 and loses up to 1/254 of a block's largest value. Two ways keep such losses from
adding up (error feedback):

- `Mirror`, for weights: both sides hold the same copy of what the receiver has, and what travels is the difference of the
  new value from it. What one message loses is part of the next difference.
- `Residual`, for changes: what was lost is added to the next change before that is encoded.
"""

from __future__ import annotations

from importlib import util
from typing import Any, NamedTuple

import numpy as np

from shoal.federation import wire
from shoal.federation.wire import BLOCK, Buffer, Encoding, Part, Violation

HAS_ZSTD = util.find_spec("zstandard") is not None
WORTH = 0.9  # zstd is kept if it is at most this share of the plain length
PAUSE = 15  # buffers that are not tried after one for which zstd was not worth it


def encode(encoding: Encoding, vector: np.ndarray) -> Buffer:
    """The buffer of a vector; float32 of a contiguous little-endian vector is not copied."""
    if encoding == "int8":
        return _to_int8(vector)
    kind = {"float32": "<f4", "float16": "<f2", "float64": "<f8"}[encoding]
    return np.ascontiguousarray(vector, kind).data.cast("B")


def decode(encoding: Encoding, buffer: Buffer, size: int) -> np.ndarray:
    """The vector of a buffer of the right length (`wire.encoded_bytes`): float32, or float64 for float64."""
    if encoding == "int8":
        blocks = -(-size // BLOCK)
        scales = np.frombuffer(buffer, "<f4", blocks)
        values = np.frombuffer(buffer, np.int8, size, offset=4 * blocks)
        padded = np.zeros(blocks * BLOCK, np.float32)
        padded[:size] = values
        # A scale may be anything at all: what it makes of the values is checked by the guard.
        with np.errstate(all="ignore"):
            return np.asarray((padded.reshape(blocks, BLOCK) * scales[:, None]).reshape(-1)[:size])
    kind = {"float32": "<f4", "float16": "<f2", "float64": "<f8"}[encoding]
    vector = np.frombuffer(buffer, kind, size)
    return vector.astype(np.float32) if encoding == "float16" else vector


def _to_int8(vector: np.ndarray) -> bytes:
    blocks = -(-len(vector) // BLOCK)
    padded = np.zeros(blocks * BLOCK, np.float32)
    padded[: len(vector)] = vector
    rows = padded.reshape(blocks, BLOCK)
    scales = (np.max(np.abs(rows), axis=1, initial=0.0) / np.float32(127)).astype("<f4")
    divisors = np.where(scales > 0, scales, 1)
    values = np.clip(np.rint(rows / divisors[:, None]), -127, 127).astype(np.int8)
    values[scales == 0] = 0
    return bytes(scales.tobytes() + values.reshape(-1)[: len(vector)].tobytes())


def lossless_within(encoding: Encoding, vector: np.ndarray) -> Encoding:
    """`encoding`, or float32 where float16 could not hold the largest value."""
    if encoding == "float16" and len(vector) and float(np.max(np.abs(vector))) > 65504.0:
        return "float32"
    return encoding


class Squeeze:
    """zstd where it helps: a buffer that hardly shrinks travels plain, and the next ones are not tried."""

    def __init__(self, allowed: bool) -> None:
        self._left = 0  # buffers to let pass untried
        self._compressor: Any = None
        if allowed and HAS_ZSTD:
            import zstandard

            self._compressor = zstandard.ZstdCompressor(level=1)

    def __call__(self, buffer: Buffer) -> tuple[Buffer, bool]:
        """(the buffer to send, whether it is compressed)."""
        if self._compressor is None:
            return buffer, False
        if self._left:
            self._left -= 1
            return buffer, False
        small = self._compressor.compress(buffer)
        if len(small) <= WORTH * len(buffer):
            return small, True
        self._left = PAUSE
        return buffer, False


def expand(part: Part, buffer: Buffer) -> Buffer:
    """The buffer before compression. Its length was announced, and more is never allocated."""
    if not part.zstd:
        return buffer
    if not HAS_ZSTD:
        raise Violation("encoding", "zstd was not offered: the package zstandard is not installed here")
    import zstandard

    length = wire.encoded_bytes(part.encoding, part.size)
    try:
        if zstandard.frame_content_size(buffer) != length:
            raise Violation("shape", f"{part.name}: the zstd frame does not hold {length} bytes")
        plain: bytes = zstandard.ZstdDecompressor(max_window_size=2**27).decompress(buffer, max_output_size=length)
    except zstandard.ZstdError as error:
        raise Violation("malformed", f"{part.name}: {error}"[:250]) from None
    if len(plain) != length:
        raise Violation("shape", f"{part.name}: {len(plain)} bytes; expected {length}")
    return plain


class Mirror(NamedTuple):
    """What both sides know the receiver to hold, and the number under which they know it."""

    number: int
    vector: np.ndarray


class Encoded(NamedTuple):
    """A part ready to be sent, and what the receiver will make of it."""

    part: Part
    buffer: Buffer
    value: np.ndarray


def pack(name: str, vector: np.ndarray, encoding: Encoding, squeeze: Squeeze, mirror: Mirror | None = None) -> Encoded:
    """Encode a vector; int8 as the difference from `mirror`, and without one as float32, which begins a mirror."""
    if encoding == "int8" and mirror is None:
        encoding = "float32"
    encoding = lossless_within(encoding, vector)
    reference = mirror if encoding == "int8" else None
    plain = encode(encoding, vector if reference is None else vector - reference.vector)
    received = decode(encoding, plain, len(vector))
    value = received if reference is None else reference.vector + received
    return _encoded(name, plain, encoding, squeeze, value, None if reference is None else reference.number)


def unpack(part: Part, buffer: Buffer, mirror: Mirror | None = None) -> np.ndarray:
    """The vector of a part whose lengths were checked. Raises `Violation` if it refers to what is not held here."""
    vector = decode(part.encoding, expand(part, buffer), part.size)
    if part.reference is None:
        return vector
    if mirror is None or mirror.number != part.reference:
        held = "nothing" if mirror is None else str(mirror.number)
        raise Violation("reference", f"{part.name} refers to {part.reference}; held is {held}", fatal=False)
    with np.errstate(all="ignore"):
        return np.asarray(mirror.vector + vector)


class Residual:
    """Error feedback for changes: what int8 lost of the last one is added to the next."""

    def __init__(self) -> None:
        self.lost: np.ndarray | None = None

    def pack(self, name: str, change: np.ndarray, encoding: Encoding, squeeze: Squeeze) -> Encoded:
        """Encode a change with what was lost before; `settle` says that it arrived."""
        wanted = change if self.lost is None else change + self.lost
        encoding = lossless_within(encoding, wanted)
        plain = encode(encoding, wanted)
        return _encoded(name, plain, encoding, squeeze, decode(encoding, plain, len(wanted)))

    def settle(self, change: np.ndarray, received: np.ndarray) -> None:
        """The receiver made `received` of this change."""
        wanted = change if self.lost is None else change + self.lost
        self.lost = wanted - received


def _encoded(
    name: str, plain: Buffer, encoding: Encoding, squeeze: Squeeze, value: np.ndarray, reference: int | None = None
) -> Encoded:
    size = len(value)
    buffer, small = squeeze(plain)
    part = Part(name=name, encoding=encoding, size=size, bytes=len(buffer), reference=reference, zstd=small)
    return Encoded(part, buffer, value)
