"""Shared code of `shoal pause` and `shoal stop`: both ask the training in a run folder to end, and wait until it has ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shoal.cli.flags import one_positional, split

if TYPE_CHECKING:
    from shoal.studies.handle import RunHandle


def end(
    words: list[str], usage: str, ask: Callable[[RunHandle], None], result: Callable[[Mapping[str, Any], str], str]
) -> int:
    """Run the command: `ask` sends the request, and `result` makes a line of the summary and the folder."""
    parsed = split(words, ("help", "quiet"), ())
    if "help" in parsed.switches:
        print(usage, end="")
        return 0
    path = one_positional(parsed, "run folder")
    from shoal.studies.handle import RunHandle

    handle = RunHandle.attach(path)
    ask(handle)
    summary = handle.wait()
    if "quiet" not in parsed.switches:
        print(result(summary, path), file=sys.stderr)
    return 0
