"""Microseconds that a replay's sampler adds to a gradient, by sampler and size: JSON on the last line.

Each call does what a round of learning does: new rows are noted, minibatches of 256 are drawn, and their errors are stored. The
ring is full, so new rows replace the oldest. The mean over all calls counts, with rare passes over the whole tree; the median and
the slowest call are beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from shoal.core.algorithm import Replay
from shoal.replay import make_sampler

BATCH = 256
SIZES = (1 << 17, 1_000_000, 10_000_000)
GRADIENTS = (1, 64)  # of a call, each with one new row
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {"kind": "uniform"},
    "prioritized, seeded": {"kind": "prioritized", "sampler": "seeded"},
    "prioritized, cpprb": {"kind": "prioritized", "sampler": "cpprb"},
}
CPPRB_LIMIT = 1_000_000  # rows: cpprb's own buffer and its copy here would take more memory than they tell


def measure(name: str, size: int, times: int) -> list[dict[str, Any]]:
    """The cost per gradient of one sampler over a full ring of `size` rows."""
    replay = Replay(length=8, batch=BATCH, every=4, capacity=size, warmup=0, **KINDS[name])
    sampler, rng, sizes = make_sampler(replay, 1, size), np.random.default_rng(0), np.array([size])
    sampler.note(np.arange(size))
    sampler.feedback(np.arange(size), rng.exponential(size=size))
    sampler.draw(rng, sizes, 1, BATCH, 0.4)  # not counted: sums up what was filled in
    rows, newest = [], 0
    for count in GRADIENTS:
        took = np.zeros((times, 3))  # note, draw, feedback
        for call in range(times):
            errors = rng.exponential(size=(count, BATCH))
            clock = [time.perf_counter()]
            sampler.note((newest + np.arange(count)) % size)
            clock.append(time.perf_counter())
            picked = sampler.draw(rng, sizes, count, BATCH, 0.4)
            clock.append(time.perf_counter())
            sampler.feedback(picked.indices, errors)
            clock.append(time.perf_counter())
            took[call] = np.diff(clock)
            newest += count
        us = took / count * 1e6
        parts = dict(zip(("note_us", "draw_us", "feedback_us"), us.mean(axis=0).tolist(), strict=True))
        whole = us.sum(axis=1)
        spread = {"median_us": float(np.median(whole)), "slowest_us": float(whole.max())}
        rows.append({"sampler": name, "rows": size, "gradients": count, "us": float(whole.mean()), **spread, **parts})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    given = parser.parse_args()
    rows = []
    for size in given.sizes:
        for name in KINDS:
            if "cpprb" not in name or size <= CPPRB_LIMIT:
                rows += measure(name, size, given.times)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
