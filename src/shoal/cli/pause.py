"""`shoal pause`: ask a training to checkpoint and end, to go on later."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from shoal.cli.flags import one_positional, split

USAGE = """usage: shoal pause RUN

Asks the training in the run folder RUN, which another process on this machine makes, to write a checkpoint after its update and to
end with exit code 0; waits until it has. `shoal train --resume RUN` goes on, on this machine or, with the folder, on another.
`shoal stop RUN` does the same, and the summary says `stopped` instead of `paused`.
"""


def run(words: list[str]) -> int:
    parsed = split(words, ("help", "quiet"), ())
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    path = one_positional(parsed, "run folder")
    from shoal.studies.handle import RunHandle

    handle = RunHandle.attach(path)
    handle.pause()
    summary = handle.wait()
    if "quiet" not in parsed.switches:
        print(_told(summary, path), file=sys.stderr)
    return 0


def _told(summary: Mapping[str, Any], path: str) -> str:
    if "env_steps" not in summary:  # of `shoal optimize`, which has written its law meanwhile
        return f"paused: {path} holds the law so far, which cannot be resumed"
    hint = f"shoal train --resume {path} goes on"
    if not summary.get("resumable", True):
        hint = f"only the program that began it can go on, since {summary['env']} is not an environment with a name"
    return f"{summary['ended']} after {summary['env_steps']:,} steps; {hint}"
