"""The parent's state as immutable values: weights with a version, children with their last sequence number.

A push is applied exactly once: its sequence number must be above the child's last. The version grows with every change of
the weights and never goes back, not even after a restart from an older checkpoint: a checkpoint reserves versions below
`ceiling`, no version from `ceiling` on is used before the next checkpoint is stored, and a restored state starts at `ceiling`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shoal.core.errors import BadInput
from shoal.federation.normaliser import Counts, empty, from_vector, merge, mix_moments, to_vector
from shoal.federation.rules.rule import Contribution, Memory, Rule, Step, columns
from shoal.federation.wire import Violation

RESERVED = 1 << 20  # versions that a checkpoint reserves


class Unreserved(RuntimeError):
    """All versions that the last checkpoint reserved are used: nothing changes before the next one is stored."""


class Child(NamedTuple):
    """The parent's record of a child."""

    sequence: int = 0  # of its last applied push
    present: bool = False
    pushes: int = 0
    steps: int = 0
    episodes: int = 0
    last_steps: int = 0  # of the last push
    staleness: int = 0  # of the last push
    distance: float = 0.0  # |C - P|, or |C - base|, at the last push


class Arrival(NamedTuple):
    """A push, decoded and checked."""

    child: str
    sequence: int
    base: int
    vector: np.ndarray  # [P] float32
    steps: int = 0
    episodes: int = 0
    normaliser: Counts | None = None
    moments: Mapping[str, np.ndarray] = {}


class State(NamedTuple):
    """The complete state of a parent. Its arrays are read-only, so a reference to it is a consistent snapshot."""

    version: int
    weights: np.ndarray  # [P] float32
    ceiling: int = RESERVED  # versions from here on need another checkpoint first
    normaliser: Counts | None = None
    moments: Mapping[str, np.ndarray] = {}  # {name: [P]}
    squares: frozenset[str] = frozenset()  # moments that are never negative
    memory: Memory = Memory()
    children: Mapping[str, Child] = {}
    jumps: tuple[tuple[int, int], ...] = ()  # (last version of a checkpoint, first after its restart)
    pushes: int = 0  # applied pushes
    steps: int = 0
    episodes: int = 0

    @property
    def present(self) -> int:
        """Number of connected children."""
        return sum(child.present for child in self.children.values())

    @property
    def awaited(self) -> int:
        """Number of children that a complete round has: the connected ones, and others with a pending contribution."""
        away = {one.child for one in self.memory.pending if not self.children.get(one.child, Child()).present}
        return self.present + len(away)


def start(
    weights: np.ndarray,
    *,
    normaliser: int = 0,
    moments: Mapping[str, np.ndarray] | None = None,
    squares: frozenset[str] = frozenset(),
) -> State:
    """The state of a new federation, version 0."""
    copies = {name: frozen(vector) for name, vector in (moments or {}).items()}
    unknown = squares - set(copies)
    if unknown:
        raise BadInput(f"no moments named {', '.join(sorted(unknown))}")
    return State(
        0, frozen(weights), normaliser=empty(normaliser) if normaliser else None, moments=copies, squares=squares
    )


def frozen(vector: np.ndarray) -> np.ndarray:
    """A read-only float32 copy."""
    copy = np.array(vector, np.float32)
    copy.setflags(write=False)
    return copy


def joined(state: State, name: str) -> State:
    """The state after a child has connected, for the first time or again."""
    return _with_child(state, name, state.children.get(name, Child())._replace(present=True))


def left(state: State, name: str) -> State:
    """The state after a child has disconnected; its contributions stay."""
    known = state.children.get(name)
    return state if known is None else _with_child(state, name, known._replace(present=False))


def forgotten(state: State, name: str) -> State:
    """The state without a child that left and never pushed."""
    assert not state.children[name].present and not state.children[name].sequence, name
    return state._replace(children={other: child for other, child in state.children.items() if other != name})


def is_new(state: State, name: str, sequence: int) -> bool:
    """Whether a push is not applied yet. A child may repeat only its last push; an older one is refused."""
    last = state.children.get(name, Child()).sequence
    if sequence < last:
        raise Violation("replayed", f"push {sequence} of {name!r}; push {last} was already applied", fatal=False)
    return sequence > last


def age(state: State, base: int) -> int:
    """tau: updates of the weights since version `base`, without the versions that a restart skipped."""
    if base > state.version:
        raise Violation("base", f"base version {base}; the parent's is {state.version}", fatal=False)
    skipped = sum(max(0, end - max(begin, base)) for begin, end in state.jumps)
    return max(0, state.version - base - skipped)


def apply(state: State, rule: Rule, push: Arrival, now: float, *, by_steps: bool = False) -> tuple[State, bool]:
    """Apply a push: (the new state, whether it was applied now). A push that was applied before changes nothing."""
    if not is_new(state, push.child, push.sequence):
        return state, False
    tau = age(state, push.base)
    far = distance(push.vector, state.weights if rule.takes == "weights" else None)
    share = share_of(state, push.child, push.steps) if by_steps else 1.0
    one = Contribution(push.child, push.vector, tau, share, push.moments, push.steps if by_steps else 0)
    step = rule.receive(state.weights, state.memory, one, state.awaited, now)
    return _counted(_stepped(state, step), push, tau, far), True


def mixed(state: State, push: Arrival, tau: int, far: float, weights: np.ndarray) -> State:
    """The state after a push that was averaged elsewhere; `weights` is a snapshot that contains it."""
    return _counted(_stepped(state, Step(weights, state.memory)), push, tau, far)


def _counted(state: State, push: Arrival, tau: int, far: float) -> State:
    """Count a push: its sequence number, steps, episodes and observations."""
    child = state.children.get(push.child, Child())
    child = child._replace(
        sequence=push.sequence,
        pushes=child.pushes + 1,
        steps=child.steps + push.steps,
        episodes=child.episodes + push.episodes,
        last_steps=push.steps,
        staleness=tau,
        distance=far,
    )
    state = _with_child(state, push.child, child)._replace(
        pushes=state.pushes + 1, steps=state.steps + push.steps, episodes=state.episodes + push.episodes
    )
    if push.normaliser is not None and state.normaliser is not None:
        state = state._replace(normaliser=merge(state.normaliser, push.normaliser))
    return state


def tick(state: State, rule: Rule, now: float) -> State:
    """Advance the clock: a round may end."""
    return _stepped(state, rule.tick(state.weights, state.memory, state.awaited, now))


def distance(vector: np.ndarray, start: np.ndarray | None) -> float:
    """|C - P|, or the length of a change."""
    squares = 0.0
    for part in columns(len(vector)):
        step = vector[part] if start is None else vector[part] - start[part]
        squares += float(np.dot(step, step))
    return math.sqrt(squares)


def share_of(state: State, child: str, steps: int) -> float:
    """Steps of a push relative to the mean of the connected children's last pushes, including this one."""
    there = {name: known for name, known in state.children.items() if known.present and known.pushes}
    last = {name: known.last_steps for name, known in there.items()} | {child: steps}
    mean = sum(last.values()) / len(last)
    return steps / mean if mean else 1.0


def _stepped(state: State, step: Step) -> State:
    if step.parent is None:
        return state._replace(memory=step.memory)
    if state.version + 1 >= state.ceiling:
        raise Unreserved(f"version {state.version + 1} is not covered by a checkpoint; store one first")
    weights = step.parent
    weights.setflags(write=False)
    moments = {
        name: mix_moments(
            vector,
            [(one.moments[name], rate) for one, rate in step.used if name in one.moments],
            squares=name in state.squares,
        )
        for name, vector in state.moments.items()
    }
    return state._replace(version=state.version + 1, weights=weights, moments=moments, memory=step.memory)


def _with_child(state: State, name: str, child: Child) -> State:
    return state._replace(children={**state.children, name: child})


# Checkpoints


class _Pending(msgspec.Struct, frozen=True):
    child: str
    staleness: int
    share: float
    moments: tuple[str, ...]
    steps: int = 0


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    version: int
    ceiling: int
    pushes: int
    steps: int
    episodes: int
    squares: tuple[str, ...]
    moments: tuple[str, ...]
    jumps: tuple[tuple[int, int], ...]
    pending: tuple[_Pending, ...]
    children: dict[str, Child]


def reserved(state: State) -> State:
    """The state that may continue once its checkpoint is stored."""
    return state._replace(ceiling=state.version + RESERVED)


def lifted(state: State, ceiling: int) -> State:
    """A restored state whose version is at least `ceiling`, since other checkpoints have reserved versions up to there."""
    if ceiling <= state.version:
        return state
    jumps = (*state.jumps[:-1], (state.jumps[-1][0], ceiling))
    return state._replace(version=ceiling, ceiling=ceiling, jumps=jumps)


def to_arrays(state: State) -> dict[str, np.ndarray]:
    """A checkpoint of `reserved(state)` as arrays; everything else is JSON in the bytes of `meta`."""
    memory = state.memory
    saved = _Saved(
        format=1,
        version=state.version,
        ceiling=state.version + RESERVED,
        pushes=state.pushes,
        steps=state.steps,
        episodes=state.episodes,
        squares=tuple(sorted(state.squares)),
        moments=tuple(state.moments),
        jumps=state.jumps,
        pending=tuple(
            _Pending(one.child, one.staleness, one.share, tuple(one.moments), one.steps) for one in memory.pending
        ),
        children=dict(state.children),
    )
    arrays = {"meta": np.frombuffer(msgspec.json.encode(saved), np.uint8), "weights": state.weights}
    arrays |= {f"moments/{name}": vector for name, vector in state.moments.items()}
    if state.normaliser is not None:
        arrays["normaliser"] = to_vector(state.normaliser)
    if memory.momentum is not None:
        arrays["momentum"] = memory.momentum
    for number, one in enumerate(memory.pending):
        arrays[f"pending/{number}"] = one.vector
        arrays |= {f"pending/{number}/{name}": vector for name, vector in one.moments.items()}
    return arrays


def from_arrays(arrays: Mapping[str, Any]) -> State:
    """The state of a checkpoint: no child is connected, and the version is above all versions used before.

    A new checkpoint must be stored before the version can change: `to_arrays`, then `reserved`.
    """
    try:
        saved = msgspec.json.decode(np.asarray(arrays["meta"], np.uint8).tobytes(), type=_Saved)
        pending = tuple(
            Contribution(
                one.child,
                frozen(arrays[f"pending/{number}"]),
                one.staleness,
                one.share,
                {name: frozen(arrays[f"pending/{number}/{name}"]) for name in one.moments},
                one.steps,
            )
            for number, one in enumerate(saved.pending)
        )
        momentum = frozen(arrays["momentum"]) if "momentum" in arrays else None
        return State(
            version=saved.ceiling,
            ceiling=saved.ceiling,
            weights=frozen(arrays["weights"]),
            normaliser=from_vector(arrays["normaliser"]) if "normaliser" in arrays else None,
            moments={name: frozen(arrays[f"moments/{name}"]) for name in saved.moments},
            squares=frozenset(saved.squares),
            memory=Memory(pending, None, momentum),
            children={name: child._replace(present=False) for name, child in saved.children.items()},
            jumps=(*saved.jumps, (saved.version, saved.ceiling)),
            pushes=saved.pushes,
            steps=saved.steps,
            episodes=saved.episodes,
        )
    except (KeyError, ValueError, TypeError, msgspec.DecodeError) as error:
        raise BadInput(f"not a checkpoint of a federation: {type(error).__name__}: {error}") from None
