"""Parses the words of a command line into names and values. Types and rules come later, from the settings themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from shoal.core.errors import BadInput, nearest


class Words(NamedTuple):
    positional: list[str]
    options: dict[str, str]  # --name value, names as they were written, without the dashes
    switches: set[str]
    lists: dict[str, list[str]]  # values of options that may be repeated


def split(
    words: Sequence[str],
    switches: Collection[str],
    options: Collection[str] | None = None,
    again: Collection[str] = (),
) -> Words:
    """Split words: `--name value` or `--name=value`; a switch takes no value. `options` None accepts any name, checked later.

    Options in `again` may be repeated; their values are in `lists`.
    """
    found = Words([], {}, set(), {name: [] for name in again})
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--") or word == "--":
            if word == "-h":
                found.switches.add("help")
            elif word.startswith("-") and len(word) > 1 and not _number(word):
                raise BadInput(f"unknown option {word!r}: options begin with two dashes")
            else:
                found.positional.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if name in switches or name == "help":
            if equals:
                raise BadInput(f"--{name} takes no value, but has {value!r}")
            found.switches.add(name)
            continue
        if options is not None and name not in options and name not in again:
            raise BadInput(
                f"unknown option --{name}.{nearest(word, [f'--{known}' for known in (*options, *switches)])}"
            )
        if not equals:
            if at == len(words) or words[at].startswith("--"):
                raise BadInput(f"--{name} needs a value")
            value = words[at]
            at += 1
        if name in again:
            found.lists[name].append(value)
            continue
        if name in found.options:
            raise BadInput(f"--{name} is given twice: {found.options[name]!r} and {value!r}")
        found.options[name] = value
    return found


def one_positional(words: Words, what: str) -> str:
    if len(words.positional) != 1:
        raise BadInput(f"give one {what}, not {len(words.positional)}: {' '.join(words.positional) or 'nothing'}")
    return words.positional[0]


def whole_number(words: Words, name: str, default: int, least: int = 1) -> int:
    text = words.options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise BadInput(f"--{name} is {text!r}: expected a whole number") from None
    if value < least:
        raise BadInput(f"--{name} is {value}: at least {least}")
    return value


def _number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
