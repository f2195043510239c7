"""Decodes and checks a push before anything is changed. May run on any thread."""

from __future__ import annotations

import numpy as np

from shoal.federation import normaliser, wire
from shoal.federation.codec import Mirror, unpack
from shoal.federation.guard import Limits, Scale, check_scale, scale_of
from shoal.federation.state import Arrival, State
from shoal.federation.wire import Message, Violation

GRADIENT = 1e3  # a parent whose moments are smaller accepts as large ones as if they had this scale
OBSERVATION = 1e15  # largest mean and standard deviation of an observed element; their squares must fit into float32


def decode(message: Message, child: str, mirror: Mirror | None, parent: Scale, known: State, limits: Limits) -> Arrival:
    """Decode a push. `mirror`: the reference of its differences; `parent`: the scale of the weights in the `known` state.

    Raises `Violation` for content that must not be applied.
    """
    header: wire.Push = message.header
    named = message.named()
    part, buffer = named.pop("weights")
    vector = unpack(part, buffer, mirror)
    scale = scale_of(vector)
    check_scale("weights", scale, parent, limits.ratio)
    most = 2.0 * header.steps + limits.samples
    counts = _normaliser(*named.pop("normaliser"), most) if "normaliser" in named else None
    moments = {name.removeprefix("moments/"): unpack(*pair) for name, pair in named.items()}
    for name, moment in moments.items():
        # Gradients are of any size at first: the parent's moments begin at 0.
        check_scale(f"moments/{name}", scale_of(moment), scale_of(known.moments[name]), limits.ratio, GRADIENT)
        if name in known.squares and len(moment) and float(moment.min()) < 0:
            raise Violation("magnitude", f"moments/{name} has negative values", fatal=False)
    return Arrival(child, header.sequence, header.base, vector, header.steps, header.episodes, counts, moments)


def _normaliser(part: wire.Part, buffer: memoryview, most: float) -> normaliser.Counts:
    try:
        counts = normaliser.from_vector(unpack(part, buffer))
    except ValueError as error:
        raise Violation("non-finite", str(error), fatal=False) from None
    if counts.samples > most:
        raise Violation("magnitude", f"{counts.samples:.3g} observations in one push; at most {most:.3g}", fatal=False)
    spread = np.sqrt(counts.m2 / max(1.0, counts.samples))
    if max(np.abs(counts.mean).max(initial=0.0), spread.max(initial=0.0)) > OBSERVATION:
        raise Violation("magnitude", f"observations beyond {OBSERVATION:.0g}", fatal=False)
    return counts
