"""`shoal algos`: lists algorithms with their settings."""

from __future__ import annotations

from shoal.cli.flags import split
from shoal.cli.listing import show
from shoal.core.errors import BadInput


def run(words: list[str]) -> int:
    parsed = split(words, ("help",), ())
    if parsed.positional:
        raise BadInput(f"shoal algos takes no argument, but has {parsed.positional[0]!r}")
    from shoal.algos import ALGOS

    print(show(ALGOS, "algo."), end="")
    return 0
