"""The parent without I/O: sessions deliver messages; the hub checks them, changes the state and answers.

One thread owns a hub. `hub.state` is an immutable value that other threads may read at any time: pulls, evaluation and
checkpoints work on such a snapshot, so no child waits for another.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from shoal.federation import normaliser, state, wire
from shoal.federation.arrivals import decode
from shoal.federation.codec import HAS_ZSTD, Encoded, Mirror, Squeeze, pack
from shoal.federation.guard import Guard, Scale, Tokens, scale_of
from shoal.federation.hogwild import Unlocked
from shoal.federation.protocol import part_sizes
from shoal.federation.rates import Rates
from shoal.federation.rules.rule import Rule
from shoal.federation.session import Ended, Session
from shoal.federation.state import Arrival, State
from shoal.federation.wire import Message, Violation

Consistency = Literal["lock", "hogwild"]
AWAY = 300.0  # seconds after which the reference copies of a child that left are dropped: 8 bytes for each weight


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Constants of a federation, fixed for a run."""

    run: str
    """Name of the run; a child that belongs to another run is refused."""
    architecture: str
    """Fingerprint of the weights' layout."""
    rule: Rule
    """How children's weights are merged."""
    rule_name: str
    """Name of the rule in `RULES`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the children, as JSON: environment, algorithm, net, when to exchange."""
    by_steps: bool = False
    """Weight contributions by environment steps instead of equally."""
    consistency: Consistency = "lock"
    """Whether pushes are averaged one at a time, or in place by several threads."""


@dataclass
class Links:
    """Memory of a child across connections: reference copies for differences, byte counts, the state of compression."""

    up: Mirror | None = None  # its last push, numbered by sequence
    down: Mirror | None = None  # the weights that it was last sent
    bytes_up: int = 0
    bytes_down: int = 0
    squeeze: Squeeze = field(default_factory=lambda: Squeeze(True))


class Hub:
    """A complete parent except for sockets and files."""

    def __init__(
        self,
        federation: Federation,
        start: State,
        guard: Guard,
        *,
        numbers: Callable[[], int] = lambda: secrets.randbits(52),
    ) -> None:
        self.federation, self.guard, self.rates = federation, guard, Rates()
        self.state = start
        self.sizes = part_sizes(
            len(start.weights), 0 if start.normaliser is None else len(start.normaliser.mean), tuple(start.moments)
        )
        self.sessions: dict[str, Session] = {}  # by child
        self.watchers: set[Session] = set()  # connections that only ask for the status
        self.open = self.greeting = 0  # open connections, and those that have not said hello
        self.stop = False  # pushes are no longer applied, and answers tell children to stop
        self.spent: Callable[[State], float] = lambda now: 0.0  # share of the budget in [0, 1]
        self.heard: Callable[[wire.Push], None] = lambda push: None  # called with every applied push
        self.greeted: Callable[[wire.Hello], None] = lambda hello: None  # called with every child that joins
        self._links: dict[str, Links] = {}
        self._now = -math.inf  # at the last tick
        # Children that left, earliest first: those whose reference copies are kept, by when they left, and the others.
        self._left: dict[str, float] = {}
        self._gone: dict[str, None] = dict.fromkeys(start.children)
        self._numbers = numbers
        self._scale: tuple[int, Scale] = (-1, Scale(0.0, 0.0))  # (version, scale of its weights)
        self.unlocked = Unlocked(self) if federation.consistency == "hogwild" else None

    def session(self, ended: Ended = lambda reason, answer: None) -> Session:
        """Begin a connection; `ended` is called when the hub ends it. Raises `Violation` if the parent is full."""
        limits = self.guard.limits
        if self.open >= limits.connections or self.greeting >= limits.greeting:
            violation = Violation("full", f"{self.open} connections, {self.greeting} of them without hello")
            self.guard.count(violation)
            raise violation
        return Session(self, ended)

    def readmit(self, tokens: Tokens) -> None:
        """Use these tokens from now on; end connections whose token was revoked, and tell them the reason."""
        self.guard.tokens = tokens
        for session in [*self.sessions.values(), *self.watchers]:
            session.recheck()

    def refusal(self, violation: Violation, child: str, sequence: int | None = None) -> wire.Refused:
        """Count a refusal; the message that tells it. It is fatal if it leads to quarantine."""
        self.guard.count(violation, child)
        return wire.Refused(
            reason=violation.reason,
            message=str(violation)[:256],
            sequence=sequence,
            fatal=violation.fatal or (bool(child) and self.guard.quarantined(child)),
            retry_after=violation.retry_after,
        )

    def join(self, child: str, session: Session) -> None:
        """Note that a child has connected."""
        self.sessions[child] = session
        self.state = state.joined(self.state, child)
        self._left.pop(child, None)
        self._gone.pop(child, None)

    def leave(self, child: str) -> None:
        """Note that a child's connection has ended."""
        del self.sessions[child]
        self.state = state.left(self.state, child)
        self._left[child] = self._now

    def has_room(self) -> bool:
        """Whether another child may join; one that left without ever pushing is forgotten for it, the earliest first.

        A child that has pushed keeps its sequence number for ever, so that no push counts twice, and one with strikes keeps them.
        """
        known = self.state.children
        if len(known) < self.guard.limits.children:
            return True
        for child in (*self._gone, *self._left):
            if not known[child].pushes and not self.guard.strikes[child]:
                self.state = state.forgotten(self.state, child)
                self.guard.forget(child)
                for memory in (self._links, self._left, self._gone):
                    memory.pop(child, None)
                return True
        return False

    def tick(self, now: float) -> None:
        """Advance the clock: rounds may end, and copies for children that left long ago are dropped."""
        self._now = now
        for child in [*itertools.takewhile(lambda name: now - self._left[name] >= AWAY, self._left)]:
            del self._left[child]
            self._gone[child] = None
            self.links(child).up = self.links(child).down = None  # if it returns, weights travel in full once
        if self.stop:
            return
        self.state = state.tick(self.state, self.federation.rule, now)

    def end(self, kept: State | None, *, last_round: bool) -> None:
        """Apply no more pushes. The weights become those of the `kept` snapshot; otherwise `last_round` ends the open round."""
        self.stop, now = True, self.state
        if kept is not None:
            self.state = now._replace(
                version=now.version + 1,
                weights=kept.weights,
                normaliser=kept.normaliser,
                moments=kept.moments,
                jumps=(*now.jumps, (now.version, now.version + 1)),  # another version, but no update
            )
        elif last_round:  # no other child will contribute to it
            self.state = state.tick(now, self.federation.rule, math.inf)

    def checkpoint(self, snapshot: State | None = None) -> dict[str, np.ndarray]:
        """A snapshot, by default of now, as arrays. Call `stored` once they are safely written."""
        return state.to_arrays(snapshot or self.state)

    def stored(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Confirm that these arrays of `checkpoint` are on disk, which releases the versions that they reserve."""
        self.state = self.state._replace(ceiling=max(self.state.ceiling, state.from_arrays(arrays).version))

    def report(self, most: int | None = None, at: float | None = None) -> dict[str, Any]:
        """The status: children, versions, contributions, refusals. With `most`, only the children that pushed most often.

        Rates are those at the time `at`, or, without it, those at each child's last push.
        """
        now = self.state
        listed = sorted(now.children.items(), key=lambda item: -item[1].pushes)[:most]
        return {
            "run": self.federation.run,
            "rule": self.federation.rule_name,
            "version": now.version,
            "pushes": now.pushes,
            "env_steps": now.steps,
            "episodes": now.episodes,
            "pending": len(now.memory.pending),
            "stop": self.stop,
            "rejected": sum(self.guard.refused.values()),
            "refused": dict(self.guard.refused),
            "unlisted": len(now.children) - len(listed),
            "children": [self._report_of(name, child, at) for name, child in sorted(listed)],
        }

    def _report_of(self, name: str, child: state.Child, at: float | None) -> dict[str, Any]:
        links = self.links(name)
        return {
            "child": name,
            **child._asdict(),
            "share": child.pushes / max(1, self.state.pushes),
            "steps_per_s": round(self.rates.of(name, at), 1),
            "bytes_up": links.bytes_up,
            "bytes_down": links.bytes_down,
            "strikes": self.guard.strikes[name],
            "quarantined": self.guard.quarantined(name),
        }

    def counts(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the state: strikes, refusals, bytes of each child. As JSON."""
        links = list(self._links.items())
        return {
            "strikes": dict(self.guard.strikes),
            "refused": dict(self.guard.refused),
            "bytes": {name: [one.bytes_up, one.bytes_down] for name, one in links},
        }

    def recount(self, counts: Mapping[str, Any]) -> None:
        """Continue from the `counts` of a checkpoint."""
        self.guard.strikes.update(counts.get("strikes", {}))
        self.guard.refused.update(counts.get("refused", {}))
        for name, (up, down) in counts.get("bytes", {}).items():
            self._links[name] = Links(bytes_up=up, bytes_down=down)

    def links(self, child: str) -> Links:
        """The memory of a child."""
        return self._links.setdefault(child, Links())

    def welcome(self, child: str) -> wire.Welcome:
        """The answer to a child's hello."""
        now, federation = self.state, self.federation
        return wire.Welcome(
            run=federation.run,
            architecture=federation.architecture,
            version=now.version,
            sequence=now.children[child].sequence if child in now.children else 0,
            size=len(now.weights),
            rule=federation.rule_name,
            takes=federation.rule.takes,
            beta=federation.rule.pull,
            adopts=federation.rule.adopts,
            normaliser=0 if now.normaliser is None else len(now.normaliser.mean),
            moments=tuple(now.moments),
            zstd=HAS_ZSTD,
            spent=self.spent(now),
            settings=dict(federation.settings),
        )

    def push(self, message: Message, child: str, keeps: bool, now: float) -> bool:
        """Apply a push; whether it was new. `keeps`: keep a copy for the child's next difference."""
        header: wire.Push = message.header
        if not self.wanted(header, child, now):
            return False
        arrival = self.decoded(message, child)
        self.state, applied = state.apply(
            self.state, self.federation.rule, arrival, now, by_steps=self.federation.by_steps
        )
        self.applied(header, arrival, keeps, now)
        return applied

    def wanted(self, header: wire.Push, child: str, now: float) -> bool:
        """Whether a push should be applied, judged by its header. Raises `Violation` for a wrong one."""
        received = sum(part.bytes for part in header.parts)
        self.guard.pace(child, received, now)
        self.links(child).bytes_up += received
        if header.architecture != self.federation.architecture:
            raise Violation(
                "architecture", f"architecture {header.architecture!r}; this run has {self.federation.architecture!r}"
            )
        # Checked before decoding: a push that was applied already refers to a copy that has since changed.
        if self.stop or not state.is_new(self.state, child, header.sequence):
            return False
        self.guard.check_steps(child, header.steps, now)
        return True

    def decoded(self, message: Message, child: str) -> Arrival:
        """Decode and check a push, without changing the hub. Raises `Violation` for content that must not be applied."""
        return decode(message, child, self.links(child).up, self._parent_scale(), self.state, self.guard.limits)

    def applied(self, header: wire.Push, arrival: Arrival, keeps: bool, now: float) -> None:
        """Note that a push was applied: the child's next difference refers to it."""
        if keeps and self.federation.rule.takes == "weights":
            self.links(arrival.child).up = Mirror(header.sequence, arrival.vector)
        self.counted(header, now)

    def counted(self, header: wire.Push, now: float) -> None:
        """Tell those that count applied pushes."""
        self.rates.add(header.child, header.steps, now)
        self.guard.credit(header.child, now)
        self.heard(header)

    def weights(self, child: str, hello: wire.Hello, have: int | None) -> tuple[list[Encoded], int | None]:
        """The parent's weights for this child, and the number that identifies them as the next reference on both sides."""
        links, now = self.links(child), self.state
        mirror = links.down if links.down is not None and links.down.number == have else None
        squeeze = links.squeeze if hello.zstd else Squeeze(False)
        encoded = [pack("weights", now.weights, hello.encoding, squeeze, mirror)]
        number = None
        if hello.encoding == "int8":
            number = self._numbers()
            links.down = Mirror(number, encoded[0].value)
        if now.normaliser is not None:
            encoded.append(pack("normaliser", normaliser.to_vector(now.normaliser), "float64", Squeeze(False)))
        encoded += [pack(f"moments/{name}", vector, "float32", squeeze) for name, vector in now.moments.items()]
        links.bytes_down += sum(len(one.buffer) for one in encoded)
        return encoded, number

    def _parent_scale(self) -> Scale:
        now, known = self.state, self._scale
        if known[0] != now.version:
            known = self._scale = (now.version, scale_of(now.weights))
        return known[1]
