"""Microseconds to draw minibatches of 128 and to take in their errors, by sampler and size: JSON on the last line."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shoal.core.algorithm import Replay
from shoal.replay import make_sampler

BATCH = 128
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {"kind": "uniform"},
    "prioritized, seeded": {"kind": "prioritized", "sampler": "seeded"},
    "prioritized, cpprb": {"kind": "prioritized", "sampler": "cpprb"},
}


def median_us(call: Callable[[], Any], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return float(np.median(took) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    times = parser.parse_args().times
    rows = []
    for size in (1 << 16, 1 << 20):
        for name, settings in KINDS.items():
            replay = Replay(length=8, batch=BATCH, every=4, capacity=size, warmup=0, **settings)
            sampler, rng, sizes = make_sampler(replay, 1, size), np.random.default_rng(0), np.array([size])
            sampler.note(np.arange(size))
            sampler.feedback(np.arange(size), rng.exponential(size=size))
            for count in (1, 64):
                picked = sampler.draw(rng, sizes, count, BATCH, 0.4)
                errors = rng.exponential(size=picked.indices.shape)
                draw = partial(sampler.draw, rng, sizes, count, BATCH, 0.4)
                feedback = partial(sampler.feedback, picked.indices, errors)
                us = {"draw_us": median_us(draw, times), "feedback_us": median_us(feedback, times)}
                rows.append({"sampler": name, "rows": size, "minibatches": count, **us})
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
