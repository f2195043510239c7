"""`shoal envs`: lists environments."""

from __future__ import annotations

from shoal.cli.flags import split
from shoal.core.errors import BadInput

USAGE = """usage: shoal envs [PATTERN]

Lists environment ids with the backends that can step them. PATTERN is a part of the id, or has wildcards: shoal envs 'Lunar*'
"""


def run(words: list[str]) -> int:
    parsed = split(words, ("help",), ())
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    if len(parsed.positional) > 1:
        raise BadInput(f"give one pattern, not {len(parsed.positional)}: {' '.join(parsed.positional)}")
    pattern = parsed.positional[0] if parsed.positional else None
    from shoal.envs.source import names

    found = names(pattern)
    if not found:
        raise BadInput(f"no environment matches {pattern!r}")
    width = max(len(name) for name, _ in found)
    for name, backends in found:
        print(f"{name:<{width}}  {backends}")
    return 0
