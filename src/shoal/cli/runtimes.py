"""`shoal runtimes`: lists runtimes with their settings."""

from __future__ import annotations

from shoal.cli.flags import split
from shoal.cli.listing import show
from shoal.core.errors import BadInput


def run(words: list[str]) -> int:
    parsed = split(words, ("help",), ())
    if parsed.positional:
        raise BadInput(f"shoal runtimes takes no argument, but has {parsed.positional[0]!r}")
    from shoal.runtimes import RUNTIMES

    print(show(RUNTIMES, "runtime."), end="")
    return 0
