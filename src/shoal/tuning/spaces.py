"""Search spaces: the grammar of `--space NAME=VALUES`, sampling from them, and PBT's perturbation.

    log(1e-5,1e-2)       a number, uniform in its logarithm
    uniform(0,0.1)       a number                            0.0..0.1 is the same
    logint(2,100)        a whole number, uniform in its logarithm
    int(1,8)  int(16,128,16)   a whole number, with a step   1..8 is int(1,8)
    .9,.95,.99           one of these; semicolons separate values that contain commas (64,64;128,128)

Ranges include both ends.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from shoal.core.errors import BadInput, nearest

Value = float | int | bool | str


class Real(NamedTuple):
    low: float
    high: float
    log: bool = False


class Whole(NamedTuple):
    low: int
    high: int
    log: bool = False
    step: int = 1


class Choice(NamedTuple):
    values: tuple[Value, ...]


Domain = Real | Whole | Choice
Space = dict[str, Domain]

_CALL = re.compile(r"([A-Za-z_]\w*)\s*\((.*)\)")
_RANGE = re.compile(r"(.+?)\.\.(.+)")
_KINDS = ("log", "uniform", "logint", "int")
_FACTORS = (0.8, 1.2)  # of PBT's perturbation, as published
_RESAMPLE = 0.25


def parse_space(entries: Sequence[str], known: Collection[str] | None = None) -> Space:
    """Parse `NAME=VALUES` entries: {name: domain}. `known` are the allowed names; None accepts any."""
    space: Space = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals:
            raise BadInput(f"--space {entry!r}: expected NAME=VALUES, such as learning_rate=log(1e-5,1e-2)")
        if known is not None and name not in known:
            offer = nearest(name, known) or f" There are: {', '.join(sorted(known))}."
            raise BadInput(f"--space {entry!r}: unknown parameter {name!r}.{offer}")
        if name in space:
            raise BadInput(f"--space {entry!r}: {name!r} is given twice")
        try:
            space[name] = parse_domain(text)
        except BadInput as error:
            raise BadInput(f"--space {entry!r}: {error}") from None
    return space


def parse_domain(text: str) -> Domain:
    """Parse the part after `NAME=`."""
    text = text.strip()
    if not text:
        raise BadInput("it has no values")
    call = _CALL.fullmatch(text)
    if call:
        return _call(call[1], [word.strip() for word in call[2].split(",")])
    span = _RANGE.fullmatch(text)
    if span and "," not in text:
        ends = [span[1].strip(), span[2].strip()]
        return _call("int" if all(re.fullmatch(r"[+-]?\d+", end) for end in ends) else "uniform", ends)
    words = [word.strip() for word in text.split(";" if ";" in text else ",")]
    if "" in words:
        raise BadInput("a value of the list is empty")
    values = tuple(_value(word) for word in words)
    for at, value in enumerate(values):
        if value in values[:at]:
            raise BadInput(f"the list has {words[at]} twice")
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{words[at]} is not a finite number")
    return Choice(values)


def _call(kind: str, words: list[str]) -> Domain:
    if kind not in _KINDS:
        raise BadInput(f"unknown kind {kind!r}.{nearest(kind, _KINDS)} There are: {', '.join(_KINDS)}.")
    whole = kind.endswith("int")
    most = 3 if kind == "int" else 2
    if not 2 <= len(words) <= most:
        raise BadInput(f"{kind} takes two ends{' and a step' if most == 3 else ''}, not {len(words)}")
    ends = [_number(word, whole) for word in words]
    low, high = ends[0], ends[1]
    if kind.startswith("log") and low <= 0:
        raise BadInput(f"{kind} needs ends above 0, not {words[0]}")
    if low >= high:
        raise BadInput(f"the range is empty: {words[0]} is not below {words[1]}")
    if not whole:
        return Real(low, high, kind == "log")
    step = int(ends[2]) if len(ends) == 3 else 1
    if step < 1:
        raise BadInput(f"the step is {step}: at least 1")
    return Whole(int(low), int(high) - (int(high) - int(low)) % step, kind == "logint", step)


def _number(word: str, whole: bool) -> float:
    try:
        value = int(word) if whole else float(word)
    except ValueError:
        raise BadInput(f"{word!r} is not a {'whole ' if whole else ''}number") from None
    if not math.isfinite(value):
        raise BadInput(f"{word} is not a finite number")
    return value


def _value(word: str) -> Value:
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def written(domain: Domain) -> str:
    """Format a domain as text that `parse_domain` can read."""
    if isinstance(domain, Choice):
        words = [str(value).lower() if isinstance(value, bool) else str(value) for value in domain.values]
        return (";" if any("," in word for word in words) else ",").join(words)
    ends = f"{domain.low},{domain.high}"
    if isinstance(domain, Real):
        return f"{'log' if domain.log else 'uniform'}({ends})"
    return f"logint({ends})" if domain.log else f"int({ends}{f',{domain.step}' if domain.step > 1 else ''})"


def bucketed(domain: Whole, most: int) -> Choice:
    """At most `most` values of the range, both ends among them, with about equal ratios between neighbours."""
    points = range(domain.low, domain.high + 1, domain.step)
    if len(points) <= most:
        return Choice(tuple(points))
    shift = max(0, 1 - domain.low)  # logarithms need numbers above 0
    low, high = math.log(domain.low + shift), math.log(domain.high + shift)
    ideal = [math.exp(low + (high - low) * at / (most - 1)) - shift for at in range(most)]
    return Choice(tuple(sorted({points[round((value - domain.low) / domain.step)] for value in ideal})))


def draw(domain: Domain, u: float) -> Value:
    """The value at the quantile `u` in [0, 1)."""
    if isinstance(domain, Choice):
        return domain.values[int(u * len(domain.values))]
    if isinstance(domain, Real):
        low, high = (math.log(domain.low), math.log(domain.high)) if domain.log else (domain.low, domain.high)
        value = low + u * (high - low)
        return min(domain.high, max(domain.low, math.exp(value) if domain.log else value))
    if domain.log:  # each whole number has the probability mass of half a unit to either side
        low, high = math.log(domain.low - 0.5), math.log(domain.high + 0.5)
        return min(domain.high, max(domain.low, round(math.exp(low + u * (high - low)))))
    return domain.low + domain.step * int(u * ((domain.high - domain.low) // domain.step + 1))


def sample(space: Mapping[str, Domain], *, seed: int, trial: int) -> dict[str, Value]:
    """Configuration number `trial` of `seed`, the same for every method and in any order."""
    return {name: draw(domain, uniform(seed, trial, 0, name)) for name, domain in space.items()}


def explore(
    space: Mapping[str, Domain], settings: Mapping[str, Value], *, seed: int, trial: int, unit: int
) -> dict[str, Value]:
    """PBT's perturbation of copied settings: a number times 0.8 or 1.2, a neighbouring choice, or one time in four a new draw."""
    found = {}
    for name, domain in space.items():
        if uniform(seed, trial, unit, f"{name}?") < _RESAMPLE:
            found[name] = draw(domain, uniform(seed, trial, unit, name))
        else:
            found[name] = _moved(domain, settings[name], up=uniform(seed, trial, unit, name) < 0.5)
    return found


def _moved(domain: Domain, value: Value, *, up: bool) -> Value:
    if isinstance(domain, Choice):
        at = domain.values.index(value) + (1 if up else -1)
        return domain.values[min(len(domain.values) - 1, max(0, at))]
    factor = _FACTORS[up]
    moved = float(value) * factor
    if isinstance(domain, Real):
        return min(domain.high, max(domain.low, moved))
    at = domain.low + domain.step * round((moved - domain.low) / domain.step)
    if at == value:  # too small for a factor to change it
        at += domain.step if up else -domain.step
    return min(domain.high, max(domain.low, at))


def uniform(seed: int, trial: int, unit: int, name: str) -> float:
    """A pseudo-random number in [0, 1) determined by these four arguments."""
    digest = hashlib.blake2b(f"{seed}/{trial}/{unit}/{name}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)
