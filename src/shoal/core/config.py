"""Typed settings from files and the command line: frozen dataclasses whose field docstrings are the help."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import math
import re
import textwrap
import typing
from collections.abc import Mapping
from functools import cache, partial
from typing import Annotated, Any, TypeVar

import msgspec

from shoal.core.errors import BadInput, nearest

C = TypeVar("C")

_BARE_POINT = re.compile(r"^(-?)(\.\d+(?:[eE][+-]?\d+)?)$")

Positive = Annotated[int, msgspec.Meta(ge=1)]
Several = Annotated[int, msgspec.Meta(ge=2)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


@cache
def field_help(config: type) -> dict[str, str]:
    """{field: docstring below it}, read from the source of the class and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _own_help(base)
    return found


def _own_help(config: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(config)))
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    found: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = " ".join(following.value.value.split())
    return found


@cache
def _hints(config: Any) -> dict[str, Any]:
    return typing.get_type_hints(config, include_extras=True)


def _from_word(value: Any, kind: Any) -> Any:
    """Convert a command-line word to what the type expects: lists are split at commas, `none` is None."""
    if not isinstance(value, str):
        return value
    bare = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    options = typing.get_args(bare) if not isinstance(bare, type) else ()
    if value.lower() in ("none", "null") and type(None) in options:
        return None
    origins = {typing.get_origin(option) for option in (bare, *options)}
    if tuple in origins:
        return [_with_zero(word) for word in value.strip("()[] ").replace(" ", "").split(",") if word]
    return value if bare is str else _with_zero(value)


def _with_zero(word: str) -> str:
    """Write `.5` as `0.5`: numbers are parsed as JSON, which requires a digit before the point."""
    return _BARE_POINT.sub(r"\g<1>0\2", word)


def build(config: type[C], values: Mapping[str, Any], prefix: str = "") -> C:
    """Build a `config` from words or numbers. Errors for unknown names and wrong types say what would be valid."""
    names = [f.name for f in dataclasses.fields(typing.cast(Any, config))]
    loose = {name.replace("-", "_"): value for name, value in values.items()}
    for name in loose:
        if name not in names:
            show = partial(_flag, prefix)
            known = f" There are: {', '.join(map(show, names))}." if names else " There is nothing to set."
            # Compare bare names: a common prefix would make all of them look alike.
            raise BadInput(f"unknown setting {show(name)}.{nearest(name, names, show=show) or known}")
    typed: dict[str, Any] = {}
    for name, value in loose.items():
        kind = _hints(typing.cast(Any, config))[name]
        try:
            typed[name] = msgspec.convert(_from_word(value, kind), kind, strict=False)
        except msgspec.ValidationError as error:
            raise BadInput(f"{_flag(prefix, name)} is {value!r}: {_rule(error, kind)}") from None
        if isinstance(typed[name], float) and not math.isfinite(typed[name]):
            raise BadInput(f"{_flag(prefix, name)} is {value!r}: expected a finite number")
    return config(**typed)


def _flag(prefix: str, name: str) -> str:
    return f"--{prefix}{name.replace('_', '-')}"


def _rule(error: msgspec.ValidationError, kind: Any) -> str:
    """The rule that the value broke, in a user's words."""
    for option in (kind, *typing.get_args(kind)):
        if typing.get_origin(option) is typing.Literal:
            return f"expected one of {', '.join(map(str, typing.get_args(option)))}"
    rule = str(error).split(" - at `$")[0].replace("`", "").replace(" | null", "").removesuffix(", got str")
    rule = rule.replace("Expected int", "expected a whole number").replace("Expected float", "expected a number")
    return f"{rule[:1].lower()}{rule[1:]}"


def replace(config: C, values: Mapping[str, Any], prefix: str = "") -> C:
    """`config` with some fields changed, checked as by `build`."""
    kept = {f.name: getattr(config, f.name) for f in dataclasses.fields(typing.cast(Any, config))}
    return build(type(config), {**kept, **{k.replace("-", "_"): v for k, v in values.items()}}, prefix)


def as_dict(config: Any) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    return typing.cast(dict[str, Any], msgspec.to_builtins(dataclasses.asdict(config)))
