"""Breakdown of the cores' time while PPO trains on LunarLander-v3: the CPU time of every thread, by its job.

The kernel counts each thread's time on a core, so that other programs disturb this less than they disturb steps per second.
Prints one JSON object: microseconds of CPU per environment step for physics, acting, learning and the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import shoal

TASKS = Path("/proc/self/task")


def on_core() -> dict[int, tuple[str, float]]:
    """{thread: (its job, its seconds on a core so far)}; the job follows from the thread's name."""
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for task in TASKS.iterdir():
        tid = int(task.name)
        try:
            seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
            name = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if tid == os.getpid():
            what = "reports and hand-over"
        elif python.get(tid, "").startswith("shoal-actor"):
            what = "acting"
        elif "XLA" in name:
            what = "learning"
        else:
            what = "physics"  # what is left are EnvPool's own threads
        found[tid] = (what, seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=300)
    updates = parser.parse_args().updates
    marks: list[tuple[int, float, dict[int, tuple[str, float]]]] = []
    warm = updates // 6

    def look(report: Any) -> bool:
        if report.version in (warm, updates):
            marks.append((report.env_steps, time.monotonic(), on_core()))
        return bool(report.version >= updates)

    with tempfile.TemporaryDirectory() as folder:
        steps = (updates + 1) * 4096
        run = Path(folder) / "run"
        shoal.train("LunarLander-v3", steps=steps, callbacks=[look], eval_episodes=0, quiet=True, out=run)
    (steps0, time0, before), (steps1, time1, after) = marks
    steps, shares = steps1 - steps0, dict.fromkeys(("physics", "acting", "learning", "reports and hand-over"), 0.0)
    for tid, (what, seconds) in after.items():
        shares[what] += (seconds - before.get(tid, ("", 0.0))[1]) / steps * 1e6
    cores = len(os.sched_getaffinity(0))
    rate = steps / (time1 - time0)
    print(
        json.dumps({"steps_per_s": rate, "cores": cores, "limit": cores * 1e6 / sum(shares.values()), "shares": shares})
    )


if __name__ == "__main__":
    main()
