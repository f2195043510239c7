"""Vectors as bytes: exact where they can be, bounded where not, and losses that do not add up."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.federation import codec, wire
from shoal.federation.codec import Mirror, Residual, Squeeze, pack, unpack
from shoal.federation.wire import Part, Violation

PLAIN = Squeeze(False)
VECTORS = hnp.arrays(np.float32, st.integers(0, 700), elements=st.floats(-1e4, 1e4, width=32))


def slow_int8(vector: np.ndarray) -> np.ndarray:
    """Block by block, value by value."""
    out = []
    for begin in range(0, len(vector), 256):
        block = [float(x) for x in vector[begin : begin + 256]]
        scale = np.float32(max(abs(x) for x in block)) / np.float32(127)
        out += [
            np.float32(scale) * np.float32(np.clip(np.rint(np.float32(x) / scale), -127, 127)) if scale else 0.0
            for x in block
        ]
    return np.array(out, np.float32)


@given(VECTORS)
def test_float32_is_exact_and_lengths_are_as_announced(vector: np.ndarray) -> None:
    for encoding in ("float32", "float16", "int8"):
        buffer = codec.encode(encoding, vector)
        assert len(buffer) == wire.encoded_bytes(encoding, len(vector))
        back = codec.decode(encoding, buffer, len(vector))
        assert back.dtype == np.float32 and back.shape == vector.shape
        if encoding == "float32":
            assert back.tobytes() == vector.tobytes()
        if encoding == "float16":
            np.testing.assert_array_equal(back, vector.astype(np.float16).astype(np.float32))


@given(VECTORS)
def test_int8_is_what_the_slow_oracle_says(vector: np.ndarray) -> None:
    back = codec.decode("int8", codec.encode("int8", vector), len(vector))
    np.testing.assert_array_equal(back, slow_int8(vector))


@given(VECTORS)
def test_int8_loses_at_most_half_a_step_of_its_block(vector: np.ndarray) -> None:
    back = codec.decode("int8", codec.encode("int8", vector), len(vector))
    for begin in range(0, len(vector), 256):
        block = slice(begin, begin + 256)
        most = float(np.max(np.abs(vector[block]))) / 254
        assert float(np.max(np.abs(vector[block] - back[block]))) <= most * 1.0001 + 1e-38


def test_int8_is_almost_four_times_smaller() -> None:
    assert 4 * 10_000_000 / wire.encoded_bytes("int8", 10_000_000) > 3.93


def test_values_beyond_float16_travel_as_float32() -> None:
    big = np.array([1.0, 1e6], np.float32)
    encoded = pack("weights", big, "float16", PLAIN)
    assert encoded.part.encoding == "float32"
    np.testing.assert_array_equal(unpack(encoded.part, encoded.buffer), big)


def test_with_a_mirror_losses_do_not_add_up() -> None:
    """The receiver is as close after 200 differences as after one, and agrees with the sender's copy bit for bit."""
    rng = np.random.default_rng(0)
    value = rng.normal(size=1000).astype(np.float32)
    sender: Mirror | None = None
    receiver: Mirror | None = None
    for number in range(200):
        value = value + rng.normal(scale=0.01, size=1000).astype(np.float32)
        encoded = pack("weights", value, "int8", PLAIN, sender)
        got = unpack(encoded.part, encoded.buffer, receiver)
        assert got.tobytes() == encoded.value.tobytes()
        sender, receiver = Mirror(number, encoded.value), Mirror(number, got)
        assert encoded.part.encoding == ("int8" if number else "float32")
        assert np.max(np.abs(got - value)) < 0.001


def test_a_difference_from_what_is_not_held_is_refused() -> None:
    value = np.ones(3, np.float32)
    encoded = pack("weights", value, "int8", PLAIN, Mirror(7, value))
    for held in (None, Mirror(6, value)):
        with pytest.raises(Violation, match="refers to mirror 7"):
            unpack(encoded.part, encoded.buffer, held)


def test_with_a_residual_the_sum_of_changes_arrives() -> None:
    """Changes far below a step of int8 would be lost one by one for ever; together they arrive."""
    change = np.full(256, 1e-4, np.float32)
    change[0] = 1.0  # a step of the block is 1/127
    with_feedback, without = Residual(), np.zeros(256, np.float32)
    arrived = np.zeros(256, np.float32)
    for _ in range(300):
        encoded = with_feedback.pack("weights", change, "int8", PLAIN)
        received = unpack(encoded.part, encoded.buffer)
        with_feedback.settle(change, received)
        arrived += received
        without += codec.decode("int8", codec.encode("int8", change), 256)
    assert without[1] == 0.0
    np.testing.assert_allclose(arrived[1], 300 * 1e-4, atol=1 / 127)


def zstd_or_skip() -> None:
    if not codec.HAS_ZSTD and not os.environ.get("CI"):
        pytest.skip("zstandard is not installed")
    assert codec.HAS_ZSTD


def test_zstd_is_kept_only_where_it_helps() -> None:
    zstd_or_skip()
    squeeze = Squeeze(True)
    zeros = pack("weights", np.zeros(10_000, np.float32), "float32", squeeze)
    assert zeros.part.zstd and zeros.part.bytes < 1000
    np.testing.assert_array_equal(unpack(zeros.part, zeros.buffer), np.zeros(10_000))
    noise = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    assert not pack("weights", noise, "float32", squeeze).part.zstd
    assert not pack("weights", np.zeros(10_000, np.float32), "float32", squeeze).part.zstd, "tried too soon again"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads its memory from /proc")
def test_the_memory_of_a_child_is_small() -> None:
    """A parent has a thousand children: 300 of these grew by 31 MB when each kept its compressor."""
    zstd_or_skip()
    noise = np.random.default_rng(0).normal(size=10_000).astype(np.float32)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    pack("weights", noise, "float32", Squeeze(True))
    before = resident()
    kept = [Squeeze(True) for _ in range(300)]
    for squeeze in kept:
        pack("weights", noise, "float32", squeeze)
    assert resident() - before < 4 << 20


def test_a_zstd_frame_that_holds_something_else_is_refused() -> None:
    zstd_or_skip()
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(10_000_000))
    part = Part(name="weights", encoding="float32", size=1000, bytes=len(bomb), zstd=True)
    for buffer in (
        bomb,
        bomb[:-3],
        b"not zstd",
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(4000)),
    ):
        with pytest.raises(Violation):
            unpack(part, buffer)


def test_zstd_is_refused_where_it_was_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "HAS_ZSTD", False)
    with pytest.raises(Violation, match="not offered"):
        unpack(Part(name="weights", encoding="float32", size=1, bytes=4, zstd=True), bytes(4))


@given(st.binary(min_size=260, max_size=260))
def test_any_bytes_decode_to_something(buffer: bytes) -> None:
    assert codec.decode("int8", buffer, 256).shape == (256,)
    assert codec.decode("float16", buffer, 130).shape == (130,)
