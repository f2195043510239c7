"""The child without I/O: its messages, and its memory across connections.

A push keeps its sequence number until the parent has confirmed it. After a lost connection the welcome says which push was
applied last: either the unconfirmed one was, and only its answer got lost, or it is sent again unchanged.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from shoal.federation import normaliser as norm
from shoal.federation import wire
from shoal.federation.codec import HAS_ZSTD, Encoded, Mirror, Residual, Squeeze, pack, unpack
from shoal.federation.normaliser import Counts
from shoal.federation.wire import Buffer, Encoding, Message


class Update(NamedTuple):
    """A child's contribution: its weights, or their change since the base, as `Welcome.takes` says."""

    vector: np.ndarray  # [P] float32
    base: int  # the version that it started from
    episodes: int = 0  # since the update before
    steps: int = 0
    normaliser: Counts | None = None  # of the observations since the update before
    moments: Mapping[str, np.ndarray] = {}
    returns: tuple[float, ...] = ()  # of those episodes, at most 256
    took: float | None = None  # milliseconds of the exchange before


class Exchanged(NamedTuple):
    """The parent's answer, decoded."""

    version: int
    weights: np.ndarray | None  # [P] float32; None if the child has this version
    normaliser: Counts | None = None  # of all children's observations
    moments: Mapping[str, np.ndarray] = {}
    applied: bool | None = None  # for a push: False if it had been applied before
    stop: bool = False  # training is over
    missing: np.ndarray | None = None  # [P] bool: weights that were lost with their datagrams


class _Open(NamedTuple):
    """An unconfirmed push."""

    update: Update
    header: wire.Push
    encoded: tuple[Encoded, ...]


class Courier:
    """One child's side of the exchange. One request at a time."""

    def __init__(
        self,
        child: str,
        token: str,
        *,
        architecture: str = "",
        run: str = "",
        encoding: Encoding = "float32",
        zstd: bool = True,
        watches: bool = False,
    ) -> None:
        self.child, self.architecture, self.run, self.encoding = child, architecture, run, encoding
        self.welcome: wire.Welcome | None = None
        self.token, self._zstd, self._watches = token, zstd, watches
        self.life, self.attempt = secrets.token_hex(8), 0  # of the last hello
        self._sequence = 0  # of the last push
        self._open: _Open | None = None
        self._up: Mirror | None = None
        self._down: Mirror | None = None
        self._residual = Residual()
        self._squeeze = Squeeze(False)

    @property
    def open(self) -> bool:
        """Whether a push waits for its confirmation."""
        return self._open is not None

    def hello(self) -> wire.Hello:
        """The first message of a new connection."""
        self.attempt += 1
        return wire.Hello(
            child=self.child,
            token=self.token,
            architecture=self.architecture,
            run=self.run,
            encoding=self.encoding,
            zstd=self._zstd and HAS_ZSTD,
            watches=self._watches,
            life=self.life,
            attempt=self.attempt,
        )

    def welcomed(self, welcome: wire.Welcome) -> None:
        """Take in a welcome, which may show that the open push was applied already."""
        self.welcome, self.run = welcome, welcome.run
        self._squeeze = Squeeze(self._zstd and welcome.zstd)
        if self._open is not None and welcome.sequence >= self._open.header.sequence:
            self._confirm()
        self._sequence = max(self._sequence, welcome.sequence)

    def push(self, update: Update) -> tuple[wire.Push, list[Buffer]]:
        """Encode the next push. The previous one must be confirmed."""
        assert self._open is None, f"push {self._sequence} is not confirmed"
        self._sequence += 1
        return self._encode(update, self._up)

    def repeat(self) -> tuple[wire.Push, list[Buffer]]:
        """The open push again, unchanged."""
        assert self._open is not None
        header = _holding(self._open.header, have=None if self._down is None else self._down.number)
        self._open = self._open._replace(header=header)
        return header, [one.buffer for one in self._open.encoded]

    def pull(self, unless: int | None = None) -> wire.Pull:
        """Ask for the parent's weights, unless they are still version `unless`."""
        return wire.Pull(have=None if self._down is None else self._down.number, unless=unless)

    def answered(self, message: Message) -> Exchanged:
        """Take in `Pushed` or `Pulled`. Raises `Violation` for parts that do not fit."""
        header: wire.Pushed | wire.Pulled = message.header
        named, weights = message.named(), None
        if "weights" in named:
            weights = unpack(*named.pop("weights"), self._down)
            self._down = None if header.number is None else Mirror(header.number, weights)
        counts = norm.from_vector(unpack(*named.pop("normaliser"))) if "normaliser" in named else None
        moments = {name.removeprefix("moments/"): unpack(*pair) for name, pair in named.items()}
        applied = None
        if isinstance(header, wire.Pushed):
            if self._open is not None and header.sequence == self._open.header.sequence:
                self._confirm()
            applied = header.applied
        return Exchanged(header.version, weights, counts, moments, applied, header.stop)

    def refused(self, refused: wire.Refused) -> tuple[wire.Push, list[Buffer]] | None:
        """Take in a refusal: the push to send instead, or None. A push that cannot be repeated is given up."""
        if self._open is None or refused.sequence != self._open.header.sequence:
            return None
        if refused.reason == "reference":
            return self._encode(self._open.update, None)
        if refused.reason != "rate":
            self._open = None
        return None

    def _encode(self, update: Update, mirror: Mirror | None) -> tuple[wire.Push, list[Buffer]]:
        assert self.welcome is not None
        if self.welcome.takes == "weights":
            encoded = [pack("weights", update.vector, self.encoding, self._squeeze, mirror)]
        else:
            encoded = [self._residual.pack("weights", update.vector, self.encoding, self._squeeze)]
        if update.normaliser is not None and self.welcome.normaliser:
            encoded.append(pack("normaliser", norm.to_vector(update.normaliser), "float64", Squeeze(False)))
        wanted = {name: update.moments[name] for name in self.welcome.moments if name in update.moments}
        encoded += [pack(f"moments/{name}", vector, "float32", self._squeeze) for name, vector in wanted.items()]
        header = wire.Push(
            child=self.child,
            sequence=self._sequence,
            base=update.base,
            architecture=self.architecture,
            episodes=update.episodes,
            steps=update.steps,
            returns=update.returns,
            took=update.took,
            have=None if self._down is None else self._down.number,
            parts=tuple(one.part for one in encoded),
        )
        self._open = _Open(update, header, tuple(encoded))
        return header, [one.buffer for one in encoded]

    def _confirm(self) -> None:
        assert self._open is not None and self.welcome is not None
        value = self._open.encoded[0].value
        if self.welcome.takes == "delta":
            self._residual.settle(self._open.update.vector, value)
        elif self.encoding == "int8":
            self._up = Mirror(self._open.header.sequence, value)
        self._open = None


def _holding(header: wire.Push, have: int | None) -> wire.Push:
    """The same push with the reference that the child holds now."""
    fields = {name: getattr(header, name) for name in header.__struct_fields__}
    return wire.Push(**(fields | {"have": have}))
