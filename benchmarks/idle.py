"""Other work on the machine: wait until there is none, and measure how much of it ran during a measurement."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

BUSY = 0.05  # share of the machine that others may use before it counts as busy
PATIENCE = 1_800.0  # seconds to wait for an idle machine


def _busy_s() -> float:
    """CPU seconds that all cores have worked since the machine started."""
    user, nice, system, _idle, _wait, irq, soft, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """CPU seconds of this process and of all that it has started and waited for."""
    every = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in every)


class OtherWork:
    """The work of other processes from now on. Our children must have ended before the share is read."""

    def __init__(self) -> None:
        self._from = time.monotonic(), _busy_s(), _own_s()

    def share(self) -> float:
        """Of the machine's cores."""
        began, busy, own = self._from
        others = (_busy_s() - busy) - (_own_s() - own)
        return max(0.0, others) / max(1e-9, (time.monotonic() - began) * (os.cpu_count() or 1))


def wait_until_idle(seconds: float = 5.0) -> None:
    """Return once other processes have been idle for `seconds`; exit if that does not happen within half an hour."""
    until = time.monotonic() + PATIENCE
    while True:
        work = OtherWork()
        time.sleep(seconds)
        if (share := work.share()) < BUSY:
            return
        if time.monotonic() > until:
            sys.exit(
                f"other work still takes {100 * share:.0f} % of the machine after {PATIENCE:.0f} s: measure later, or --busy"
            )
        print(f"  waiting: other work takes {100 * share:.0f} % of the machine", file=sys.stderr, flush=True)
