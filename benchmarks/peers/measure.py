"""Measurement of a peer: whole iterations on one clock, the last 100 episodes, one JSON object at the end.

The peers' scripts run in virtual environments of their own, so this needs the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

ENV = "LunarLander-v3"
EPISODES = 100  # the mean that counts as solved is over these many training episodes


class Measure:
    """Points (seconds, steps) at the ends of iterations.

    `steps_per_s` runs from the first point to the last, so imports, construction and warm-up are left out of it;
    `solved_at_s` runs from the start of the command, so that they are in it.
    """

    def __init__(self, seconds: float, until_return: float | None, env: str = ENV) -> None:
        self.started = float(os.environ.get("BENCH_STARTED", time.monotonic()))  # the parent's clock is the same one
        self.seconds, self.env = seconds, env
        self.until_return = until_return
        self.points: list[tuple[float, int]] = []
        self.return_mean: float | None = None
        self.solved_at_s: float | None = None

    def iteration(self, env_steps: int, returns: list[float]) -> bool:
        """Note an iteration's end, with the newest episodes' returns. True when the measurement is complete."""
        now = time.monotonic()
        self.points.append((now, int(env_steps)))
        if returns:
            last = returns[-EPISODES:]
            self.return_mean = sum(last) / len(last)
            goal = self.until_return
            if goal is not None and len(last) == EPISODES and self.return_mean >= goal and self.solved_at_s is None:
                self.solved_at_s = now - self.started
        if self.until_return is not None:
            return self.solved_at_s is not None or now - self.started >= self.seconds
        return len(self.points) > 1 and now - self.points[0][0] >= self.seconds

    def report(
        self,
        package: str,
        settings: dict[str, Any],
        minibatch: int,
        steps_per_gradient: float,
        found: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        """Print the result as the last line of standard output. `found` is the version, where `package` is none; `more` are
        further entries."""
        if len(self.points) < 2:
            sys.exit(f"{package} ended after {len(self.points)} iterations: at least 2 are needed to tell a speed")
        (t0, n0), (t1, n1) = self.points[0], self.points[-1]
        print(
            json.dumps(
                {
                    "peer": package,
                    "version": found or version(package),
                    "env": self.env,
                    "env_steps": n1,
                    "measured_s": t1 - t0,
                    "minibatch": minibatch,
                    "steps_per_gradient": steps_per_gradient,
                    "steps_per_s": (n1 - n0) / (t1 - t0),
                    "return_mean": self.return_mean,
                    "solved_at_s": self.solved_at_s,
                    "settings": settings,
                    **(more or {}),
                }
            ),
            flush=True,
        )


def arguments(doc: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--seconds", type=float, default=60, help="how long to measure")
    parser.add_argument("--until-return", type=float, help="stop when the mean of 100 episodes reaches this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--hyper",
        default="zoo",
        choices=("zoo", "shoal", "near", "own"),
        help="whose hyperparameters, where there is a choice",
    )
    parser.add_argument(
        "--physics",
        default="gymnasium",
        choices=("gymnasium", "envpool"),
        help="library that steps LunarLander, if there is a choice",
    )
    return parser.parse_args()
