"""Messages as bytes: any cut into fragments gives the same message, and nothing is allocated for what is refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parents import to_bytes

from shoal.federation import wire
from shoal.federation.wire import Part, Reader, Violation


def accept_all(header: object) -> None:
    return None


def read(data: bytes, cuts: list[int] | None = None) -> wire.Message:
    reader = Reader(wire.TO_PARENT, accept_all)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]
    for begin, end in pairwise(edges):
        reader.feed(data[begin:end])
    return reader.finish()


def push(values: int = 5, **settings: object) -> tuple[wire.Push, list[bytes]]:
    part = Part(name="weights", encoding="float32", size=values, bytes=4 * values)
    header = wire.Push(child="one", sequence=1, base=0, architecture="a", parts=(part,))
    return header, [np.arange(values, dtype="<f4").tobytes()]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_gives_the_same_message(cuts: list[int]) -> None:
    header, buffers = push(300)
    message = read(to_bytes(header, buffers), cuts)
    assert message.header == header
    assert bytes(message.buffers[0]) == buffers[0]


def test_a_payload_begins_at_a_multiple_of_eight() -> None:
    for values in range(1, 30):
        header, buffers = push(values)
        data = to_bytes(header, buffers)
        assert (len(data) - 4 * values) % 8 == 0


def test_a_whole_message_is_not_copied() -> None:
    header, buffers = push(1000)
    data = to_bytes(header, buffers)
    message = read(data)
    assert message.buffers[0].obj is data


def test_long_messages_travel_in_fragments() -> None:
    values = np.zeros(200_000, "<f4")
    part = Part(name="weights", encoding="float32", size=len(values), bytes=values.nbytes)
    message = wire.pieces(wire.Pulled(version=1, parts=(part,)), [values.data.cast("B")])
    cut = [len(fragment) for fragment in wire.fragments(message)]
    assert max(cut) <= wire.FRAGMENT and len(cut) > 3
    assert sum(cut) == sum(len(piece) for piece in message)
    assert len(list(wire.fragments(wire.pieces(wire.Ask())))) == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "malformed"),
        (b"SHL\x02\x02\x00\x00\x00{}", "protocol"),
        (b"SHL\x01\xff\xff\xff\xff", "too-large"),
        (b"SHL\x01\x02\x00\x00\x00{}\x00\x00\x00\x00\x00\x00", "malformed"),
        (b"SHL\x01\x0e\x00\x00\x00" + b'{"type":"ask"}' + b"\x01" * 2, "malformed"),
        (b"SHL\x01\x0e\x00\x00\x00" + b'{"type":"ask"}' + b"\x00" * 2 + b"more", "malformed"),
        (b"SHL\x01\x0f\x00\x00\x00" + b'{"type":"call"}' + b"\x00", "malformed"),
        (b"SHL", "malformed"),
        (b"", "malformed"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Violation) as refused:
        read(data)
    assert refused.value.reason == reason


def test_a_truncated_and_a_longer_payload_are_refused() -> None:
    data = to_bytes(*push())
    for bad in (data[:-1], data + b"x"):
        with pytest.raises(Violation, match="payload"):
            read(bad)


def test_names_may_not_hide_anything() -> None:
    good = b'{"type":"hello","child":"one","token":"t"}'
    for child in (b"../../etc", b"", b"a" * 65, b"one\\n", b"a b"):
        text = good.replace(b"one", child)
        data = wire.PREFIX.pack(b"SHL", 1, len(text)) + text + bytes(-(8 + len(text)) % 8)
        with pytest.raises(Violation, match="header"):
            read(data)


def test_deep_json_is_refused() -> None:
    text = b'{"type":"ask","x":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    data = wire.PREFIX.pack(b"SHL", 1, len(text)) + text + bytes(-(8 + len(text)) % 8)
    with pytest.raises(Violation):
        read(data)


def test_the_payload_is_allocated_after_the_header_was_accepted() -> None:
    def refuse(header: object) -> None:
        raise Violation("shape", "no")

    part = Part(name="weights", encoding="float32", size=2**40, bytes=2**42)  # 4 TiB would not fit
    header = wire.Push(child="one", sequence=1, base=0, architecture="a", parts=(part,))
    with pytest.raises(Violation, match="no"):
        Reader(wire.TO_PARENT, refuse).feed(to_bytes(header))


def test_endless_empty_fragments_are_refused() -> None:
    reader = Reader(wire.TO_PARENT, accept_all)

    def flood() -> None:
        for _ in range(10_000):
            reader.feed(b"")

    with pytest.raises(Violation, match="fragments"):
        flood()


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_violations(data: bytes) -> None:
    for start in (b"", b"SHL\x01", b"SHL\x01\x10\x00\x00\x00"):
        with pytest.raises(Violation):
            read(start + data)


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_still_a_message(at: int, value: int) -> None:
    data = bytearray(to_bytes(*push()))
    data[at % len(data)] = value
    try:
        message = read(bytes(data))
    except Violation:
        return
    assert isinstance(message.header, wire.ToParent)
