"""`shoal topologies`: lists topologies with their settings."""

from __future__ import annotations

from shoal.cli.flags import split
from shoal.cli.listing import show
from shoal.core.errors import BadInput


def run(words: list[str]) -> int:
    parsed = split(words, ("help",), ())
    if parsed.positional:
        raise BadInput(f"shoal topologies takes no argument, but has {parsed.positional[0]!r}")
    from shoal.topologies import TOPOLOGIES

    print(show(TOPOLOGIES, "topology."), end="")
    return 0
