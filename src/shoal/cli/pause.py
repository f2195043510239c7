"""`shoal pause`: asks a training to checkpoint and end, to be resumed later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.cli.ending import end

USAGE = """usage: shoal pause RUN

Asks the training that another process on this machine runs in the folder RUN to write a checkpoint after its current update and
to end with exit code 0; waits until it has ended. `shoal train --resume RUN` continues it, on this machine or, with the folder,
on another. `shoal stop RUN` does the same, but the summary says `stopped` instead of `paused`.
"""


def run(words: list[str]) -> int:
    return end(words, USAGE, lambda handle: handle.pause(), _result)


def _result(summary: Mapping[str, Any], path: str) -> str:
    if "env_steps" not in summary:  # `shoal optimize`, which has written its law meanwhile
        return f"paused: {path} holds the law so far, which cannot be resumed"
    hint = f"shoal train --resume {path} continues it"
    if not summary.get("resumable", True):
        hint = (
            f"only the program that began it can continue it, since {summary['env']} is not an environment with a name"
        )
    return f"{summary['ended']} after {summary['env_steps']:,} steps; {hint}"
