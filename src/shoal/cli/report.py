"""`shoal report`: writes a run's report.html."""

from __future__ import annotations

import sys

from shoal.cli.flags import one_positional, split

USAGE = """usage: shoal report RUN [--no-clip]

Writes report.html into the run folder: curves, returns, throughput, time breakdown, lag, a clip of the agent, the config. It is
one file that opens offline.
"""


def run(words: list[str]) -> int:
    parsed = split(words, ("no-clip", "help", "quiet"), ())
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    path = one_positional(parsed, "run folder")
    from shoal import api

    written = api.load(path).report(film="no-clip" not in parsed.switches)
    if "quiet" not in parsed.switches:
        print(f"report: {written}", file=sys.stderr)
    return 0
