"""The order of messages on each side."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parents import ARCHITECTURE, TOKEN, to_bytes

from shoal.federation import wire
from shoal.federation.protocol import ChildSide, ParentSide, Stage, part_sizes, same_secret
from shoal.federation.wire import Part, Violation

SIZES = part_sizes(4, 2, ("nu",))
HELLO = wire.Hello(child="one", token=TOKEN)
WELCOME = wire.Welcome(
    run="r",
    architecture="a",
    version=3,
    sequence=0,
    size=4,
    rule="fedavg",
    takes="weights",
    beta=1.0,
    adopts="newer",
    normaliser=2,
)


def weights(size: int = 4, **settings: object) -> Part:
    return Part(**{"name": "weights", "encoding": "float32", "size": size, "bytes": 4 * size} | settings)  # type: ignore[arg-type]


def push(*parts: Part, child: str = "one") -> wire.Push:
    return wire.Push(child=child, sequence=1, base=0, architecture=ARCHITECTURE, parts=parts)


def ready() -> ParentSide:
    side = ParentSide(SIZES)
    side.feed(to_bytes(HELLO))
    side.welcomed(side.finish().header)
    return side


def test_a_conversation() -> None:
    side = ready()
    for header, buffers in [(wire.Pull(), []), (push(weights()), [bytes(16)]), (wire.Ask(), []), (wire.Bye(), [])]:
        side.feed(to_bytes(header, buffers))
        assert side.finish().header == header
    assert side.stage is Stage.CLOSED
    with pytest.raises(Violation, match="after the end"):
        side.feed(b"")


def test_nothing_comes_before_hello_and_no_second_one_after_it() -> None:
    with pytest.raises(Violation, match="Pull before Hello"):
        ParentSide(SIZES).feed(to_bytes(wire.Pull()))
    with pytest.raises(Violation, match="second Hello"):
        ready().feed(to_bytes(HELLO))


def test_a_watcher_only_asks() -> None:
    side = ParentSide(SIZES)
    side.welcomed(wire.Hello(child="w", token=TOKEN, watches=True))
    side.feed(to_bytes(wire.Ask()))
    side.finish()
    with pytest.raises(Violation, match="only watches"):
        side.feed(to_bytes(wire.Pull()))


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (push(), "shape"),
        (push(weights(5)), "shape"),
        (push(weights(bytes=17)), "shape"),
        (push(weights(bytes=12)), "shape"),
        (push(weights(bytes=17, zstd=True)), "shape"),
        (push(weights(encoding="float64", bytes=32)), "encoding"),
        (push(weights(), weights()), "malformed"),
        (push(weights(), Part(name="secrets", encoding="float32", size=1, bytes=4)), "shape"),
        (push(weights(), Part(name="normaliser", encoding="float32", size=5, bytes=20)), "encoding"),
        (push(weights(), child="two"), "name"),
        (wire.Pull(parts=(weights(),)), "malformed"),
    ],
)
def test_lengths_and_names_are_checked_with_the_header(header: wire.Header, reason: str) -> None:
    side = ready()
    with pytest.raises(Violation) as refused:
        side.feed(to_bytes(header))
    assert refused.value.reason == reason
    assert side.stage is Stage.CLOSED


def test_a_child_takes_only_the_answer_that_it_waits_for() -> None:
    side = ChildSide()
    side.sends(HELLO)
    side.feed(to_bytes(WELCOME))
    assert side.finish().header == WELCOME
    with pytest.raises(Violation, match="waiting for nothing"):
        side.feed(to_bytes(wire.Pulled(version=1)))
    side = ChildSide()
    side.sends(HELLO)
    with pytest.raises(Violation, match="waiting for Welcome"):
        side.feed(to_bytes(wire.Pulled(version=1)))


def test_a_child_checks_the_lengths_of_an_answer() -> None:
    side = ChildSide()
    side.sends(HELLO)
    side.feed(to_bytes(WELCOME))
    side.finish()
    side.sends(wire.Pull())
    with pytest.raises(Violation, match="weights of 5 values"):
        side.feed(to_bytes(wire.Pulled(version=1, parts=(weights(5),))))


def test_a_child_allocates_no_answer_of_any_size() -> None:
    """A welcome may announce any size; a message has at most a gigabyte."""
    side, size = ChildSide(), 2**40
    side.sends(wire.Hello(child="one", token=TOKEN))
    side.feed(to_bytes(msgspec.structs.replace(WELCOME, size=size)))
    side.finish()
    side.sends(wire.Pull())
    part = Part(name="weights", encoding="float32", size=size, bytes=4 * size)
    with pytest.raises(Violation) as refused:
        side.feed(to_bytes(wire.Pulled(version=1, parts=(part,))))
    assert refused.value.reason == "too-large"


def test_a_child_that_listens_wants_the_token_first() -> None:
    side = ChildSide(token=TOKEN)
    side.feed(to_bytes(wire.Call(token=TOKEN)))
    side.finish()
    assert side.stage is Stage.GREETING
    with pytest.raises(Violation, match="token"):
        ChildSide(token=TOKEN).feed(to_bytes(wire.Call(token="another token, as long")))
    with pytest.raises(Violation, match="before Call"):
        ChildSide(token=TOKEN).feed(to_bytes(WELCOME))


def test_secrets_are_compared_whole() -> None:
    assert same_secret("ä" * 20, "ä" * 20)
    assert not same_secret("a" * 20, "a" * 19)


MESSAGES = st.sampled_from(
    [
        to_bytes(HELLO),
        to_bytes(wire.Pull()),
        to_bytes(wire.Ask()),
        to_bytes(wire.Bye()),
        to_bytes(push(weights()), [bytes(16)]),
        to_bytes(push(weights(5)), [bytes(20)]),
        to_bytes(WELCOME),
        to_bytes(wire.Pulled(version=2)),
        to_bytes(wire.Refused(reason="token", message="no")),
        to_bytes(wire.Call(token=TOKEN)),
        b"",
        b"SHL\x01\x00\x00\x00\x00",
    ]
)


def changed(data: bytes, at: int, value: int, length: int) -> bytes:
    """With one byte replaced, and cut."""
    if not data:
        return data
    at %= len(data)
    return (data[:at] + bytes([value]) + data[at + 1 :])[: max(1, len(data) - length)]


DAMAGED = st.builds(changed, MESSAGES, st.integers(0, 500), st.integers(0, 255), st.integers(0, 3))


@given(st.lists(MESSAGES | DAMAGED | st.binary(max_size=64), max_size=12))
def test_the_parents_machine_survives_any_messages(messages: list[bytes]) -> None:
    side = ParentSide(SIZES)
    for data in messages:
        try:
            side.feed(data)
            header = side.finish().header
        except Violation:
            assert side.stage is Stage.CLOSED
            return
        if isinstance(header, wire.Hello):
            assert side.stage is Stage.GREETING
            side.welcomed(header)
        else:
            assert side.stage is not Stage.GREETING


@given(st.booleans(), st.lists(MESSAGES | DAMAGED | st.binary(max_size=64), max_size=12))
def test_the_childs_machine_survives_any_messages(listens: bool, messages: list[bytes]) -> None:
    side = ChildSide(token=TOKEN) if listens else ChildSide()
    if not listens:
        side.sends(HELLO)
    for data in messages:
        try:
            side.feed(data)
            side.finish()
        except Violation:
            return
        if side.stage is Stage.READY and side._waits is None:
            side.sends(wire.Pull())
