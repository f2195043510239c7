"""`shoal stop`: asks a training to checkpoint and end."""

from __future__ import annotations

import sys

from shoal.cli.flags import one_positional, split

USAGE = """usage: shoal stop RUN

Asks the training that another process on this machine runs in the folder RUN to write a checkpoint after its current update and
to end with exit code 0, as Ctrl-C does; waits until it has ended. Its summary says `stopped`.
"""


def run(words: list[str]) -> int:
    parsed = split(words, ("help", "quiet"), ())
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    path = one_positional(parsed, "run folder")
    from shoal.studies.handle import RunHandle

    handle = RunHandle.attach(path)
    handle.stop()
    summary = handle.wait()
    if "quiet" not in parsed.switches:
        # The summary of `shoal optimize` has no environment steps.
        steps = f" after {summary['env_steps']:,} steps" if "env_steps" in summary else ""
        print(f"{summary.get('ended', 'stopped')}{steps}: {path}", file=sys.stderr)
    return 0
