"""Admission to a parent: tokens, limits, checks of vectors, strikes. No I/O; time is an argument."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.rules.rule import columns
from shoal.federation.wire import Reason, Violation

ANY = "*"  # a token with this name admits a child of any name
# Reasons that count as strikes: an honest child never causes them. The others have harmless causes too: a lost answer, a slow
# link, a restarted parent.
STRIKES: frozenset[Reason] = frozenset(
    {
        "malformed",
        "order",
        "too-large",
        "architecture",
        "name",
        "shape",
        "encoding",
        "non-finite",
        "magnitude",
        "replayed",
    }
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one parent."""

    connections: int = 2048
    """Open connections."""
    children: int = 10_000
    """Children that the parent remembers, connected or not."""
    greeting: int = 1024
    """Open connections that have not said hello yet."""
    hello_seconds: float = 10.0
    """Seconds allowed for TLS, the opening handshake and the hello."""
    stall_seconds: float = 60.0
    """Seconds allowed between two fragments of a message, and for an answer to be received."""
    fragment_bytes: int = 4 * 2**20
    """The largest single WebSocket frame; longer messages must come in fragments."""
    pushes_per_second: float = 500.0
    """Average pushes and pulls a second of one child."""
    asks_per_second: float = 20.0
    """Average requests for the status a second on one connection."""
    steps_per_second: float = 1e7
    """Environment steps a second that a child may report: one push as many as fit into the time since its last one."""
    bytes_per_second: float = 2.0**30
    """Average bytes a second of one child."""
    ratio: float = 1e3
    """Root mean square and largest value of a push, at most this many times the parent's."""
    samples: float = 65_536
    """Observations that one push may add to the normaliser beyond twice its steps: those of unrolls that are under way."""
    strikes: int = 5
    """Refusals after which a child is quarantined."""

    def __post_init__(self) -> None:
        for name in ("connections", "children", "greeting", "fragment_bytes", "strikes"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in (
            "hello_seconds", "stall_seconds", "pushes_per_second", "bytes_per_second", "asks_per_second", "steps_per_second",
            "ratio", "samples",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be above 0")


class Token(NamedTuple):
    """A token. Only the SHA-256 of its secret is kept."""

    child: str  # the child that it admits, or ANY
    digest: str
    revoked: bool = False


class Tokens:
    """The tokens of a federation. A secret is shown once, when it is issued."""

    def __init__(self, tokens: tuple[Token, ...] = ()) -> None:
        self.tokens = tokens

    @classmethod
    def from_json(cls, text: bytes) -> Tokens:
        """Read the output of `to_json`."""
        try:
            return cls(tuple(msgspec.json.decode(text, type=list[Token])))
        except msgspec.DecodeError as error:
            raise BadInput(f"not a token file: {error}") from None

    def to_json(self) -> bytes:
        """Encode for a file; contains no secret."""
        return msgspec.json.encode(self.tokens)

    def issue(self, child: str = ANY) -> str:
        """Create a secret of 256 bits for this child, or for any."""
        secret = secrets.token_urlsafe(32)
        self.admit(secret, child)
        return secret

    def admit(self, secret: str, child: str = ANY) -> None:
        """Accept this secret for this child, or for any."""
        if len(secret) < 16:
            raise BadInput(f"a token of {len(secret)} characters; it needs at least 16")
        self.tokens = (*self.tokens, Token(child, _digest(secret)))

    def revoke(self, child: str) -> int:
        """Stop accepting the child's tokens; the number of tokens revoked."""
        found = [token for token in self.tokens if token.child == child and not token.revoked]
        self.tokens = tuple(token._replace(revoked=True) if token in found else token for token in self.tokens)
        return len(found)

    def share(self, secret: str, child: str = ANY) -> None:
        """Make this the only secret that admits this child, or any. If it was revoked, it stays revoked."""
        digest = _digest(secret)
        if not any(token.child == child and hmac.compare_digest(token.digest, digest) for token in self.tokens):
            self.revoke(child)
            self.admit(secret, child)

    def check(self, secret: str, child: str) -> None:
        """Raise `Violation` unless the secret admits this child; for `ANY`, any valid secret does.

        A child with a valid token of its own is admitted by that token only: holders of the shared one cannot act in its name.
        The time taken does not reveal the reason.
        """
        has_own = child != ANY and any(token.child == child and not token.revoked for token in self.tokens)
        given, fits, revoked, shared = _digest(secret), False, False, False
        for token in self.tokens:
            same = hmac.compare_digest(given, token.digest) and (child == ANY or token.child in (child, ANY))
            admits = not (has_own and token.child == ANY)
            fits |= same and not token.revoked and admits
            revoked |= same and token.revoked
            shared |= same and not admits
        if not fits:
            whose, missing = (
                ("this token", "this token is not valid here")
                if child == ANY
                else (f"the token for {child!r}", f"no valid token for {child!r}")
            )
            if shared:
                raise Violation("token", f"{child!r} has a token of its own; the shared one does not admit it")
            raise Violation("token", f"{whose} was revoked" if revoked else missing)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Bucket:
    """Token bucket: `rate` units a second on average, with bursts of two seconds' worth."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._level, self._at = rate, 2.0 * rate, now

    def take(self, units: float, now: float) -> float:
        """Take units: 0 if they pass, else the seconds to wait. A request above the burst size passes if the bucket is full."""
        self._level = min(2.0 * self._rate, self._level + (now - self._at) * self._rate)
        self._at = now
        wanted = min(units, 2.0 * self._rate)
        if wanted > self._level:
            return (wanted - self._level) / self._rate
        self._level -= units
        return 0.0


class Scale(NamedTuple):
    """Size of a vector's values."""

    rms: float
    largest: float


def scale_of(vector: np.ndarray) -> Scale:
    """Measure a vector's scale. Raises `Violation` unless every value is finite."""
    if not len(vector):
        return Scale(0.0, 0.0)
    peaks = [max(part.max(), -part.min()) for part in map(vector.__getitem__, columns(len(vector)))]
    largest = float(np.max(peaks))  # a NaN wins
    if not math.isfinite(largest):
        bad = int(np.count_nonzero(~np.isfinite(vector)))
        raise Violation("non-finite", f"{bad} of {len(vector)} values are not finite", fatal=False)
    if largest == 0.0:
        return Scale(0.0, 0.0)
    # Scaled first, so that squares neither overflow nor vanish.
    unit = vector / np.float32(largest) if not 1e-15 < largest < 1e15 else vector
    squares = sum(float(np.dot(unit[part], unit[part])) for part in columns(len(unit)))
    rms = math.sqrt(squares / len(vector)) * (1.0 if unit is vector else largest)
    return Scale(rms, largest)


def check_scale(name: str, scale: Scale, parent: Scale, ratio: float, least: float = 1e-3) -> None:
    """Raise `Violation` for a vector that is far larger than the parent's; a parent's scale counts as `least` at least."""
    for what, value, known in (
        ("root mean square", scale.rms, parent.rms),
        ("largest value", scale.largest, parent.largest),
    ):
        most = ratio * max(known, least)
        if value > most:
            raise Violation("magnitude", f"{name}: {what} {value:.3g}; at most {most:.3g} is accepted", fatal=False)


class Guard:
    """Counts refusals and quarantines children. Only an authenticated child can collect strikes."""

    def __init__(self, limits: Limits, tokens: Tokens) -> None:
        self.limits, self.tokens = limits, tokens
        self.refused: Counter[str] = Counter()  # {reason: number}
        self.strikes: Counter[str] = Counter()  # {child: number}
        self._pushes: dict[str, Bucket] = {}
        self._bytes: dict[str, Bucket] = {}
        self._credit: dict[str, float] = {}  # when a child's last push was applied

    def admit(self, secret: str, child: str, *, watches: bool = False) -> None:
        """Raise `Violation` unless this child may take part. Any child's token is enough to watch."""
        self.tokens.check(secret, ANY if watches else child)
        if not watches and self.quarantined(child):
            raise Violation("quarantined", f"{child!r} is quarantined after {self.strikes[child]} strikes")

    def quarantined(self, child: str) -> bool:
        return self.strikes[child] >= self.limits.strikes

    def forgive(self, child: str) -> None:
        """End a quarantine."""
        del self.strikes[child]

    def forget(self, child: str) -> None:
        """Drop the rates of a child that left; its strikes stay."""
        for rates in (self._pushes, self._bytes, self._credit):
            rates.pop(child, None)

    def pace(self, child: str, bytes_: int, now: float) -> None:
        """Raise `Violation` if the child exceeds its rate of pushes or bytes."""
        if child not in self._pushes:
            self._pushes[child] = Bucket(self.limits.pushes_per_second, now)
            self._bytes[child] = Bucket(self.limits.bytes_per_second, now)
        wait = max(self._pushes[child].take(1.0, now), self._bytes[child].take(bytes_, now))
        if wait:
            raise Violation(
                "rate", f"more than {self.limits.pushes_per_second:g} pushes a second", fatal=False, retry_after=wait
            )

    def check_steps(self, child: str, steps: int, now: float) -> None:
        """Raise `Violation` for more steps than fit into the time since the child's last push, or since it was first heard."""
        rate = self.limits.steps_per_second
        most = rate * (1.0 + now - self._credit.setdefault(child, now))
        if steps > most:
            raise Violation(
                "rate",
                f"{steps:.3g} steps; at most {rate:.3g} a second",
                fatal=False,
                retry_after=(steps - most) / rate,
            )

    def credit(self, child: str, now: float) -> None:
        """Count the time for the next push's steps from here."""
        self._credit[child] = now

    def count(self, violation: Violation, child: str = "") -> None:
        """Count a refusal; `child` is named only if it is authenticated."""
        self.refused[violation.reason] += 1
        if child and violation.reason in STRIKES:
            self.strikes[child] += 1
