"""`shoal stop`: asks a training to checkpoint and end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.cli.ending import end

USAGE = """usage: shoal stop RUN

Asks the training that another process on this machine runs in the folder RUN to write a checkpoint after its current update and
to end with exit code 0, as Ctrl-C does; waits until it has ended. Its summary says `stopped`.
"""


def run(words: list[str]) -> int:
    return end(words, USAGE, lambda handle: handle.stop(), _result)


def _result(summary: Mapping[str, Any], path: str) -> str:
    steps = f" after {summary['env_steps']:,} steps" if "env_steps" in summary else ""  # `shoal optimize` has none
    return f"{summary.get('ended', 'stopped')}{steps}: {path}"
