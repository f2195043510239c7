"""The byte-level test vectors of docs/federation.md: what the page shows is what is spoken."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from shoal.federation import wire
from shoal.federation.codec import decode, encode
from shoal.federation.rules import RULES
from shoal.federation.slicing import UP, key_of, refusal, slices
from shoal.federation.tally import Totals
from shoal.federation.wire import Part, Reader

PAGE = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()
WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)
PART = Part(name="weights", encoding="float32", size=3, bytes=12)
VECTORS: dict[str, tuple[wire.Header, list[bytes]]] = {
    "hello": (wire.Hello(child="pi-3", token="0123456789abcdef"), []),
    "welcome": (
        wire.Welcome(
            run="run-1",
            architecture="5f2b",
            version=7,
            sequence=2,
            size=3,
            rule="alpha_beta",
            takes="weights",
            beta=0.5,
            adopts="always",
        ),
        [],
    ),
    "push": (
        wire.Push(child="pi-3", sequence=3, base=7, architecture="5f2b", episodes=1, steps=200, parts=(PART,)),
        [bytes(encode("float32", WEIGHTS))],
    ),
    "pushed": (wire.Pushed(sequence=3, version=8, applied=True, parts=(PART,)), [bytes(encode("float32", WEIGHTS))]),
    "pull": (wire.Pull(unless=8), []),
    "pulled": (wire.Pulled(version=8), []),
    "refused": (wire.Refused(reason="non-finite", message="1 of 3 values are not finite", sequence=3, fatal=False), []),
    "call": (wire.Call(token="0123456789abcdef", run="run-1"), []),
    "ask": (wire.Ask(), []),
    "bye": (wire.Bye(), []),
}
BUFFERS = {
    "float32": WEIGHTS,
    "float16": WEIGHTS,
    "int8": WEIGHTS,
    "float64": np.array([4.0, 1.0, 0.5]),
}


def block(name: str) -> bytes:
    """The bytes below `### name` or `**name**`."""
    found = re.search(rf"^```hex {re.escape(name)}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no vector {name!r} on the page"
    return bytes.fromhex("".join(line.split("|")[0] for line in found[1].splitlines()))


@pytest.mark.parametrize("name", VECTORS)
def test_messages_are_as_documented(name: str) -> None:
    header, buffers = VECTORS[name]
    shown = block(name)
    assert shown == b"".join(bytes(piece) for piece in wire.pieces(header, buffers))
    decoder = wire.TO_PARENT if isinstance(header, wire.ToParent) else wire.TO_CHILD
    reader = Reader(decoder, lambda header: None)
    reader.feed(shown)
    message = reader.finish()
    assert message.header == header and [bytes(buffer) for buffer in message.buffers] == buffers


@pytest.mark.parametrize("encoding", BUFFERS)
def test_buffers_are_as_documented(encoding: wire.Encoding) -> None:
    shown = block(f"buffer {encoding}")
    assert shown == bytes(encode(encoding, BUFFERS[encoding]))
    np.testing.assert_allclose(decode(encoding, shown, 3), BUFFERS[encoding], atol=0.01)


def test_datagrams_are_as_documented() -> None:
    key = key_of("0123456789abcdef", "pi-3", "run-1", "5f2b", 1)
    assert block("datagram key") == key
    assert [block("datagram push")] == list(slices(UP, "pi-3", key, 3, 7, WEIGHTS, Totals(200, 1)))
    refused = VECTORS["refused"][0]
    assert isinstance(refused, wire.Refused)
    assert block("datagram refused") == refusal("pi-3", key, 3, 8, refused)


def test_every_reason_every_message_and_every_rule_is_on_the_page() -> None:
    for reason in wire.Reason.__args__:  # type: ignore[attr-defined]
        assert f"`{reason}`" in PAGE, reason
    for kind in (wire.ToParent | wire.ToChild).__args__:
        assert f"`{kind.__name__.lower()}`" in PAGE, kind
        for name in kind.__struct_fields__:
            assert f"`{name}`" in PAGE, f"{kind.__name__}.{name}"
    for name in RULES:
        assert f"`{name}`" in PAGE, name


def test_json_headers_are_what_any_json_reader_reads() -> None:
    shown = block("push")
    length = int.from_bytes(shown[4:8], "little")
    assert json.loads(shown[8 : 8 + length])["sequence"] == 3
