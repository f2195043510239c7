"""Vectors as bytes: float32, float16, or int8 in blocks of 256 with one scale each; optionally zstd.

int8 is 3.94 times smaller than float32, with an error of up to 1/254 of a block's largest value. Two kinds of error feedback
keep such errors from adding up:

- `Mirror`, for weights: both sides hold a copy of the receiver's weights, and the sender encodes the difference from it. The
  error of one message is part of the next difference.
- `Residual`, for changes: the error of one change is added to the next before it is encoded.
"""

from __future__ import annotations

from importlib import util
from typing import NamedTuple

import numpy as np

from shoal.federation import wire
from shoal.federation.wire import BLOCK, Buffer, Encoding, Part, Violation

HAS_ZSTD = util.find_spec("zstandard") is not None
WORTH = 0.9  # the compressed buffer is sent if it has at most this share of the plain length
PAUSE = 15  # buffers sent without trying zstd after one that hardly shrank


def encode(encoding: Encoding, vector: np.ndarray) -> Buffer:
    """Encode a vector as a buffer; a contiguous little-endian float32 vector is not copied."""
    if encoding == "int8":
        return _to_int8(vector)
    kind = {"float32": "<f4", "float16": "<f2", "float64": "<f8"}[encoding]
    return np.ascontiguousarray(vector, kind).data.cast("B")


def decode(encoding: Encoding, buffer: Buffer, size: int) -> np.ndarray:
    """Decode a buffer of the right length (`wire.encoded_bytes`): a float32 vector, or float64 for float64."""
    if encoding == "int8":
        blocks = -(-size // BLOCK)
        scales = np.frombuffer(buffer, "<f4", blocks)
        values = np.frombuffer(buffer, np.int8, size, offset=4 * blocks)
        padded = np.zeros(blocks * BLOCK, np.float32)
        padded[:size] = values
        # Scales are not checked here: the guard checks the resulting values.
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
    """`encoding`, or float32 if float16 cannot hold the largest value."""
    if encoding == "float16" and len(vector) and float(np.max(np.abs(vector))) > 65504.0:
        return "float32"
    return encoding


class Squeeze:
    """zstd where it helps: a buffer that hardly shrinks is sent plain, and so are the next few, untried.

    A parent has one of these for every child, so it keeps no compressor: a used one holds 0.1 MB or more, and a new one is as
    fast.
    """

    def __init__(self, allowed: bool) -> None:
        self._allowed = allowed and HAS_ZSTD
        self._left = 0  # buffers still to send untried

    def __call__(self, buffer: Buffer) -> tuple[Buffer, bool]:
        """Compress if it helps: (the buffer to send, whether it is compressed)."""
        if not self._allowed:
            return buffer, False
        if self._left:
            self._left -= 1
            return buffer, False
        import zstandard

        small = zstandard.ZstdCompressor(level=1).compress(buffer)
        if len(small) <= WORTH * len(buffer):
            return small, True
        self._left = PAUSE
        return buffer, False


def expand(part: Part, buffer: Buffer) -> Buffer:
    """Decompress a buffer. Never allocates more than the announced length."""
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
    """A copy of the receiver's vector that both sides hold, and the number that identifies it."""

    number: int
    vector: np.ndarray


class Encoded(NamedTuple):
    """A part ready to be sent, and the value that the receiver will decode."""

    part: Part
    buffer: Buffer
    value: np.ndarray


def pack(name: str, vector: np.ndarray, encoding: Encoding, squeeze: Squeeze, mirror: Mirror | None = None) -> Encoded:
    """Encode a vector; int8 as the difference from `mirror`, or as float32 while there is no mirror."""
    if encoding == "int8" and mirror is None:
        encoding = "float32"
    encoding = lossless_within(encoding, vector)
    reference = mirror if encoding == "int8" else None
    plain = encode(encoding, vector if reference is None else vector - reference.vector)
    received = decode(encoding, plain, len(vector))
    value = received if reference is None else reference.vector + received
    return _encoded(name, plain, encoding, squeeze, value, None if reference is None else reference.number)


def unpack(part: Part, buffer: Buffer, mirror: Mirror | None = None) -> np.ndarray:
    """Decode a part whose lengths were checked. Raises `Violation` if it refers to a mirror that is not held here."""
    vector = decode(part.encoding, expand(part, buffer), part.size)
    if part.reference is None:
        return vector
    if mirror is None or mirror.number != part.reference:
        held = "nothing" if mirror is None else str(mirror.number)
        raise Violation("reference", f"{part.name} refers to mirror {part.reference}; held here: {held}", fatal=False)
    with np.errstate(all="ignore"):
        return np.asarray(mirror.vector + vector)


class Residual:
    """Error feedback for changes: the int8 error of the last one is added to the next."""

    def __init__(self) -> None:
        self.lost: np.ndarray | None = None

    def pack(self, name: str, change: np.ndarray, encoding: Encoding, squeeze: Squeeze) -> Encoded:
        """Encode a change plus the error so far; call `settle` once it has arrived."""
        wanted = change if self.lost is None else change + self.lost
        encoding = lossless_within(encoding, wanted)
        plain = encode(encoding, wanted)
        return _encoded(name, plain, encoding, squeeze, decode(encoding, plain, len(wanted)))

    def settle(self, change: np.ndarray, received: np.ndarray) -> None:
        """Update the error: the receiver decoded this change as `received`."""
        wanted = change if self.lost is None else change + self.lost
        self.lost = wanted - received


def _encoded(
    name: str, plain: Buffer, encoding: Encoding, squeeze: Squeeze, value: np.ndarray, reference: int | None = None
) -> Encoded:
    size = len(value)
    buffer, small = squeeze(plain)
    part = Part(name=name, encoding=encoding, size=size, bytes=len(buffer), reference=reference, zstd=small)
    return Encoded(part, buffer, value)
